// session: what programs do to the session that pages for them: forks, namespaces, credentials, filters, many processes.
//
//   session MODE MIB [ARGUMENT]
//
// Prints "ready" once MIB MiB of memory are filled, and "ok" at its end if every byte was right (exit status 0; a wrong byte: 1;
// a mode that could not do its part: 2).
//   forks N       N times: a child checks and rewrites, then the parent does
//   nested N      a chain of N generations, each forked by the one before
//   orphan        a child of a child, which has ended, checks when the first has rewritten everything
//   bereft        a child ends (SIGKILL) when it has forked and the supervisor, which is stopped, has yet to hear of it
//   crowd N       N children at once, each with a page of its own, then all end
//   hidden        all memory is MADV_DONTFORK, then a child works on memory of its own
//   hole          a part is MADV_DONTFORK, and a child maps memory of its own there
//   raw N         N times: a child of a raw clone unmaps, discards and checks at once
//   private N     its user may not look into it (PR_SET_DUMPABLE): N times, it forks a child that forks; it is asked whether that still holds
//   cleared N     N times: a child of clone3 has no handler of a signal (CLONE_CLEAR_SIGHAND), works and forks
//   untold N      N times: a child of which no fork handler is told forks itself
//   copied N      N copies, by syscall(2) and by an instruction of its own, of which no fork handler is told, rewrite for 0.6 s
//   copied-early N    the same, after another copy has been made before there is any memory: it fills its own
//   handler N     N forks, interrupted by a timer whose handler forks, too
//   stopped       a child is stopped at birth for 3 s, while the parent goes on to fork
//   both N        parent and children are stopped and continued by a third process while they fork for N seconds
//   taken         has a ring of io_uring open that another process of its own has made before there was any memory, and forks
//   network       its network namespace is left, then it works and forks
//   user          its user namespace is left before its memory is filled
//   reused        standard error is closed, and a file of its own has its number, while it does what is told of there
//   drop          user and group become nobody's, then it works, forks and executes itself
//   unrooted      root with threads gives up root as a whole: no thread is root's or has a capability, in a child neither
//   filter        every new socket and all memory that may be executed is denied, with an argument in all threads, then it works, in a new thread, too, and forks
//   strict        threads, too, are killed by any call that work() and fork() do not make; with an argument the filter is at first one
//                 of this thread alone, and another one is to be for all
//   bare          executes itself with an empty environment
//   idle          waits until it is told to end (SIGTERM), then checks
//   rested MIB    sleeps for 2 s, then fills MIB MiB that malloc has mapped, 256 KiB in a millisecond of CPU time, and checks
//   family N      with N children, of which the first only waits; the others and the parent work until it is told to end (SIGTERM)
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
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

static void work_in_child(const char *what) {
    pid_t child = fork();
    if (child < 0) {
        give_up("fork");
    }
    if (child == 0) {
        work();
        _exit(0);
    }
    work();
    expect_good_end(child, what);
}

static void nested(int generations) {
    for (int i = 0; i < generations; i++) {
        pid_t child = fork();
        if (child < 0) {
            give_up("fork");
        }
        if (child != 0) {
            expect_good_end(child, "a generation");
            if (i > 0) {
                _exit(0);
            }
            check();
            return;
        }
        memory[(uint64_t)i * 7 % pages * WORDS] ^= 1;
        memory[(uint64_t)i * 7 % pages * WORDS] ^= 1;
    }
    work();
    _exit(0);
}

static void orphan(int argument) {
    (void)argument;
    int gate[2], result[2];
    char byte = 0;
    if (pipe(gate) || pipe(result)) {
        give_up("pipe");
    }
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild != 0) {
            _exit(grandchild < 0 ? 2 : 0);
        }
        close(gate[1]);
        while (read(gate[0], &byte, 1) < 0 && errno == EINTR) {
        }
        check();
        _exit(write(result[1], &byte, 1) == 1 ? 0 : 2);
    }
    expect_good_end(child, "the child between");
    work();
    work();
    close(gate[1]);
    close(result[1]);
    if (read(result[0], &byte, 1) != 1) {
        give_up("the orphan did not end well");
    }
}

