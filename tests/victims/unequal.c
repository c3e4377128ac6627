// unequal STREAM RANDOM TOUCHES: a process goes through STREAM MiB again and again, while its parent touches pages of RANDOM MiB, TOUCHES
// times. To the first one more memory is worth nothing, to the second one all that it has lacks.
#define _GNU_SOURCE
#include "numbered.h"
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

// Until the other end of the pipe is closed. How many pages were wrong.
static uint64_t stream(size_t pages, int over, int ready) {
    uint64_t *words = map(pages), wrong = write(ready, "r", 1) != 1;
    for (uint64_t round = 0;; round++) {
        for (size_t page = 0; page < pages; page++) {
            struct pollfd end = {over, POLLIN, 0};
            if (page % 256 == 0 && poll(&end, 1, 0) != 0) {
                return wrong;
            }
            wrong += words[page * PAGE_WORDS]++ != (page << 32 | 1) + round;
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: unequal STREAM RANDOM TOUCHES\n");
        return 2;
    }
    size_t pages = (size_t)atoi(argv[2]) * 256;
    int over[2], ready[2], status;
    if (pipe(over) != 0 || pipe(ready) != 0) {
        perror("unequal: pipe");
        return 2;
    }
    pid_t child = fork();
    if (child == 0) {
        close(over[1]);
        _exit(stream((size_t)atoi(argv[1]) * 256, over[0], ready[1]) != 0);
    }
    char word;
    close(ready[1]);
    uint64_t wrong = read(ready[0], &word, 1) != 1, random = 1, *words = map(pages);
    for (long touch = atol(argv[3]); touch > 0; touch--) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        size_t page = (random >> 33) % pages;
        wrong += words[page * PAGE_WORDS]++ >> 32 != page;
    }
    close(over[1]);
    wrong += child < 0 || waitpid(child, &status, 0) != child || status != 0;
    printf("%llu pages were wrong\n", (unsigned long long)wrong);
    return wrong != 0;
}
