// burst PROCESSES MIB: so many processes at once map MIB each and fill it as fast as they can; when all have, each checks every page.
//
// Nothing else is done first: who watches from outside sees a small process, and a few milliseconds later a full one.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_WORDS = 512 };

static int has_filled[2], all_have[2];

static int child(uint64_t number, size_t pages) {
    uint64_t *words = mmap(NULL, pages * PAGE_WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) {
        perror("burst: mmap");
        return 2;
    }
    for (size_t page = 0; page < pages; page++) {
        words[page * PAGE_WORDS] = number << 32 | page | 1ull << 63;
    }
    char end;
    close(all_have[1]);
    // Its end of the pipe goes before it waits: the first process hears of it when one that was killed writes nothing.
    if (write(has_filled[1], "f", 1) != 1 || close(has_filled[1]) != 0 || read(all_have[0], &end, 1) != 0) {
        perror("burst: pipe");
        return 2;
    }
    for (size_t page = 0; page < pages; page++) {
        if (words[page * PAGE_WORDS] != (number << 32 | page | 1ull << 63)) {
            fprintf(stderr, "burst: WRONG page %zu of process %d\n", page, (int)number);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: burst PROCESSES MIB\n");
        return 2;
    }
    int processes = atoi(argv[1]), failed = 0;
    size_t pages = (size_t)atoi(argv[2]) * 256;
    if (pipe(has_filled) || pipe(all_have)) {
        perror("burst: pipe");
        return 2;
    }
    for (int number = 1; number <= processes; number++) {
        pid_t pid = fork();
        if (pid < 0) {
            perror("burst: fork");
            return 2;
        }
        if (pid == 0) {
            _exit(child((uint64_t)number, pages));
        }
    }
    close(has_filled[1]);
    char filled;
    for (int left = processes; left > 0 && read(has_filled[0], &filled, 1) == 1; left--) {
    }
    close(all_have[1]);
    for (int status; wait(&status) > 0;) {
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    printf("%d processes, %zu pages each\n", processes, pages);
    return failed;
}
