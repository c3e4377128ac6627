// hostile: does one thing that a pager must survive or refuse, with MIB MiB of memory that it rewrites and checks before and
// after.
//
//   hostile MODE MIB [ARGUMENT]
//
// Prints "ready" once its memory is filled the first time, and "ok" at its end if every byte was right (exit status 0;
// a wrong byte: 1; a mode that could not do its part: 2).
//   exit N            ends with status N                         die N       kills itself with signal N
//   crash             stores through a null pointer              wait        sleeps until a signal ends it
//   trap              ends with status 42 on SIGTERM or SIGINT   hold        rewrites and checks until killed
//   block-signals     all signals blocked in every thread        replace-signals  own SIGSEGV and SIGBUS handlers, used
//   close-all         closes every descriptor but 0, 1, 2        close-loop  the same, one by one, as daemons do
//   exhaust-files     opens files until refused                  exhaust-maps     makes mappings until refused
//   exhaust-threads   starts 200 threads that touch memory       no-new-memory    RLIMIT_AS just above what it has
//   recheck           waits for SIGUSR1, then checks             two         a child rewrites as well
//   two-when-told     waits for SIGUSR1 before that              alternate-stack  a handler on a paged-out stack overflowed
//   deny-ring N       io_uring_enter fails with error N in every thread, by a filter that comes while pages move
//   deny-ring-alone N the same, and no child is forked
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = 512 };

static uint64_t *memory;
static uint64_t pages;
static uint64_t version;
static volatile uintptr_t wild_address = 0x10; // volatile: the compiler must not see the null page

static void rewrite(void) {
    version++;
    for (uint64_t page = 0; page < pages; page++) {
        for (unsigned i = 0; i < WORDS; i += 32) {
            memory[page * WORDS + i] = (page + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537 + i);
        }
    }
}

static void check(void) {
    for (uint64_t page = 0; page < pages; page++) {
        for (unsigned i = 0; i < WORDS; i += 32) {
            uint64_t expected = (page + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537 + i);
            if (((volatile uint64_t *)memory)[page * WORDS + i] != expected) {
                dprintf(2, "hostile: WRONG page %" PRIu64 " word %u\n", page, i);
                _exit(1);
            }
        }
    }
}

static void work(void) {
    for (int i = 0; i < 3; i++) {
        check();
        rewrite();
    }
    check();
}

static void give_up(const char *what) {
    dprintf(2, "hostile: %s: %s\n", what, strerror(errno));
    _exit(2);
}

static void block_signals(void) {
    // Past the C library, which keeps two signals for itself and may be interposed.
    unsigned long all = ~0ul;
    if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8)) {
        give_up("sigprocmask");
    }
    work();
    sigset_t set;
    sigfillset(&set);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    work();
}

static sigjmp_buf back;
static volatile uintptr_t fault_address;

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    fault_address = (uintptr_t)info->si_addr;
    siglongjmp(back, 1);
}

// Its handlers must see its own faults, with the address, and none of the pager's.
static void replace_signals(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER}, found;
    if (sigaction(SIGSEGV, &action, NULL) || sigaction(SIGBUS, &action, NULL)) {
        give_up("sigaction");
    }
    if (sigaction(SIGBUS, NULL, &found) || found.sa_sigaction != on_fault) {
        give_up("sigaction does not read back");
    }
    for (int round = 0; round < 3; round++) {
        if (sigsetjmp(back, 1) == 0) {
            work();
            fault_address = 1;
            *(volatile int *)wild_address = 1;
            give_up("no fault on a null pointer");
        }
        if (fault_address != 0x10) {
            give_up("a handler of the program saw a fault that was not the program's");
        }
        if (sigsetjmp(back, 1) == 0) {
            int fd = open("/proc/self/exe", O_RDONLY);
            volatile char *beyond = mmap(NULL, 1 << 30, PROT_READ, MAP_PRIVATE, fd, 0);
            close(fd);
            (void)beyond[(1 << 30) - 1];
            give_up("no fault beyond the end of a file");
        }
    }
}

static void close_all(void) {
    if (syscall(SYS_close_range, 3, ~0u, 0)) {
        give_up("close_range");
    }
    work();
    closefrom(3);
    work();
}

static void close_loop(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned fd = 3; fd < limit.rlim_cur && fd < 1 << 20; fd++) {
        close((int)fd);
    }
    work();
}

static void exhaust_files(void) {
    int count = 0;
    while (open("/dev/null", O_RDONLY) >= 0) {
        count++;
    }
    if (errno != EMFILE || count < 100) {
        give_up("open");
    }
    work();
    pid_t child = fork();
    if (child == 0) {
        work();
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        give_up("fork without free descriptors");
    }
}

