// family MIB CHILDREN PASSES HOW: numbered pages, and CHILDREN, all alive at once, that read all of them PASSES times while their maker waits
// (HOW: reads), or write all of them as often, as their maker does (writes). Prints "family: right".
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "numbered.h"

static volatile uint64_t *words;
static size_t pages;

// Pages that are not what they were, each of which is another one's from now on.
static size_t pass(uint64_t was, uint64_t is) {
    size_t wrong = 0;
    for (size_t page = 0; page < pages; page++) {
        wrong += words[page * PAGE_WORDS] != ((uint64_t)page << 32 | was);
        if (is != was) {
            words[page * PAGE_WORDS] = (uint64_t)page << 32 | is;
        }
    }
    return wrong;
}

static size_t live(uint64_t first, int passes, int writes) {
    size_t wrong = 0;
    uint64_t was = 1;
    for (int number = 0; number < passes; number++) {
        uint64_t is = writes ? first + number : was;
        wrong += pass(was, is);
        was = is;
    }
    return wrong + pass(was, was);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: family MIB CHILDREN PASSES reads|writes\n");
        return 2;
    }
    pages = strtoull(argv[1], NULL, 10) * 256;
    int children = atoi(argv[2]), passes = atoi(argv[3]), writes = strcmp(argv[4], "writes") == 0;
    size_t failed = 0;
    words = map(pages);
    for (int number = 1; number <= children; number++) {
        pid_t child = fork();
        if (child == 0) {
            _exit(live(1000 * number, passes, writes) != 0);
        }
        failed += child < 0;
    }
    if (writes) {
        failed += live(1000 * (children + 1), passes, writes);
    }
    int status;
    while (wait(&status) > 0) {
        failed += status != 0;
    }
    printf("family: %s\n", failed ? "wrong" : "right");
    return failed != 0;
}
