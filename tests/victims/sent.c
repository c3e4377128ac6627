// sent: SIGSEGV, SIGBUS and SIGSYS that another process sends, to a program whose memory is paged.
//
//   sent MIB
//
// The program touches a ballast of MIB MiB and makes system calls all the while. Prints one line per case; a case that fails ends the
// program with 1.
#include "expect.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { SENT = 10000, ROUNDS = 600 };

static const int signals[] = {SIGSEGV, SIGBUS, SIGSYS};

static uint64_t *ballast;
static uint64_t ballast_words;
// Shared with the children: signals that the handler has seen.
static volatile int *seen;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void counts(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    EXPECT(info->si_code == SI_QUEUE && info->si_value.sival_int == 4711);
    (*seen)++;
}

static void send_one(pid_t to, int number) {
    while (sigqueue(to, number, (union sigval){.sival_int = 4711}) != 0) {
        EXPECT(errno == EAGAIN);
    }
}

// Faults, calls that are stopped and calls that are made in place, until a child ends; it must end with 0.
static void work_until_end(pid_t child) {
    static uint64_t at;
    char byte;
    int status;
    int zero = open("/dev/zero", O_RDONLY);
    EXPECT(zero >= 0);
    while (waitpid(child, &status, WNOHANG) != child) {
        for (int i = 0; i < 50; i++) {
            at = (at + 512 * 37) % ballast_words;
            EXPECT(ballast[at] == at);
            ballast[at] = at;
            EXPECT(syscall(SYS_getppid) == getppid());
            EXPECT(read(zero, &byte, 1) == 1);
        }
    }
    EXPECT(close(zero) == 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// As fast as they can be sent: further ones come while the handler of the first is being entered. (SIGSYS is a known gap.)
static void case_many(void) {
    for (unsigned i = 0; signals[i] != SIGSYS; i++) {
        *seen = 0;
        pid_t self = getpid(), child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            for (int sent = 0; sent < SENT; sent++) {
                send_one(self, signals[i]);
            }
            _exit(0);
        }
        work_until_end(child);
        EXPECT(*seen > 0 && *seen <= SENT);
    }
}

// Each when the one before it was seen: none is lost.
static void case_one_by_one(void) {
    *seen = 0;
    pid_t self = getpid(), child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        for (int sent = 0; sent < ROUNDS; sent++) {
            double end = now() + 60;
            send_one(self, signals[sent % 3]);
            while (*seen <= sent) {
                EXPECT(now() < end);
                sched_yield();
            }
        }
        _exit(0);
    }
    work_until_end(child);
    EXPECT(*seen == ROUNDS);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"many", case_many},
    {"one by one", case_one_by_one},
};

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: sent MIB\n");
        return 2;
    }
    ballast_words = strtoull(argv[1], NULL, 10) << 17;
    ballast = mmap(NULL, ballast_words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(ballast != MAP_FAILED && seen != MAP_FAILED);
    for (uint64_t i = 0; i < ballast_words; i++) {
        ballast[i] = i;
    }
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_sigaction = counts, .sa_flags = SA_SIGINFO | SA_RESTART};
        EXPECT(sigaction(signals[i], &action, NULL) == 0);
    }
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        case_name = cases[i].name;
        cases[i].run();
        printf("%s: right\n", case_name);
        fflush(stdout);
    }
    return 0;
}