static pid_t child_of(pid_t parent) {
    char path[64], text[32];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", parent, parent);
    int file = open(path, O_RDONLY);
    ssize_t got = file < 0 ? 0 : read(file, text, sizeof text - 1);
    close(file);
    text[got > 0 ? got : 0] = 0;
    return atoi(text);
}

static void bereft(int argument) {
    (void)argument;
    const pid_t supervisor = getppid();
    const pid_t child = fork();
    if (child == 0) {
        work();
        if (kill(supervisor, SIGSTOP)) {
            give_up("kill");
        }
        // Neither goes on: the grandchild waits for its agent, and its parent for that to take over.
        fork();
        _exit(7);
    }
    while (child_of(child) == 0) {
        usleep(10000);
    }
    // So that it waits for certain.
    usleep(300000);
    int status;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    kill(supervisor, SIGCONT);
    if (!WIFSIGNALED(status)) {
        give_up("the child did not wait");
    }
    work();
}

static void crowd(int count) {
    int gate[2];
    if (pipe(gate)) {
        give_up("pipe");
    }
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) {
            give_up("fork");
        }
        if (child == 0) {
            char end;
            close(gate[1]);
            memory[0] ^= 1;
            _exit(read(gate[0], &end, 1) == 0 ? 0 : 3);
        }
    }
    close(gate[1]);
    for (int i = 0; i < count; i++) {
        int status;
        if (wait(&status) < 0 || status != 0) {
            give_up("one of the crowd");
        }
    }
    work();
}

static void hidden(int argument) {
    (void)argument;
    if (madvise(memory, pages * PAGE, MADV_DONTFORK)) {
        give_up("madvise");
    }
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            rewrite();
            work();
            _exit(0);
        }
        work();
        expect_good_end(child, "a child without the memory");
    }
}

static void hole(int argument) {
    (void)argument;
    uint64_t *middle = memory + pages / 4 * WORDS;
    uint64_t length = pages / 2 * PAGE;
    if (madvise(middle, length, MADV_DONTFORK)) {
        give_up("madvise");
    }
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            if (mmap(middle, length, PROT_READ | PROT_WRITE, flags, -1, 0) != middle) {
                give_up("mmap into the hole");
            }
            for (uint64_t i = 0; i < length / 8; i++) {
                if (middle[i] != 0) {
                    dprintf(2, "session: WRONG: fresh memory is not zero\n");
                    _exit(1);
                }
            }
            rewrite();
            work();
            _exit(0);
        }
        work();
        expect_good_end(child, "a child with a hole");
    }
}

static void raw(int count) {
    for (int i = 0; i < count; i++) {
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child < 0) {
            give_up("clone");
        }
        if (child == 0) {
            uint64_t *end = memory + (pages - 64) * WORDS;
            if (syscall(SYS_munmap, end, 32 * PAGE) || syscall(SYS_madvise, end + 32 * WORDS, 32 * PAGE, MADV_DONTNEED)) {
                _exit(4);
            }
            for (uint64_t i = 0; i < 32 * WORDS; i++) {
                if (end[32 * WORDS + i] != 0) {
                    _exit(5);
                }
            }
            pages -= 64;
            check();
            _exit(0);
        }
        work();
        expect_good_end(child, "a raw child");
    }
}

static void untold(int count) {
    for (int i = 0; i < count; i++) {
        pid_t child = i % 2 ? _Fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child < 0) {
            give_up("an untold fork");
        }
        if (child == 0) {
            work_in_child("a child of an untold one");
            _exit(0);
        }
        work();
        expect_good_end(child, "an untold child");
    }
}

