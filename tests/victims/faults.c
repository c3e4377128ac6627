// faults: faults of threads that are not like others, with nearly all memory paged out.
//
//   faults MIB [refused]
//
// With "refused" it asks for system call filters that cannot be had while memory is paged, and expects to be told so.
// Before and after each case a ballast of MIB MiB is rewritten and checked. Prints one line per case; a case that fails ends the
// program with 1.
#include "expect.h"

#include <fcntl.h>
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
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static volatile uint64_t *ballast;
static uint64_t pages;
static uint64_t version;

static void check(void) {
    for (uint64_t page = 0; page < pages; page++) {
        EXPECT(ballast[page * WORDS] == page * version + 1);
    }
}

static void rewrite(void) {
    version++;
    for (uint64_t page = 0; page < pages; page++) {
        EXPECT(ballast[page * WORDS] == page * (version - 1) + 1);
        ballast[page * WORDS] = page * version + 1;
    }
}

static void descriptors(void) {
    EXPECT(syscall(SYS_close_range, 3u, ~0u, 0u) == 0);
    rewrite();
    for (int fd = 3; fd < 8192; fd++) {
        close(fd);
    }
    rewrite();
    struct rlimit limit;
    EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    // Beyond the limit there is no descriptor to be had, whatever is there.
    for (int fd = (int)limit.rlim_cur; fd < (int)limit.rlim_cur + 16; fd++) {
        EXPECT(dup2(0, fd) == -1 && errno == EBADF);
    }
    // Who looks what is open finds nothing that he has not opened.
    for (int fd = 3; fd < 8192; fd++) {
        struct stat stat;
        EXPECT(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
        EXPECT(fstat(fd, &stat) == -1 && errno == EBADF);
        EXPECT(syscall(SYS_fstat, fd, &stat) == -1 && errno == EBADF);
        EXPECT(syscall(SYS_dup, fd) == -1 && errno == EBADF);
    }
    int fd = open("/dev/null", O_RDONLY);
    EXPECT(fd == 3 && close(fd) == 0);
    errno = 0;
    EXPECT(close(fd) == -1 && errno == EBADF);
    EXPECT(syscall(SYS_close_range, 10u, 9u, 0u) == -1 && errno == EINVAL);
    rewrite();
}

static void *filtered_thread(void *unused) {
    (void)unused;
    struct sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {1, code};
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    rewrite();
    return NULL;
}

static void filter(void) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, filtered_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static volatile uint64_t checked;
static volatile int *volatile nowhere;

// Nothing of the C library is called from here on: natively such a thread may read, write, return from handlers and end.
static void confined_work(void) {
    uint64_t last = version;
    version++;
    for (uint64_t page = 0; page < pages; page++) {
        if (ballast[page * WORDS] != page * last + 1) {
            syscall(SYS_exit, 1);
        }
        ballast[page * WORDS] = page * version + 1;
        checked++;
    }
    // From memory that is out to memory that is out.
    int ends[2] = {((int *)ballast)[2], ((int *)ballast)[3]};
    for (uint64_t page = 1; page + 64 < pages; page += 61) {
        if (syscall(SYS_write, ends[1], (void *)(ballast + page * WORDS), 8) != 8 ||
            syscall(SYS_read, ends[0], (void *)(ballast + (page + 37) * WORDS + 1), 8) != 8 ||
            ballast[(page + 37) * WORDS + 1] != page * version + 1) {
            syscall(SYS_exit, 2);
        }
    }
}

static void on_nothing(int signal) {
    (void)signal;
}

static void confine(int in_mode) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    EXPECT(prctl(PR_SET_SECCOMP, in_mode, &program) == 0);
}

static void *confined_thread(void *mode) {
    confine((int)(intptr_t)mode);
    confined_work();
    syscall(SYS_exit, 0);
    return NULL;
}

static void confined(int mode) {
    int ends[2];
    EXPECT(pipe(ends) == 0);
    ((volatile int *)ballast)[2] = ends[0];
    ((volatile int *)ballast)[3] = ends[1];
    pthread_t thread;
    checked = 0;
    EXPECT(pthread_create(&thread, NULL, confined_thread, (void *)(intptr_t)mode) == 0 && pthread_join(thread, NULL) == 0);
    EXPECT(checked == pages);
    pid_t pid = fork();
    if (pid == 0) {
        confine(mode);
        confined_work();
        syscall(SYS_exit, 0);
    }
    int status;
    EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
    // A fault of its own ends it as one, also where its handler would have no stack.
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        pid = fork();
        if (pid == 0) {
            if (is_lost) {
                signal(SIGSEGV, on_nothing);
            }
            confine(mode);
            if (is_lost) {
                __asm__ volatile("mov $64, %%rsp\n\tpush %%rax" ::: "memory");
            }
            *nowhere = 1;
            syscall(SYS_exit, 0);
        }
        EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
        EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
}

// Where the kernel ends whoever makes any call but four.
static void strict(void) {
    confined(SECCOMP_MODE_STRICT);
}

static void narrow_filter(void) {
    confined(SECCOMP_MODE_FILTER);
}

