// signals: handlers, masks, alternate stacks and stacks of coroutines, with the memory that they lie in paged out.
//
//   signals MIB
//
// Before each case a ballast of MIB MiB is rewritten, so that under a budget well below it everything the case has prepared is out.
// Prints one line per case; a case that fails ends the program with 1.
#include "expect.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 64 * PAGE };

static uint64_t *ballast;
static uint64_t ballast_words;
static uint64_t version = 1;
static char *stack_memory;

static void page_out(void) {
    version++;
    for (uint64_t i = 0; i < ballast_words; i += 64) {
        ballast[i] = i * version;
    }
}

static void ballast_check(void) {
    for (uint64_t i = 0; i < ballast_words; i += 64) {
        EXPECT(ballast[i] == i * version);
    }
}

static void on(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    EXPECT(sigaction(number, &action, NULL) == 0);
}

static void off(int number) {
    EXPECT(signal(number, SIG_DFL) != SIG_ERR);
}

static volatile sig_atomic_t count, second_count, seen_value, was_on_stack;

static void counts(int number, siginfo_t *info, void *context) {
    char here;
    (void)number;
    (void)context;
    count++;
    seen_value = info->si_value.sival_int;
    was_on_stack = &here > stack_memory && &here < stack_memory + STACK;
}

static void case_alternate_stack(void) {
    stack_t stack = {.ss_sp = stack_memory, .ss_size = STACK}, now;
    EXPECT(sigaltstack(&stack, NULL) == 0);
    EXPECT(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack_memory && now.ss_size == STACK && now.ss_flags == 0);
    on(SIGUSR1, counts, SA_ONSTACK);
    for (int i = 0; i < 3; i++) {
        page_out();
        count = 0;
        EXPECT(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 77 + i}) == 0);
        EXPECT(count == 1 && seen_value == 77 + i && was_on_stack);
    }
    on(SIGUSR1, counts, 0);
    EXPECT(raise(SIGUSR1) == 0 && count == 2 && !was_on_stack);
    // What is refused tells nothing of before.
    now.ss_size = 5;
    stack = (stack_t){.ss_sp = stack_memory, .ss_size = 100};
    EXPECT(sigaltstack(&stack, &now) == -1 && errno == ENOMEM && now.ss_size == 5);
    stack = (stack_t){.ss_sp = stack_memory, .ss_size = STACK, .ss_flags = 77};
    EXPECT(sigaltstack(&stack, &now) == -1 && errno == EINVAL && now.ss_size == 5);
    stack = (stack_t){.ss_flags = SS_DISABLE};
    EXPECT(sigaltstack(&stack, &now) == 0 && now.ss_sp == stack_memory);
    off(SIGUSR1);
}

// SA_EXPOSE_TAGBITS and SA_UNSUPPORTED: the kernel takes the flags that it knows.
static void case_unknown_flags(void) {
    for (int number = 1; number < 64; number++) {
        struct sigaction action = {.sa_handler = SIG_IGN, .sa_flags = 0xc00 | SA_RESTART}, before;
        if (number != SIGKILL && number != SIGSTOP && number != 32 && number != 33) {
            EXPECT(sigaction(number, NULL, &before) == 0);
            EXPECT(sigaction(number, &action, NULL) == 0 && sigaction(number, &before, &action) == 0);
            EXPECT((action.sa_flags & 0xc00) == 0x800 && action.sa_flags & SA_RESTART);
        }
    }
}

static sigjmp_buf back;
// Nothing is mapped there; the compiler is not to know.
static char *volatile nowhere = (char *)16;
static volatile char *guarded;

static void jumps(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    count += info->si_addr == nowhere;
    siglongjmp(back, 1);
}

static void opens(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    count += info->si_addr == (void *)(guarded + 100);
    EXPECT(mprotect((void *)guarded, PAGE, PROT_READ | PROT_WRITE) == 0);
}

static void case_own_faults(void) {
    on(SIGSEGV, jumps, 0);
    count = 0;
    for (int i = 0; i < 3; i++) {
        page_out();
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)nowhere = 1;
            EXPECT(0);
        }
    }
    EXPECT(count == 3);
    guarded = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    on(SIGSEGV, opens, SA_ONSTACK);
    page_out();
    guarded[100] = 5;
    EXPECT(count == 4 && guarded[100] == 5);
    int fd = memfd_create("empty", 0);
    char *beyond = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    on(SIGBUS, jumps, 0);
    volatile int jumped = sigsetjmp(back, 1);
    if (!jumped) {
        EXPECT(*(volatile char *)beyond == 0);
        EXPECT(0);
    }
    EXPECT(write(fd, nowhere, 10) == -1 && errno == EFAULT);
    EXPECT(write(fd, beyond, 10) == -1 && errno == EFAULT);
    close(fd);
    off(SIGSEGV);
    off(SIGBUS);
}

