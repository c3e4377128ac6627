// sleepers PROCESSES MIB EACH SHARED: so many children sleep, with EACH MiB of their own, while their parent works on MIB of memory in
// random order, as a server's processes do beside the one that has a request. With SHARED MiB, which all have from their parent, none of
// them is paged before the work begins; else all are.
#define _GNU_SOURCE
#include "numbered.h"
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN_MAX = 64, TOUCHES = 200000 };

// How many of the pages are not as they were mapped.
static uint64_t wrong_of(const uint64_t *words, size_t pages) {
    uint64_t wrong = 0;
    for (size_t page = 0; page < pages; page++) {
        wrong += words[page * PAGE_WORDS] != ((uint64_t)page << 32 | 1);
    }
    return wrong;
}

int main(int argc, char **argv) {
    int processes = argc == 5 ? atoi(argv[1]) : 0;
    if (processes < 1 || processes > CHILDREN_MAX) {
        fprintf(stderr, "usage: sleepers PROCESSES MIB EACH SHARED\n");
        return 2;
    }
    size_t pages = (size_t)atoi(argv[2]) * 256, each = (size_t)atoi(argv[3]) * 256, shared = (size_t)atoi(argv[4]) * 256;
    uint64_t *of_all = map(shared + 1);
    if (shared == 0) {
        // More than the budget for once: from here on it is paged, and so are its children.
        munmap(map(2 * pages), 2 * pages * PAGE_WORDS * 8);
    }
    pid_t children[CHILDREN_MAX];
    int ready[2], over[2];
    if (pipe(ready) != 0 || pipe(over) != 0) {
        perror("sleepers: pipe");
        return 2;
    }
    for (int number = 0; number < processes; number++) {
        children[number] = fork();
        if (children[number] < 0) {
            perror("sleepers: fork");
            return 2;
        }
        if (children[number] == 0) {
            char word;
            uint64_t *own = map(each + 1);
            close(over[1]);
            // Until the parent has closed the other end.
            if (write(ready[1], "r", 1) != 1 || read(over[0], &word, 1) != 0) {
                _exit(2);
            }
            _exit(wrong_of(own, each) + wrong_of(of_all, shared) != 0);
        }
        char word;
        if (read(ready[0], &word, 1) != 1) {
            return 2;
        }
    }
    uint64_t *words = map(pages), random = 1, wrong = 0;
    for (int touch = 0; touch < TOUCHES; touch++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        size_t page = (random >> 33) % pages;
        wrong += words[page * PAGE_WORDS] != ((uint64_t)page << 32 | 1);
    }
    close(over[1]);
    for (int number = 0; number < processes; number++) {
        int status;
        waitpid(children[number], &status, 0);
        wrong += status != 0;
    }
    printf("%d processes slept, %llu pages were wrong\n", processes, (unsigned long long)wrong);
    return wrong != 0;
}