static long install(unsigned denied, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    long answer;
    // An instruction of its own: nothing of the C library is seen.
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "0"((long)SYS_seccomp), "D"((long)SECCOMP_SET_MODE_FILTER), "S"((long)flags), "d"(&program)
                     : "rcx", "r11", "memory");
    return answer;
}

static void refused(void) {
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    // A line for the person is nothing that this thread may end at.
    EXPECT(install(SYS_ppoll, 0) == 0);
    EXPECT(install(SYS_rt_sigreturn, 0) == -EINVAL);
    EXPECT(install(SYS_madvise, SECCOMP_FILTER_FLAG_TSYNC) > 0);
    EXPECT(install(SYS_madvise, SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH) == -ESRCH);
    EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT);
    rewrite();
    // A thread needs more than what is left, and its maker goes on.
    EXPECT(install(SYS_sigaltstack, 0) == 0);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, filtered_thread, NULL) == EPERM);
    rewrite();
}

static sigjmp_buf back;
static void *volatile fault_address;

static void on_bus(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    fault_address = info->si_addr;
    siglongjmp(back, 1);
}

// A fault of the program's own stays one.
static void own_fault(void) {
    char name[] = "faults-XXXXXX";
    int fd = mkstemp(name);
    EXPECT(fd >= 0 && unlink(name) == 0 && ftruncate(fd, 2 * PAGE) == 0);
    volatile char *mapped = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(mapped != MAP_FAILED && mapped[PAGE] == 0 && ftruncate(fd, PAGE) == 0);
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO}, before;
    EXPECT(sigaction(SIGBUS, &action, &before) == 0);
    for (int round = 0; round < 3; round++) {
        rewrite();
        fault_address = NULL;
        if (sigsetjmp(back, 1) == 0) {
            mapped[PAGE + 8] = 1;
            EXPECT(!"written beyond the end of a file");
        }
        EXPECT(fault_address == mapped + PAGE + 8);
    }
    EXPECT(sigaction(SIGBUS, &before, NULL) == 0 && munmap((void *)mapped, 2 * PAGE) == 0 && close(fd) == 0);
}

static volatile pid_t child;
static volatile int is_over;

static void *killer_thread(void *unused) {
    (void)unused;
    unsigned seed = 1;
    while (!is_over) {
        struct timespec pause = {0, 200000 + rand_r(&seed) % 3000000};
        nanosleep(&pause, NULL);
        pid_t victim = __atomic_exchange_n(&child, 0, __ATOMIC_SEQ_CST);
        if (victim > 0) {
            kill(victim, SIGKILL);
        }
    }
    return NULL;
}

// A child in its parent's memory is killed wherever it is: its parent goes on.
static void killed_children(void) {
    pthread_t killer;
    EXPECT(pthread_create(&killer, NULL, killer_thread, NULL) == 0);
    for (int round = 0; round < 40; round++) {
        pid_t pid = vfork();
        if (pid == 0) {
            child = (pid_t)syscall(SYS_getpid);
            for (uint64_t page = 0;; page = (page + 97) % pages) {
                if (ballast[page * WORDS] != page * version + 1) {
                    _exit(1);
                }
            }
        }
        int status;
        EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
        EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    is_over = 1;
    EXPECT(pthread_join(killer, NULL) == 0);
}

static void file_size(void) {
    struct rlimit before, little;
    EXPECT(getrlimit(RLIMIT_FSIZE, &before) == 0);
    little = before;
    little.rlim_cur = 1 << 20;
    EXPECT(setrlimit(RLIMIT_FSIZE, &little) == 0);
    rewrite();
    rewrite();
    EXPECT(setrlimit(RLIMIT_FSIZE, &before) == 0);
}

// What a thread has begun for its faults interrupts none of its calls.
static void no_interruptions(void) {
    int poller = epoll_create1(EPOLL_CLOEXEC);
    EXPECT(poller >= 0);
    uint64_t page = 0;
    version++;
    while (page < pages) {
        for (int i = 0; i < 16 && page < pages; i++, page++) {
            ballast[page * WORDS] = page * version + 1;
        }
        struct epoll_event event;
        EXPECT(epoll_wait(poller, &event, 1, 1) == 0);
    }
    EXPECT(close(poller) == 0);
}

static void run(const char *name, void (*body)(void)) {
    case_name = name;
    rewrite();
    body();
    check();
    printf("%s ok\n", name);
    fflush(stdout);
}

int main(int argc, char **argv) {
    EXPECT(argc == 2 || argc == 3);
    pages = strtoull(argv[1], NULL, 10) << 8;
    ballast = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(ballast != MAP_FAILED);
    for (uint64_t page = 0; page < pages; page++) {
        ballast[page * WORDS] = 1;
    }
    if (argc == 3) {
        run("refused", refused);
        return 0;
    }
    run("own_fault", own_fault);
    run("no_interruptions", no_interruptions);
    run("filter", filter);
    run("strict", strict);
    run("narrow_filter", narrow_filter);
    run("killed_children", killed_children);
    run("descriptors", descriptors);
    run("file_size", file_size);
    check();
    return 0;
}
