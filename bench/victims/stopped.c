// stopped: what the kernel takes to stop a system call (Syscall User Dispatch) and to go on behind it, with a handler that does nothing.
//
// Prints the least nanoseconds of a call over many rounds: "native", "stopped", and "made" by the handler after it was stopped.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { ROUNDS = 1500, CALLS = 100, RESTORER = 0x04000000, USER_DISPATCH = 59 };

static volatile char selector;
static volatile int is_made;
static char stack[65536] __attribute__((aligned(64)));
extern char gate_from[], gate_to[];

// The way back, whose call no switch stops.
__attribute__((naked, used)) static void restorer(void) {
    __asm__("gate_from:\n mov $15, %eax\n syscall\n gate_to:\n ud2");
}

struct action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

static void on_call(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    selector = 0;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = is_made ? syscall(SYS_getppid) : 1;
    selector = 1;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t price(void) {
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = now();
        for (int i = 0; i < CALLS; i++) {
            long answer = SYS_getppid;
            __asm__ volatile("syscall" : "+a"(answer) : : "rcx", "r11", "memory");
        }
        uint64_t took = (now() - begin) / CALLS;
        least = took < least ? took : least;
    }
    return least;
}

int main(void) {
    printf("native %lu\n", (unsigned long)price());
    stack_t place = {.ss_sp = stack, .ss_size = sizeof stack};
    struct action action = {on_call, SA_SIGINFO | SA_ONSTACK | SA_NODEFER | RESTORER, restorer, 0};
    if (sigaltstack(&place, NULL) || syscall(SYS_rt_sigaction, SIGSYS, &action, NULL, 8) ||
        prctl(USER_DISPATCH, 1, gate_from, gate_to - gate_from + 1, &selector)) {
        perror("stopped");
        return 1;
    }
    selector = 1;
    uint64_t stopped = price();
    is_made = 1;
    uint64_t made = price();
    selector = 0;
    printf("stopped %lu\nmade %lu\n", (unsigned long)stopped, (unsigned long)made);
    return 0;
}
