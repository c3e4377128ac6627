// session: what programs do to the session that pages for them: forks, namespaces, credentials, filters, many processes.
//
//   session MODE MIB [ARGUMENT]
//
// Prints "ready" once MIB MiB of memory are filled, and "ok" at its end if every byte was right (exit status 0; a wrong byte: 1;
// a mode that could not do its part: 2).
//   forks N       N times: a child checks and rewrites, then the parent does
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = 512 };

static uint64_t *memory;
static uint64_t pages;
static uint64_t version;

static void rewrite(void) {
    version++;
    for (uint64_t page = 0; page < pages; page++) {
        for (unsigned i = 0; i < WORDS; i += 64) {
            memory[page * WORDS + i] = (page + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537 + i);
        }
    }
}

static void check(void) {
    for (uint64_t page = 0; page < pages; page++) {
        for (unsigned i = 0; i < WORDS; i += 64) {
            uint64_t expected = (page + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537 + i);
            if (((volatile uint64_t *)memory)[page * WORDS + i] != expected) {
                dprintf(2, "session: WRONG page %" PRIu64 " word %u\n", page, i);
                _exit(1);
            }
        }
    }
}

static void work(void) {
    check();
    rewrite();
    check();
}

static void give_up(const char *what) {
    dprintf(2, "session: %s: %s\n", what, strerror(errno));
    _exit(2);
}

static void expect_good_end(pid_t child, const char *what) {
    int status;
    while (waitpid(child, &status, 0) != child) {
        if (errno != EINTR) {
            give_up("waitpid");
        }
    }
    if (status != 0) {
        dprintf(2, "session: %s ended with status %#x\n", what, status);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
    }
}

static void forks(int count) {
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) {
            give_up("fork");
        }
        if (child == 0) {
            work();
            _exit(0);
        }
        work();
        expect_good_end(child, "a child");
    }
}

static const struct {
    const char *name;
    void (*run)(int argument);
} modes[] = {
    {"forks", forks},
};

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: session MODE MIB [ARGUMENT]\n");
        return 2;
    }
    pages = strtoull(argv[2], NULL, 10) * 256;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        give_up("mmap");
    }
    rewrite();
    check();
    dprintf(1, "ready\n");
    for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run(argc > 3 ? atoi(argv[3]) : 0);
            dprintf(1, "ok\n");
            return 0;
        }
    }
    fprintf(stderr, "session: unknown mode '%s'\n", argv[1]);
    return 2;
}