static pid_t copy(int is_own_instruction) {
#ifdef __x86_64__
    if (is_own_instruction) {
        long answer;
        register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
        __asm__ volatile("syscall" : "=a"(answer) : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
        return (pid_t)answer;
    }
#endif
    (void)is_own_instruction;
    return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static void copied(int count) {
    for (int i = 0; i < count; i++) {
        pid_t child = copy(i % 2);
        if (child < 0) {
            give_up("a copy");
        }
        for (int round = 0; round < (child ? 1 : 6); round++) {
            work();
            usleep(100000);
        }
        check();
        if (child == 0) {
            _exit(0);
        }
        expect_good_end(child, "a copy");
    }
}

static void expect_private(void) {
    if (prctl(PR_GET_DUMPABLE) != 0) {
        give_up("its user may look into it");
    }
}

static void private(int count) {
    if (prctl(PR_SET_DUMPABLE, 0)) {
        give_up("prctl");
    }
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            expect_private();
            work_in_child("a child of what is private");
            expect_private();
            _exit(0);
        }
        expect_private();
        work();
        expect_good_end(child, "a private child");
    }
}

static void is_not_called(int number) {
    (void)number;
}

static void cleared(int count) {
    signal(SIGUSR1, is_not_called);
    signal(SIGSEGV, is_not_called);
    signal(SIGUSR2, SIG_IGN);
    for (int i = 0; i < count; i++) {
        struct clone_args new = {.flags = CLONE_CLEAR_SIGHAND, .exit_signal = SIGCHLD};
        pid_t child = (pid_t)syscall(SYS_clone3, &new, sizeof new);
        if (child < 0) {
            give_up("clone3");
        }
        if (child == 0) {
            const int numbers[] = {SIGUSR1, SIGSEGV, SIGSYS, SIGUSR2};
            for (int k = 0; k < 4; k++) {
                struct sigaction now;
                sigaction(numbers[k], NULL, &now);
                if (now.sa_handler != (numbers[k] == SIGUSR2 ? SIG_IGN : SIG_DFL)) {
                    give_up("a signal has a handler");
                }
            }
            work_in_child("a child of what has no handlers");
            _exit(0);
        }
        work();
        expect_good_end(child, "a child without handlers");
    }
}

static void on_timer(int number) {
    (void)number;
    int saved = errno;
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    if (child > 0) {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    errno = saved;
}

static void handler(int count) {
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval soon = {{0, 0}, {0, 300}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    for (int i = 0; i < count; i++) {
        setitimer(ITIMER_REAL, &soon, NULL);
        pid_t child = fork();
        setitimer(ITIMER_REAL, &never, NULL);
        if (child == 0) {
            check();
            _exit(0);
        }
        work();
        expect_good_end(child, "a child of a fork that was interrupted");
    }
}

// The children of this process, as the kernel lists them, sent a signal as soon as they are there.
static void signal_children(pid_t pid, int number, pid_t but) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    close(fd);
    text[length < 0 ? 0 : length] = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        if (atoi(word) != but) {
            kill(atoi(word), number);
        }
    }
}

