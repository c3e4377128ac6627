// again PROCESSES TIMES KIB: so many processes at once, each of which fills KIB KiB, checks them and executes itself so many times.
//
// Whoever is to be given an agent is soon another program.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "numbered.h"

static void execute(int times, const char *kib) {
    char text[16];
    snprintf(text, sizeof text, "%d", times);
    execl("/proc/self/exe", "again", "0", text, kib, NULL);
    perror("again: exec");
    _exit(2);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: again PROCESSES TIMES KIB\n");
        return 2;
    }
    int processes = atoi(argv[1]), times = atoi(argv[2]), wrong = 0;
    for (int number = 0; number < processes; number++) {
        if (fork() == 0) {
            execute(times, argv[3]);
        }
    }
    for (int status; wait(&status) > 0;) {
        wrong += status != 0;
    }
    if (processes) {
        printf("%d wrong\n", wrong);
        return wrong != 0;
    }
    size_t pages = strtoull(argv[3], NULL, 10) / 4;
    uint64_t *words = map(pages);
    for (size_t page = 0; page < pages; page++) {
        wrong += words[page * PAGE_WORDS] != ((uint64_t)page << 32 | 1);
    }
    if (times > 0 && wrong == 0) {
        execute(times - 1, argv[3]);
    }
    return wrong != 0;
}