static void case_masks(void) {
    sigset_t all, before, now;
    sigfillset(&all);
    on(SIGSYS, counts, 0);
    on(SIGUSR1, counts, 0);
    count = 0;
    EXPECT(sigprocmask(SIG_SETMASK, &all, &before) == 0);
    page_out();
    EXPECT(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
    EXPECT(sigismember(&now, SIGSYS) && sigismember(&now, SIGSEGV) && sigismember(&now, SIGBUS) && sigismember(&now, SIGUSR1));
    EXPECT(raise(SIGSYS) == 0 && raise(SIGUSR1) == 0 && count == 0);
    page_out();
    EXPECT(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    EXPECT(count == 2);
    EXPECT(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && !sigismember(&now, SIGSYS) && !sigismember(&now, SIGUSR1));
    off(SIGSYS);
    off(SIGUSR1);
}

static volatile sig_atomic_t kicker_stops, alarms;

// Again and again: a kick that comes between two calls interrupts neither.
static void *kicks(void *arg) {
    while (!kicker_stops) {
        usleep(20000);
        pthread_kill(*(pthread_t *)arg, SIGUSR1);
    }
    return NULL;
}

static void alarmed(int number) {
    (void)number;
    alarms++;
}

static void case_interrupted_calls(void) {
    int ends[2];
    pthread_t self = pthread_self(), kicker;
    char *byte = stack_memory;
    EXPECT(pipe(ends) == 0);
    on(SIGUSR1, counts, 0);
    count = 0;
    page_out();
    EXPECT(pthread_create(&kicker, NULL, kicks, &self) == 0);
    for (int i = 0; i < 3; i++) {
        EXPECT(read(ends[0], byte, 1) == -1 && errno == EINTR && count > i);
    }
    on(SIGUSR1, counts, SA_RESTART);
    struct itimerval often = {.it_value = {.tv_usec = 200000}, .it_interval = {.tv_usec = 200000}}, never = {0};
    struct sigaction action = {.sa_handler = alarmed};
    EXPECT(sigaction(SIGALRM, &action, NULL) == 0);
    page_out();
    alarms = 0;
    count = 0;
    EXPECT(setitimer(ITIMER_REAL, &often, NULL) == 0);
    // Restarted after each kick; an alarm ends it.
    EXPECT(read(ends[0], byte, 1) == -1 && errno == EINTR && alarms > 0 && count > 0);
    kicker_stops = 1;
    EXPECT(pthread_join(kicker, NULL) == 0);
    struct timespec minute = {.tv_sec = 60}, left;
    EXPECT(nanosleep(&minute, &left) == -1 && errno == EINTR && left.tv_sec > 30);
    EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
    close(ends[0]);
    close(ends[1]);
    off(SIGUSR1);
    off(SIGALRM);
}

static void case_waiting_with_masks(void) {
    sigset_t usr, none, before;
    sigemptyset(&usr);
    sigemptyset(&none);
    sigaddset(&usr, SIGUSR1);
    on(SIGUSR1, counts, 0);
    EXPECT(sigprocmask(SIG_BLOCK, &usr, &before) == 0);
    count = 0;
    raise(SIGUSR1);
    page_out();
    EXPECT(sigsuspend(&none) == -1 && errno == EINTR && count == 1);
    raise(SIGUSR1);
    struct timespec second = {.tv_sec = 1};
    EXPECT(ppoll(NULL, 0, &second, &none) == -1 && errno == EINTR && count == 2);
    raise(SIGUSR1);
    siginfo_t *info = (siginfo_t *)(stack_memory + 5 * PAGE - 20);
    page_out();
    EXPECT(sigwaitinfo(&usr, info) == SIGUSR1 && info->si_pid == getpid() && count == 2);
    EXPECT(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    off(SIGUSR1);
}

static void nests(int number, siginfo_t *info, void *context) {
    (void)info;
    (void)context;
    (void)number;
    if (count++ < 5) {
        raise(SIGUSR1);
        second_count += count >= 6;
    }
}

static void case_nested_and_once(void) {
    on(SIGUSR1, nests, SA_NODEFER);
    count = second_count = 0;
    page_out();
    EXPECT(raise(SIGUSR1) == 0 && count == 6 && second_count == 5);
    on(SIGUSR1, counts, SA_RESETHAND);
    struct sigaction now;
    EXPECT(raise(SIGUSR1) == 0 && sigaction(SIGUSR1, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
}

static ucontext_t main_context, contexts[2];
static volatile uint64_t steps;

static void coroutine(int which) {
    volatile double sum = which;
    for (int i = 0; i < 200; i++) {
        char room[2 * PAGE];
        memset(room, which, sizeof room);
        sum += i * 0.5;
        steps++;
        EXPECT(swapcontext(&contexts[which], &main_context) == 0);
        EXPECT(room[PAGE] == which);
    }
    EXPECT(sum == which + 199 * 200 / 2 * 0.5);
}

static void case_coroutines(void) {
    struct itimerval often = {.it_value = {.tv_usec = 500}, .it_interval = {.tv_usec = 500}}, never = {0};
    for (int i = 0; i < 2; i++) {
        EXPECT(getcontext(&contexts[i]) == 0);
        contexts[i].uc_stack.ss_sp = stack_memory + i * STACK / 2;
        contexts[i].uc_stack.ss_size = STACK / 2;
        contexts[i].uc_link = &main_context;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    on(SIGALRM, counts, SA_RESTART);
    count = 0;
    steps = 0;
    EXPECT(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 2 * 201; i++) {
        if (i % 100 == 50) {
            page_out();
        }
        EXPECT(swapcontext(&main_context, &contexts[i % 2]) == 0);
    }
    while (count == 0) {
    }
    EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
    EXPECT(steps == 400);
    off(SIGALRM);
}

static void *echoes(void *arg) {
    int *ends = arg;
    char buffer[777];
    ssize_t got;
    while ((got = read(ends[0], buffer, sizeof buffer)) > 0) {
        for (ssize_t done = 0; done < got;) {
            ssize_t put = write(ends[1], buffer + done, got - done);
            EXPECT(put > 0);
            done += put;
        }
    }
    close(ends[1]);
    return NULL;
}

static void *feeds(void *arg) {
    int fd = *(int *)arg;
    for (uint64_t i = 0; i < 64 * PAGE / 8; i++) {
        EXPECT(write(fd, &i, 8) == 8);
    }
    close(fd);
    return NULL;
}

static void case_storm(void) {
    struct itimerval often = {.it_value = {.tv_usec = 300}, .it_interval = {.tv_usec = 300}}, never = {0};
    int there[2], home[2];
    pthread_t echo, feeder;
    EXPECT(pipe(there) == 0 && pipe(home) == 0);
    int ends[2] = {there[0], home[1]};
    on(SIGALRM, counts, SA_RESTART);
    count = 0;
    EXPECT(setitimer(ITIMER_REAL, &often, NULL) == 0);
    EXPECT(pthread_create(&echo, NULL, echoes, ends) == 0 && pthread_create(&feeder, NULL, feeds, &there[1]) == 0);
    page_out();
    size_t got = 0;
    for (ssize_t bytes; (bytes = read(home[0], stack_memory + got, STACK - got)) > 0; got += bytes) {
    }
    while (count == 0) {
    }
    EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
    EXPECT(got == 64 * PAGE);
    for (uint64_t i = 0; i < got / 8; i++) {
        EXPECT(((uint64_t *)stack_memory)[i] == i);
    }
    EXPECT(pthread_join(echo, NULL) == 0 && pthread_join(feeder, NULL) == 0);
    close(there[0]);
    close(home[0]);
    off(SIGALRM);
}

static void *sleeps(void *arg) {
    char byte;
    (void)arg;
    return read(*(int *)arg, &byte, 1) == 0 ? NULL : arg;
}

static void case_cancelled(void) {
    int ends[2];
    pthread_t sleeper;
    void *answer;
    EXPECT(pipe(ends) == 0);
    EXPECT(pthread_create(&sleeper, NULL, sleeps, ends) == 0);
    page_out();
    EXPECT(pthread_cancel(sleeper) == 0 && pthread_join(sleeper, &answer) == 0 && answer == PTHREAD_CANCELED);
    close(ends[0]);
    close(ends[1]);
}

static void *waits_for_bus(void *told) {
    sigset_t *set = (sigset_t *)stack_memory;
    siginfo_t info;
    sigemptyset(set);
    sigaddset(set, SIGBUS);
    *(int *)told = sigwaitinfo(set, &info) == SIGBUS && info.si_pid == getpid();
    return NULL;
}

// Signals that mean faults, but are sent: they wait as others do, for whoever asks for them.
static void case_waited_for(void) {
    sigset_t *set = (sigset_t *)stack_memory, *pending = (sigset_t *)(stack_memory + PAGE), none;
    siginfo_t *info = (siginfo_t *)(stack_memory + 2 * PAGE);
    struct timespec *now = (struct timespec *)(stack_memory + 3 * PAGE);
    sigemptyset(&none);
    sigemptyset(set);
    sigaddset(set, SIGSEGV);
    sigaddset(set, SIGBUS);
    sigaddset(set, SIGSYS);
    *now = (struct timespec){0};
    EXPECT(pthread_sigmask(SIG_BLOCK, set, NULL) == 0);
    EXPECT(kill(getpid(), SIGSEGV) == 0 && kill(getpid(), SIGSYS) == 0 && kill(getpid(), SIGSEGV) == 0);
    page_out();
    EXPECT(sigpending(pending) == 0);
    EXPECT(sigismember(pending, SIGSEGV) && sigismember(pending, SIGSYS) && !sigismember(pending, SIGBUS));
    for (int i = 0, seen = 0; i < 2; i++) {
        page_out();
        int number = sigtimedwait(set, info, now);
        EXPECT((number == SIGSEGV || number == SIGSYS) && info->si_signo == number && info->si_pid == getpid());
        EXPECT(number != seen);
        seen = number;
    }
    EXPECT(sigtimedwait(set, info, now) == -1 && errno == EAGAIN);
    pthread_t thread;
    int told = 0;
    EXPECT(pthread_create(&thread, NULL, waits_for_bus, &told) == 0);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    EXPECT(kill(getpid(), SIGBUS) == 0);
    EXPECT(pthread_join(thread, NULL) == 0 && told);
    on(SIGSEGV, counts, 0);
    count = 0;
    EXPECT(kill(getpid(), SIGSEGV) == 0 && count == 0);
    page_out();
    EXPECT(pthread_sigmask(SIG_SETMASK, &none, NULL) == 0 && count == 1);
    off(SIGSEGV);
}

static void answers(int number, siginfo_t *info, void *context) {
    ucontext_t *registers = context;
    void *behind = (void *)(uintptr_t)registers->uc_mcontext.gregs[REG_RIP];
    int is_right = number == SIGSYS && info->si_syscall == SYS_getppid && info->si_call_addr == behind;
    registers->uc_mcontext.gregs[REG_RAX] = is_right ? 4242 : -1;
}

// A filter of the program's own that hands calls to its handler, as sandboxes do.
static void *filters(void *unused) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    page_out();
    EXPECT(syscall(SYS_getppid) == 4242);
    EXPECT(getppid() == 4242);
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "0"(SYS_getppid) : "rcx", "r11", "memory");
    EXPECT(answer == 4242);
    return unused;
}

static void case_filtered(void) {
    pthread_t thread;
    on(SIGSYS, answers, 0);
    EXPECT(pthread_create(&thread, NULL, filters, NULL) == 0 && pthread_join(thread, NULL) == 0);
    off(SIGSYS);
}

static void case_spawned(void) {
    char **argv = (char **)(stack_memory + 8 * PAGE), **envp = argv + PAGE / 8;
    argv[0] = strcpy(stack_memory + 10 * PAGE, "sh");
    argv[1] = strcpy(stack_memory + 12 * PAGE, "-c");
    argv[2] = strcpy(stack_memory + 14 * PAGE, "test \"$MARK\" = right && exit 7");
    argv[3] = NULL;
    envp[0] = strcpy(stack_memory + 16 * PAGE, "MARK=right");
    envp[1] = NULL;
    posix_spawnattr_t attributes;
    sigset_t usr;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    on(SIGUSR1, counts, 0);
    EXPECT(posix_spawnattr_init(&attributes) == 0 && posix_spawnattr_setsigmask(&attributes, &usr) == 0);
    EXPECT(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) == 0);
    for (int i = 0; i < 2; i++) {
        pid_t child;
        page_out();
        if (i == 0) {
            EXPECT(posix_spawn(&child, "/bin/sh", NULL, &attributes, argv, envp) == 0);
        } else {
            child = vfork();
            if (child == 0) {
                signal(SIGUSR1, SIG_IGN);
                execve("/bin/sh", argv, envp);
                _exit(1);
            }
        }
        int *status = (int *)(stack_memory + 20 * PAGE);
        page_out();
        EXPECT(waitpid(child, status, 0) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 7);
    }
    count = 0;
    EXPECT(raise(SIGUSR1) == 0 && count == 1);
    off(SIGUSR1);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"alternate_stack", case_alternate_stack},
    {"unknown_flags", case_unknown_flags},
    {"own_faults", case_own_faults},
    {"masks", case_masks},
    {"interrupted_calls", case_interrupted_calls},
    {"waiting_with_masks", case_waiting_with_masks},
    {"nested_and_once", case_nested_and_once},
    {"coroutines", case_coroutines},
    {"storm", case_storm},
    {"cancelled", case_cancelled},
    {"waited_for", case_waited_for},
    {"filtered", case_filtered},
    {"spawned", case_spawned},
};

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: signals MIB\n");
        return 2;
    }
    ballast_words = strtoull(argv[1], NULL, 10) << 17;
    ballast = mmap(NULL, ballast_words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_memory = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(ballast != MAP_FAILED && stack_memory != MAP_FAILED);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        case_name = cases[i].name;
        cases[i].run();
        ballast_check();
        printf("%s: right\n", case_name);
        fflush(stdout);
    }
    return 0;
}