static void nap(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static pid_t start_helper(void (*run)(pid_t parent, int argument), int argument) {
    pid_t parent = getpid();
    pid_t helper = fork();
    if (helper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(parent, argument);
        _exit(0);
    }
    return helper;
}

static void stop_at_birth(pid_t parent, int argument) {
    (void)argument;
    for (time_t end = time(NULL) + 1; time(NULL) <= end;) {
        signal_children(parent, SIGSTOP, getpid());
    }
    nap(3000);
    signal_children(parent, SIGCONT, getpid());
}

static void stopped(int argument) {
    (void)argument;
    pid_t helper = start_helper(stop_at_birth, 0);
    nap(50);
    pid_t first = fork();
    if (first == 0) {
        work();
        _exit(0);
    }
    nap(1500);
    work_in_child("a child that is not stopped");
    expect_good_end(first, "a child that was stopped at birth");
    expect_good_end(helper, "the helper");
}

enum { RING = 200 };
static pid_t ring_maker;

// A process that has a ring, by an instruction of its own, as number RING.
static void start_ring_maker(void) {
    int ready[2];
    char byte;
    if (pipe(ready) != 0 || (ring_maker = fork()) < 0) {
        give_up("a process that makes a ring");
    }
    if (ring_maker == 0) {
        static uint64_t parameters[15];
        long ring;
        __asm__ volatile("syscall" : "=a"(ring) : "0"(SYS_io_uring_setup), "D"(4L), "S"(parameters) : "rcx", "r11", "memory");
        if (ring < 0 || dup2((int)ring, RING) != RING || write(ready[1], "r", 1) != 1) {
            _exit(1);
        }
        pause();
    }
    if (read(ready[0], &byte, 1) != 1 || close(ready[0]) != 0 || close(ready[1]) != 0) {
        give_up("a ring");
    }
}

static void taken(int argument) {
    (void)argument;
    int maker = (int)syscall(SYS_pidfd_open, ring_maker, 0);
    if (syscall(SYS_pidfd_getfd, maker, RING, 0) < 0) {
        give_up("pidfd_getfd");
    }
    work_in_child("a child that has the ring");
    if (kill(ring_maker, SIGKILL) != 0 || waitpid(ring_maker, NULL, 0) != ring_maker) {
        give_up("the maker of the ring");
    }
}

static void stop_both(pid_t parent, int seconds) {
    unsigned state = 1;
    for (time_t end = time(NULL) + seconds; time(NULL) <= end;) {
        state = state * 1103515245 + 12345;
        nap(state >> 16 & 15);
        kill(parent, SIGSTOP);
        signal_children(parent, SIGSTOP, getpid());
        nap(20);
        signal_children(parent, SIGCONT, getpid());
        nap(state >> 20 & 3);
        kill(parent, SIGCONT);
    }
    signal_children(parent, SIGCONT, getpid());
    kill(parent, SIGCONT);
}

static void both(int seconds) {
    pid_t helper = start_helper(stop_both, seconds);
    for (time_t end = time(NULL) + seconds; time(NULL) < end;) {
        pid_t child = fork();
        if (child == 0) {
            check();
            _exit(0);
        }
        expect_good_end(child, "a child that was stopped");
    }
    work();
    expect_good_end(helper, "the helper");
}

static void network(int argument) {
    (void)argument;
    if (unshare(CLONE_NEWNET)) {
        give_up("unshare");
    }
    work();
    work_in_child("a child in another network namespace");
}

static void drop_privileges(int argument) {
    if (argument == 1) {
        return; // executed again, filled again
    }
    if (setgroups(0, NULL) || setgid(65534) || setuid(65534)) {
        give_up("setuid");
    }
    work();
    work_in_child("a child of another user");
    char size[32];
    snprintf(size, sizeof size, "%" PRIu64, pages / 256);
    execl("/proc/self/exe", "session", "drop", size, "1", NULL);
    give_up("exec");
}

// Every thread of this process is nobody's: the line of each that says otherwise is told.
static void expect_no_root(const char *who) {
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char path[300], line[256], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        unsigned long long ids[4];
        while (status && fgets(line, sizeof line, status)) {
            sscanf(line, "Name: %63s", name);
            if (strncmp(name, "iou-", 4) == 0) {
                break; // a thread of the kernel's, which runs nothing of the program and takes each request's credentials
            }
            int is_id = sscanf(line, "Uid: %llu %llu %llu %llu", ids, ids + 1, ids + 2, ids + 3) == 4 ||
                        sscanf(line, "Gid: %llu %llu %llu %llu", ids, ids + 1, ids + 2, ids + 3) == 4;
            int is_held = sscanf(line, "CapPrm: %llx", ids) == 1 || sscanf(line, "CapEff: %llx", ids) == 1;
            if ((is_id && (!ids[0] || !ids[1] || !ids[2] || !ids[3])) || (is_held && ids[0])) {
                dprintf(1, "%s: thread %s (%s): %s", who, entry->d_name, name, line);
                exit(1);
            }
        }
        if (status) {
            fclose(status);
        }
    }
    if (!tasks) {
        give_up("/proc/self/task");
    }
    closedir(tasks);
}

static void *sleeps(void *argument) {
    pause();
    return argument;
}