static void exhaust_maps(void) {
    enum { LIMIT = 1 << 20 };
    static void *kept[LIMIT];
    unsigned count = 0;
    for (; count < LIMIT; count++) {
        kept[count] = mmap(NULL, PAGE, count % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (kept[count] == MAP_FAILED) {
            break;
        }
        if (count % 128 == 0) {
            *(volatile char *)kept[count] = 1;
        }
    }
    if (count < 1000) {
        give_up("mmap");
    }
    work();
    for (unsigned i = 0; i < count; i++) {
        if (i % 128 == 0 && *(volatile char *)kept[i] != 1) {
            dprintf(2, "hostile: WRONG small mapping %u\n", i);
            _exit(1);
        }
        munmap(kept[i], PAGE);
    }
    work();
}

static void *touch_own(void *arg) {
    unsigned char local[65536];
    memset(local, (int)(uintptr_t)arg, sizeof local);
    for (int i = 0; i < 20; i++) {
        sched_yield();
    }
    for (unsigned i = 0; i < sizeof local; i++) {
        if (((volatile unsigned char *)local)[i] != (unsigned char)(uintptr_t)arg) {
            dprintf(2, "hostile: WRONG stack byte\n");
            _exit(1);
        }
    }
    return NULL;
}

static void exhaust_threads(void) {
    enum { THREADS = 200 };
    pthread_t ids[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        if (pthread_create(&ids[i], NULL, touch_own, (void *)(i + 1))) {
            give_up("pthread_create");
        }
    }
    work();
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
    }
}

static void no_new_memory(void) {
    FILE *statm = fopen("/proc/self/statm", "r");
    unsigned long size;
    if (!statm || fscanf(statm, "%lu", &size) != 1) {
        give_up("statm");
    }
    fclose(statm);
    struct rlimit limit = {.rlim_cur = size * PAGE + (1 << 20), .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit)) {
        give_up("setrlimit");
    }
    work();
    void *refused = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (refused != MAP_FAILED) {
        give_up("the limit does not hold");
    }
    work();
}

static void two(void) {
    pid_t child = fork();
    if (child < 0) {
        give_up("fork");
    }
    work();
    if (child == 0) {
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        give_up("the child");
    }
}

static int overflow(int depth) {
    volatile char frame[4096];
    memset((char *)frame, depth, sizeof frame);
    return depth == 0 ? 0 : overflow(depth + 1) + frame[100];
}

static void alternate_stack(void) {
    unsigned char *own = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(own, 7, 16 * PAGE);
    stack_t stack = {.ss_sp = own, .ss_size = 16 * PAGE};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    if (sigaltstack(&stack, NULL) || sigaction(SIGSEGV, &action, NULL) || setrlimit(RLIMIT_STACK, &limit)) {
        give_up("sigaltstack");
    }
    work();
    if (sigsetjmp(back, 1) == 0) {
        overflow(1);
        give_up("no overflow");
    }
    work();
}

static int denial;
static volatile int denied;

static void *deny(void *unused) {
    (void)unused;
    usleep(20000);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)denial),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)) {
        give_up("seccomp");
    }
    denied = 1;
    return NULL;
}

static void deny_ring_alone(void) {
    pthread_t denier;
    if (pthread_create(&denier, NULL, deny, NULL)) {
        give_up("pthread_create");
    }
    while (!denied) {
        check();
        rewrite();
    }
    pthread_join(denier, NULL);
    if (syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0) == 0 || errno != denial) {
        give_up("io_uring_enter is not denied");
    }
    work();
}

static void deny_ring(void) {
    deny_ring_alone();
    pid_t child = fork();
    if (child == 0) {
        work();
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        give_up("the child");
    }
}

static void wait_until_told(void) {
    // Blocked since before "ready", so that a signal that comes early is not lost.
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    if (sigwait(&set, &number)) {
        give_up("sigwait");
    }
}

static void recheck(void) {
    wait_until_told();
    check();
}

static void two_when_told(void) {
    wait_until_told();
    two();
}

static void on_end(int number) {
    (void)number;
    _exit(42);
}

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = {
    {"block-signals", block_signals},   {"replace-signals", replace_signals}, {"close-all", close_all},
    {"close-loop", close_loop},         {"exhaust-files", exhaust_files},     {"exhaust-maps", exhaust_maps},
    {"exhaust-threads", exhaust_threads}, {"no-new-memory", no_new_memory},   {"two", two},
    {"alternate-stack", alternate_stack}, {"recheck", recheck},       {"two-when-told", two_when_told},
    {"deny-ring", deny_ring}, {"deny-ring-alone", deny_ring_alone},
};

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: hostile MODE MIB [ARGUMENT]\n");
        return 2;
    }
    const char *mode = argv[1];
    int argument = argc > 3 ? atoi(argv[3]) : 0;
    pages = strtoull(argv[2], NULL, 10) * 256;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        give_up("mmap");
    }
    if (strcmp(mode, "trap") == 0) {
        signal(SIGTERM, on_end);
        signal(SIGINT, on_end);
    }
    if (strcmp(mode, "recheck") == 0 || strcmp(mode, "two-when-told") == 0) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        sigprocmask(SIG_BLOCK, &set, NULL);
    }
    rewrite();
    check();
    dprintf(1, "ready\n");
    if (strcmp(mode, "exit") == 0) {
        _exit(argument);
    } else if (strcmp(mode, "die") == 0) {
        kill(getpid(), argument);
        pause();
    } else if (strcmp(mode, "crash") == 0) {
        *(volatile int *)wild_address = 1;
    } else if (strcmp(mode, "wait") == 0 || strcmp(mode, "trap") == 0) {
        for (;;) {
            pause();
        }
    } else if (strcmp(mode, "hold") == 0) {
        for (;;) {
            work();
        }
    }
    for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(mode, modes[i].name) == 0) {
            denial = argument;
            modes[i].run();
            dprintf(1, "ok\n");
            return 0;
        }
    }
    fprintf(stderr, "hostile: unknown mode '%s'\n", mode);
    return 2;
}
