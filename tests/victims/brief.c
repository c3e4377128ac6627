// brief MIB HOT BRIEF STAYING: numbered pages, of which the first HOT MiB are in use; BRIEF children that check some of these and end at
// once, after each of which all that is in use is written; and then, STAYING times, three such children and one that stays, which writes
// all pages while its maker does, too. Prints "brief: right".
#include <sys/wait.h>
#include <unistd.h>

#include "numbered.h"

enum { BETWEEN = 3 };

static uint64_t *words;
static size_t pages;

static uint64_t word(size_t page, int round) { return (uint64_t)page << 32 | (unsigned)round; }

static void set(size_t most, int round) {
    for (size_t page = 0; page < most; page++) {
        words[page * PAGE_WORDS] = word(page, round);
    }
}

static int are(size_t most, int round) {
    size_t wrong = 0;
    for (size_t page = 0; page < most; page++) {
        wrong += words[page * PAGE_WORDS] != word(page, round);
    }
    return wrong == 0;
}

static void end_right(pid_t child, const char *what) {
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("brief: %s ended with %#x\n", what, status);
        exit(1);
    }
}

// A child that looks at what is in use and ends.
static void brief(size_t hot, int round) {
    pid_t child = fork();
    if (child == 0) {
        _exit(!are(hot / 16, round));
    }
    end_right(child, "a brief child");
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: brief MIB HOT BRIEF STAYING\n");
        return 2;
    }
    pages = strtoull(argv[1], NULL, 10) * 256;
    size_t hot = strtoull(argv[2], NULL, 10) * 256;
    int briefs = atoi(argv[3]), staying = atoi(argv[4]), round = 1;
    words = map(pages);
    set(hot, round);
    for (int number = 0; number < briefs; number++) {
        brief(hot, round);
        set(hot, ++round);
    }
    for (int number = 0; number < staying; number++) {
        set(pages, ++round);
        for (int between = 0; between < BETWEEN; between++) {
            brief(hot, round);
        }
        pid_t child = fork();
        if (child == 0) {
            int is_right = 1;
            for (int again = 0; again < 2; again++) {
                is_right &= are(pages, round);
                set(pages, ++round);
            }
            _exit(!(is_right && are(pages, round)));
        }
        int of_maker = round + 100;
        set(pages, of_maker);
        int is_right = are(pages, of_maker);
        end_right(child, "a child that stays");
        if (!is_right || !are(pages, of_maker)) {
            printf("brief: the maker has other bytes\n");
            return 1;
        }
        round = of_maker;
    }
    printf("brief: right\n");
}