static void unrooted(int argument) {
    (void)argument;
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeps, NULL)) {
        give_up("pthread_create");
    }
    // There and back: who is root in between is root again.
    if (seteuid(65534) || seteuid(0)) {
        give_up("seteuid");
    }
    work();
    if (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) {
        give_up("setresuid");
    }
    expect_no_root("dropped");
    if (prctl(PR_SET_DUMPABLE, 1)) {
        give_up("PR_SET_DUMPABLE");
    }
    work();
    expect_no_root("paging");
    if (prctl(PR_GET_DUMPABLE) != 1) {
        give_up("PR_GET_DUMPABLE");
    }
    int status, child = fork();
    if (child == 0) {
        work();
        expect_no_root("child");
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status) {
        give_up("the child");
    }
}

// Where a thread cannot take a filter over, it is installed in none.
static void install(struct sock_filter *filter, unsigned short length, unsigned flags) {
    struct sock_fprog program = {length, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
        give_up("PR_SET_NO_NEW_PRIVS");
    }
    long thread = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    if (thread > 0) {
        dprintf(1, "refused\n");
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags | SECCOMP_FILTER_FLAG_TSYNC_ESRCH, &program) != -1 || errno != ESRCH) {
            give_up("seccomp, ESRCH");
        }
    } else if (thread) {
        give_up("seccomp");
    }
}

static void *filtered_thread(void *unused) {
    work();
    return unused;
}

static void filter(int argument) {
    // A new thread of the C library's asks for no list of robust futexes.
    struct sock_filter no_sockets[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_robust_list, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 2),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    install(no_sockets, sizeof no_sockets / sizeof *no_sockets, argument ? SECCOMP_FILTER_FLAG_TSYNC : 0);
    if (socket(AF_UNIX, SOCK_STREAM, 0) != -1 || errno != EACCES) {
        give_up("a socket is not denied");
    }
    if (mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED || errno != EACCES) {
        give_up("memory that may be executed is not denied");
    }
    work();
    pthread_t thread;
    if (pthread_create(&thread, NULL, filtered_thread, NULL) || pthread_join(thread, NULL)) {
        give_up("a thread behind the filter");
    }
    work_in_child("a child without sockets");
}

static void strict(int argument) {
    static const int allowed[] = {SYS_write,  SYS_exit_group, SYS_clone,        SYS_wait4,           SYS_rt_sigprocmask,
                                  SYS_getpid, SYS_futex,      SYS_rseq,         SYS_set_robust_list, SYS_gettid,
                                  SYS_exit,   SYS_brk,        SYS_rt_sigreturn, SYS_restart_syscall, SYS_close,
                                  SYS_lseek,  SYS_newfstatat, SYS_seccomp,      SYS_prctl,           SYS_mmap,
                                  SYS_munmap};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter strict[COUNT + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (unsigned i = 0; i < COUNT; i++) {
        strict[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], COUNT - i, 0);
    }
    strict[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    strict[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (argument) {
        struct sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        struct sock_fprog program = {COUNT + 3, strict};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) {
            give_up("PR_SET_SECCOMP");
        }
        install(nothing, 1, SECCOMP_FILTER_FLAG_TSYNC);
    } else {
        install(strict, COUNT + 3, SECCOMP_FILTER_FLAG_TSYNC);
    }
    work();
    // Memory that others would be waited for.
    for (unsigned round = 0; round < 8; round++) {
        char *fresh = mmap(NULL, 1024 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) {
            give_up("mmap");
        }
        memset(fresh, (int)round, 1024 * PAGE);
        munmap(fresh, 1024 * PAGE);
    }
    work_in_child("a child in a strict filter");
}

static void bare(int argument) {
    if (argument == 1) {
        work();
        // Who is not managed is looked at now and then only.
        usleep(300 * 1000);
        return;
    }
    char size[32];
    snprintf(size, sizeof size, "%" PRIu64, pages / 256);
    execle("/proc/self/exe", "session", "bare", size, "1", NULL, (char *[]){NULL});
    give_up("exec");
}

static void user(int argument) {
    (void)argument;
    work();
    work_in_child("a child in another user namespace");
}

static void reused(int argument) {
    (void)argument;
    work();
    close(2);
    FILE *own = tmpfile();
    if (own == NULL || fileno(own) != 2) {
        give_up("a file whose descriptor is 2");
    }
    // As long as a thread of ours is there, the kernel refuses it.
    if (unshare(CLONE_NEWUSER) == 0 || lseek(2, 0, SEEK_END) != 0) {
        dprintf(1, "a file of %ld bytes\n", (long)lseek(2, 0, SEEK_END));
        exit(1);
    }
    fclose(own);
    work();
}

static volatile sig_atomic_t is_told_to_end;

static void on_end(int number) {
    (void)number;
    is_told_to_end = 1;
}

static void family(int count) {
    int gate[2];
    pid_t children[64];
    if (count > 64 || pipe(gate)) {
        give_up("family");
    }
    // The parent's end, even by a signal that it cannot catch, closes the gate.
    struct pollfd end = {.fd = gate[0], .events = POLLIN};
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        if (children[i] < 0) {
            give_up("fork");
        }
        if (children[i] == 0) {
            close(gate[1]);
            while (poll(&end, 1, i == 0 ? -1 : 0) == 0) {
                work();
            }
            check();
            _exit(0);
        }
    }
    signal(SIGTERM, on_end);
    dprintf(1, "steered\n");
    while (!is_told_to_end) {
        work();
    }
    close(gate[1]);
    for (int i = 0; i < count; i++) {
        expect_good_end(children[i], "a child");
    }
}

static void idle(int argument) {
    (void)argument;
    sigset_t end;
    int number;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL);
    dprintf(1, "steered\n");
    sigwait(&end, &number);
    check();
}

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void rested(int argument) {
    size_t size = (size_t)argument << 20, step = 256 << 10;
    sleep(2);
    unsigned char *fresh = malloc(size);
    if (!fresh) {
        give_up("malloc");
    }
    double start = cpu_seconds();
    for (size_t at = 0; at < size; at += step) {
        memset(fresh + at, (int)(at / step) + 1, step);
        while (cpu_seconds() < start + 0.001 * (double)(at / step)) {
        }
    }
    for (size_t at = 0; at < size; at += PAGE) {
        if (fresh[at] != (unsigned char)(at / step + 1)) {
            fprintf(stderr, "session: WRONG byte %zu\n", at);
            exit(1);
        }
    }
    check();
}

static const struct {
    const char *name;
    void (*run)(int argument);
} modes[] = {
    {"forks", forks},     {"nested", nested},   {"crowd", crowd}, {"hidden", hidden},         {"hole", hole},
    {"raw", raw},         {"untold", untold}, {"copied", copied}, {"copied-early", copied}, {"private", private}, {"cleared", cleared}, {"handler", handler}, {"stopped", stopped}, {"both", both}, {"taken", taken},         {"network", network},
    {"user", user},       {"reused", reused},   {"drop", drop_privileges}, {"unrooted", unrooted}, {"filter", filter}, {"strict", strict}, {"bare", bare},
    {"family", family},   {"orphan", orphan},   {"bereft", bereft}, {"idle", idle},           {"rested", rested},
};

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: session MODE MIB [ARGUMENT]\n");
        return 2;
    }
    if (strcmp(argv[1], "user") == 0 && unshare(CLONE_NEWUSER)) {
        give_up("unshare");
    }
    int is_early = strcmp(argv[1], "copied-early") == 0;
    pid_t early = is_early ? copy(0) : 1;
    if (early < 0) {
        give_up("an early copy");
    }
    if (strcmp(argv[1], "taken") == 0) {
        start_ring_maker();
    }
    pages = strtoull(argv[2], NULL, 10) * 256;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        give_up("mmap");
    }
    rewrite();
    check();
    if (is_early) {
        for (int round = 0; round < 6; round++) {
            usleep(100000);
            work();
        }
        if (early == 0) {
            _exit(0);
        }
        expect_good_end(early, "an early copy");
    }
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
