// syscalls: hands paged-out memory to system calls, and forks in every way, with memory paged out.
//
//   syscalls MIB [NAME...] [--corrupt]
//
// Before each case a ballast of MIB MiB is rewritten, so that under a budget well below it everything the case has
// prepared is out: buffers, strings, structures and stacks that the kernel reads or writes. Prints one line per case; a
// case that fails ends the program with 1. With names only those cases run. --corrupt damages one page of the
// ballast behind the checker's back (the canary of its test).
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BUFFER_PAGES = 64, BUFFER = BUFFER_PAGES * PAGE, PAGE_WORDS = 512 };

static uint64_t *ballast;
static uint64_t ballast_pages;
static uint32_t ballast_version = 1;
static unsigned char *in, *out; // two buffers of BUFFER bytes
static char *scratch;           // a page for structures and strings
static char directory[] = "syscalls-XXXXXX"; // in the current directory
static char path[256];
static const char *case_name = "start";

static void fail(const char *what, int line) {
    fprintf(stderr, "syscalls: WRONG in case '%s', line %d: %s (errno %d: %s)\n", case_name, line, what, errno, strerror(errno));
    exit(1);
}

#define EXPECT(condition) \
    do { \
        if (!(condition)) \
            fail(#condition, __LINE__); \
    } while (0)

static uint64_t ballast_word(uint64_t page, unsigned index) {
    return ((page + 1) * 0x9E3779B97F4A7C15u ^ ((uint64_t)ballast_version << 48)) + index;
}

static void ballast_write(void) {
    ballast_version++;
    for (uint64_t page = 0; page < ballast_pages; page++) {
        for (unsigned i = 0; i < PAGE_WORDS; i += 8) {
            ballast[page * PAGE_WORDS + i] = ballast_word(page, i);
        }
    }
}

// Returns 0 if every byte written is still there.
static int ballast_check(uint64_t step) {
    for (uint64_t page = 0; page < ballast_pages; page += step) {
        for (unsigned i = 0; i < PAGE_WORDS; i += 8) {
            if (((volatile uint64_t *)ballast)[page * PAGE_WORDS + i] != ballast_word(page, i)) {
                fprintf(stderr, "syscalls: WRONG ballast page %" PRIu64 " word %u in process %d\n", page, i, (int)getpid());
                return 1;
            }
        }
    }
    return 0;
}

static unsigned char pattern(unsigned seed, unsigned index) {
    return (unsigned char)((index * 2654435761u + seed * 40503u) >> 13);
}

static void fill(unsigned char *buffer, unsigned seed) {
    for (unsigned i = 0; i < BUFFER; i++) {
        buffer[i] = pattern(seed, i);
    }
}

static int is_pattern(const unsigned char *buffer, unsigned seed, unsigned from, unsigned to) {
    for (unsigned i = from; i < to; i++) {
        if (buffer[i] != pattern(seed, i)) {
            fprintf(stderr, "syscalls: byte %u is %02x, expected %02x\n", i, buffer[i], pattern(seed, i));
            return 0;
        }
    }
    return 1;
}

// Everything prepared so far goes out.
static void page_out(void) {
    ballast_write();
}

static int open_file(int flags) {
    int fd = open(path, flags, 0600);
    EXPECT(fd >= 0);
    return fd;
}

static void case_read_write(void) {
    fill(out, 1);
    fill(in, 9);
    int fd = open_file(O_CREAT | O_TRUNC | O_RDWR);
    page_out();
    EXPECT(write(fd, out, BUFFER) == BUFFER);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    EXPECT(read(fd, in, BUFFER) == BUFFER);
    EXPECT(is_pattern(in, 1, 0, BUFFER));
    fill(in, 8);
    page_out();
    EXPECT(pwrite(fd, out + 100, 9000, 77) == 9000);
    page_out();
    EXPECT(pread(fd, in + 5000, 9000, 77) == 9000);
    EXPECT(memcmp(in + 5000, out + 100, 9000) == 0);
    EXPECT(is_pattern(in, 8, 0, 5000) && is_pattern(in, 8, 14000, BUFFER));
    close(fd);
}

static void case_vectors(void) {
    fill(out, 2);
    fill(in, 3);
    int fd = open_file(O_CREAT | O_TRUNC | O_RDWR);
    struct iovec *vector = (struct iovec *)scratch;
    for (unsigned i = 0; i < BUFFER_PAGES; i++) {
        vector[i] = (struct iovec){out + (BUFFER_PAGES - 1 - i) * PAGE, PAGE};
    }
    page_out();
    EXPECT(writev(fd, vector, BUFFER_PAGES) == BUFFER);
    for (unsigned i = 0; i < BUFFER_PAGES; i++) {
        vector[i] = (struct iovec){in + (BUFFER_PAGES - 1 - i) * PAGE, PAGE};
    }
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    page_out();
    EXPECT(readv(fd, vector, BUFFER_PAGES) == BUFFER);
    EXPECT(is_pattern(in, 2, 0, BUFFER));
    close(fd);
}

static void case_direct_io(void) {
    fill(out, 4);
    fill(in, 5);
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_DIRECT, 0600);
    if (fd < 0) {
        return; // a file system without direct I/O
    }
    page_out();
    EXPECT(pwrite(fd, out, BUFFER, 0) == BUFFER);
    page_out();
    EXPECT(pread(fd, in, BUFFER, 0) == BUFFER);
    EXPECT(is_pattern(in, 4, 0, BUFFER));
    close(fd);
}

static void case_sockets(void) {
    int *pair = (int *)scratch;
    memset(pair, 0xEE, 8);
    page_out();
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    fill(out, 6);
    fill(in, 7);
    page_out();
    for (unsigned done = 0; done < BUFFER; done += PAGE) {
        EXPECT(send(pair[0], out + done, PAGE, 0) == PAGE);
        EXPECT(recv(pair[1], in + done, PAGE, MSG_WAITALL) == PAGE);
    }
    EXPECT(is_pattern(in, 6, 0, BUFFER));
    // A descriptor passed in a control message; all structures are out.
    struct msghdr *message = (struct msghdr *)(scratch + 256);
    struct iovec *vector = (struct iovec *)(scratch + 512);
    char *control = scratch + 1024;
    *vector = (struct iovec){out, 16};
    *message = (struct msghdr){.msg_iov = vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &pair[0], sizeof(int));
    page_out();
    EXPECT(sendmsg(pair[0], message, 0) == 16);
    memset(control, 0, CMSG_SPACE(sizeof(int)));
    vector->iov_base = in;
    page_out();
    EXPECT(recvmsg(pair[1], message, 0) == 16);
    int passed;
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof passed);
    EXPECT(passed > 2 && memcmp(in, out, 16) == 0);
    close(passed);
    close(pair[0]);
    close(pair[1]);
}

static void case_getdents(void) {
    unsigned seen = 0;
    for (unsigned i = 0; i < 300; i++) {
        char name[300];
        snprintf(name, sizeof name, "%s/entry-%03u", directory, i);
        close(open(name, O_CREAT | O_WRONLY, 0600));
    }
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    for (;;) {
        memset(in, 0xDD, BUFFER);
        page_out();
        long bytes = syscall(SYS_getdents64, fd, in, 4096);
        EXPECT(bytes >= 0);
        if (bytes == 0) {
            break;
        }
        for (long at = 0; at < bytes;) {
            struct dirent64 *entry = (struct dirent64 *)(in + at);
            seen += strncmp(entry->d_name, "entry-", 6) == 0;
            at += entry->d_reclen;
        }
    }
    EXPECT(seen == 300);
    close(fd);
    for (unsigned i = 0; i < 300; i++) {
        char name[300];
        snprintf(name, sizeof name, "%s/entry-%03u", directory, i);
        unlink(name);
    }
}

static void *futex_waker(void *arg) {
    _Atomic uint32_t *word = arg;
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    page_out();
    atomic_store(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return NULL;
}

static void case_futex(void) {
    _Atomic uint32_t *word = (_Atomic uint32_t *)(in + 3 * PAGE);
    struct timespec *limit = (struct timespec *)(in + 9 * PAGE);
    pthread_t waker;
    atomic_store(word, 0);
    *limit = (struct timespec){.tv_sec = 60};
    page_out();
    EXPECT(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 5, limit, NULL, 0) == -1 && errno == EAGAIN);
    pthread_create(&waker, NULL, futex_waker, (void *)word);
    while (atomic_load(word) == 0) {
        long answer = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, limit, NULL, 0);
        EXPECT(answer == 0 || errno == EAGAIN || errno == EINTR);
    }
    pthread_join(waker, NULL);
    pthread_mutex_t *mutex = (pthread_mutex_t *)(in + 5 * PAGE);
    pthread_mutex_init(mutex, NULL);
    page_out();
    EXPECT(pthread_mutex_lock(mutex) == 0);
    page_out();
    EXPECT(pthread_mutex_unlock(mutex) == 0);
}

static void case_structures(void) {
    int pipes[2];
    struct stat *status = (struct stat *)(in + 1 * PAGE);
    int *count = (int *)(in + 2 * PAGE);
    int *ends = (int *)(in + 3 * PAGE);
    struct utsname *name = (struct utsname *)(in + 4 * PAGE);
    struct timespec *now = (struct timespec *)(in + 6 * PAGE);
    struct pollfd *polls = (struct pollfd *)(in + 7 * PAGE);
    struct epoll_event *event = (struct epoll_event *)(in + 8 * PAGE);
    struct rusage *usage = (struct rusage *)(in + 9 * PAGE);
    char *text = (char *)in + 10 * PAGE;
    struct rlimit *limit = (struct rlimit *)(in + 12 * PAGE);
    memset(in, 0xCC, BUFFER);
    strcpy(text, path);
    close(open_file(O_CREAT | O_TRUNC | O_RDWR));
    page_out();
    EXPECT(stat(text, status) == 0 && S_ISREG(status->st_mode) && status->st_size == 0);
    page_out();
    EXPECT(pipe(ends) == 0 && ends[0] > 2 && ends[1] > 2);
    pipes[0] = ends[0];
    pipes[1] = ends[1];
    EXPECT(write(pipes[1], "twelve bytes", 12) == 12);
    page_out();
    EXPECT(ioctl(pipes[0], FIONREAD, count) == 0 && *count == 12);
    page_out();
    EXPECT(uname(name) == 0 && strcmp(name->sysname, "Linux") == 0);
    page_out();
    EXPECT(syscall(SYS_clock_gettime, CLOCK_REALTIME, now) == 0 && now->tv_sec > 1600000000);
    *polls = (struct pollfd){.fd = pipes[0], .events = POLLIN};
    page_out();
    EXPECT(poll(polls, 1, 1000) == 1 && polls->revents == POLLIN);
    int epoll = epoll_create1(0);
    *event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 42};
    page_out();
    EXPECT(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], event) == 0);
    memset(event, 0, sizeof *event);
    page_out();
    EXPECT(epoll_wait(epoll, event, 1, 1000) == 1 && event->data.u64 == 42);
    page_out();
    EXPECT(getrusage(RUSAGE_SELF, usage) == 0 && usage->ru_maxrss > 1000);
    page_out();
    EXPECT(getcwd(text, PAGE) == text && text[0] == '/');
    page_out();
    EXPECT(getrlimit(RLIMIT_NOFILE, limit) == 0 && limit->rlim_cur >= 64);
    *now = (struct timespec){.tv_nsec = 1000000};
    page_out();
    EXPECT(nanosleep(now, now + 1) == 0);
    close(epoll);
    close(pipes[0]);
    close(pipes[1]);
}

static void case_other_process(void) {
    fill(out, 11);
    fill(in, 12);
    struct iovec *local = (struct iovec *)scratch, *remote = local + 1;
    *local = (struct iovec){in, BUFFER};
    *remote = (struct iovec){out, BUFFER};
    page_out();
    EXPECT(process_vm_readv(getpid(), local, 1, remote, 1, 0) == BUFFER || errno == EPERM || errno == ENOSYS);
    if (errno != EPERM && errno != ENOSYS) {
        EXPECT(is_pattern(in, 11, 0, BUFFER));
    }
    // /proc/self/mem is how debuggers look. The kernel does not wait for a userfaultfd there: the read may fail, but what
    // it does read must be right.
    fill(in, 13);
    int fd = open("/proc/self/mem", O_RDONLY);
    page_out();
    ssize_t seen = pread(fd, in, BUFFER, (off_t)(uintptr_t)out);
    EXPECT(seen > 0 || errno == EIO);
    EXPECT(seen <= 0 || is_pattern(in, 11, 0, (unsigned)seen));
    close(fd);
    int pipes[2];
    EXPECT(pipe(pipes) == 0);
    page_out();
    local->iov_base = out;
    local->iov_len = 4 * PAGE;
    EXPECT(vmsplice(pipes[1], local, 1, 0) == 4 * PAGE);
    page_out();
    EXPECT(read(pipes[0], in, 4 * PAGE) == 4 * PAGE);
    EXPECT(is_pattern(in, 11, 0, 4 * PAGE));
    close(pipes[0]);
    close(pipes[1]);
}

static volatile sig_atomic_t handled;
static volatile uintptr_t handler_stack;

static void on_signal(int number, siginfo_t *info, void *context) {
    char local[8192];
    memset(local, number, sizeof local);
    handler_stack = (uintptr_t)local;
    (void)context;
    handled += info->si_signo == number && local[8191] == number;
}

static void case_signals(void) {
    stack_t *stack = (stack_t *)scratch;
    struct sigaction *action = (struct sigaction *)(scratch + 512), before;
    struct itimerval *timer = (struct itimerval *)(scratch + 1024);
    memset(in, 1, BUFFER);
    *stack = (stack_t){.ss_sp = in, .ss_size = BUFFER};
    page_out();
    EXPECT(sigaltstack(stack, NULL) == 0);
    memset(action, 0, sizeof *action);
    action->sa_sigaction = on_signal;
    action->sa_flags = SA_SIGINFO | SA_ONSTACK;
    page_out();
    EXPECT(sigaction(SIGUSR1, action, &before) == 0);
    EXPECT(sigaction(SIGALRM, action, NULL) == 0);
    for (int i = 0; i < 3; i++) {
        page_out();
        raise(SIGUSR1);
    }
    EXPECT(handled == 3);
    EXPECT(handler_stack > (uintptr_t)in && handler_stack < (uintptr_t)in + BUFFER);
    memset(timer, 0, sizeof *timer);
    timer->it_value.tv_usec = 1000;
    page_out();
    EXPECT(setitimer(ITIMER_REAL, timer, NULL) == 0);
    for (int i = 0; handled < 4 && i < 100; i++) {
        page_out();
    }
    EXPECT(handled == 4);
    *stack = (stack_t){.ss_flags = SS_DISABLE};
    EXPECT(sigaltstack(stack, NULL) == 0);
}

static void expect_child(pid_t child, int code) {
    int *status = (int *)(in + 17 * PAGE);
    page_out();
    EXPECT(waitpid(child, status, 0) == child);
    EXPECT(WIFEXITED(*status) && WEXITSTATUS(*status) == code);
}

static void case_spawn(void) {
    char **argv = (char **)(in + 20 * PAGE), **environment = (char **)(in + 21 * PAGE);
    char *command = (char *)in + 22 * PAGE;
    strcpy(command, "/bin/sh");
    strcpy(command + 64, "-c");
    strcpy(command + 128, "test \"$PAGED_OUT\" = yes && exit 23");
    strcpy(command + 512, "PAGED_OUT=yes");
    argv[0] = command, argv[1] = command + 64, argv[2] = command + 128, argv[3] = NULL;
    environment[0] = command + 512, environment[1] = NULL;
    pid_t child;
    page_out();
    EXPECT(posix_spawn(&child, command, NULL, NULL, argv, environment) == 0);
    expect_child(child, 23);
    page_out();
    child = vfork();
    if (child == 0) {
        execve(command, argv, environment);
        _exit(99);
    }
    EXPECT(child > 0);
    expect_child(child, 23);
    page_out();
    child = fork();
    if (child == 0) {
        execve(command, argv, environment);
        _exit(99);
    }
    EXPECT(child > 0);
    expect_child(child, 23);
    strcpy(command, "exit 31");
    page_out();
    int status = system(command);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 31);
    FILE *stream = popen("echo from the child", "r");
    char *line = (char *)in + 30 * PAGE;
    page_out();
    EXPECT(stream && fgets(line, PAGE, stream) && strcmp(line, "from the child\n") == 0);
    EXPECT(pclose(stream) == 0);
}

static void case_fork(void) {
    page_out();
    pid_t child = fork();
    if (child == 0) {
        int wrong = ballast_check(1);
        ballast_write();
        _exit(wrong || ballast_check(1) ? 1 : 40);
    }
    EXPECT(child > 0);
    uint32_t version = ballast_version;
    int *status = (int *)(in + 17 * PAGE);
    EXPECT(ballast_check(1) == 0);
    EXPECT(waitpid(child, status, 0) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 40);
    EXPECT(version == ballast_version && ballast_check(1) == 0);
}

// A child that outlives a parent who writes at once, and a grandchild that outlives both looks.
static void case_generations(void) {
    page_out();
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
            _exit(ballast_check(1) ? 1 : 41);
        }
        int status, wrong = ballast_check(3);
        if (grandchild < 0 || waitpid(grandchild, &status, 0) != grandchild || status != 41 << 8 || wrong) {
            _exit(1);
        }
        _exit(42);
    }
    EXPECT(child > 0);
    expect_child(child, 42);
    // Several children at once.
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            _exit(ballast_check(1) ? 1 : 43);
        }
        EXPECT(children[i] > 0);
    }
    page_out();
    for (int i = 0; i < 3; i++) {
        int status;
        EXPECT(waitpid(children[i], &status, 0) == children[i] && status == 43 << 8);
    }
}

static atomic_int busy_stop;
static atomic_int busy_wrong;

// Rewrites its quarter of `out` all the time, always checking first.
static void *busy(void *arg) {
    unsigned index = (unsigned)(uintptr_t)arg, quarter = BUFFER / 4;
    volatile uint32_t *words = (volatile uint32_t *)(out + index * quarter);
    for (uint32_t version = 1; !atomic_load(&busy_stop); version++) {
        for (unsigned i = 0; i < quarter / 4; i++) {
            if (version > 1 && words[i] != (version - 1) * 31 + i) {
                atomic_store(&busy_wrong, 1);
            }
            words[i] = version * 31 + i;
        }
    }
    return NULL;
}

static void case_fork_with_threads(void) {
    pthread_t threads[4];
    atomic_store(&busy_stop, 0);
    for (unsigned i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, busy, (void *)(uintptr_t)i);
    }
    page_out();
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        if (child == 0) {
            _exit(ballast_check(5) ? 1 : 44);
        }
        EXPECT(child > 0);
        EXPECT(ballast_check(7) == 0);
        int status;
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT(status == 44 << 8);
    }
    atomic_store(&busy_stop, 1);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    EXPECT(!atomic_load(&busy_wrong));
}

// The parent ends at once; the child, in a session of its own, checks everything and says so. Only as the last case:
// the process that the caller started is gone afterwards.
static void case_daemon(void) {
    page_out();
    fflush(stdout);
    pid_t child = fork();
    if (child != 0) {
        _exit(child < 0);
    }
    setsid();
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    if (ballast_check(1)) {
        exit(1);
    }
    ballast_write();
    EXPECT(ballast_check(1) == 0);
    printf("daemon checked %" PRIu64 " pages\n", ballast_pages);
    fflush(stdout);
    _exit(0);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"read_write", case_read_write},
    {"vectors", case_vectors},
    {"direct_io", case_direct_io},
    {"sockets", case_sockets},
    {"getdents", case_getdents},
    {"futex", case_futex},
    {"structures", case_structures},
    {"other_process", case_other_process},
    {"signals", case_signals},
    {"spawn", case_spawn},
    {"fork", case_fork},
    {"generations", case_generations},
    {"fork_with_threads", case_fork_with_threads},
    {"daemon", case_daemon},
};

static void *anonymous(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(base != MAP_FAILED);
    return base;
}

static int is_named(char **names, int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: syscalls MIB [NAME...] [--corrupt]\n");
        return 2;
    }
    int is_corrupt = strcmp(argv[argc - 1], "--corrupt") == 0;
    int names = argc - 2 - is_corrupt;
    ballast_pages = strtoull(argv[1], NULL, 10) * 256;
    ballast = anonymous(ballast_pages * PAGE);
    in = anonymous(BUFFER);
    out = anonymous(BUFFER);
    scratch = anonymous(PAGE);
    EXPECT(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/file", directory);
    ballast_write();
    if (is_corrupt) {
        ballast[ballast_pages / 3 * PAGE_WORDS + 8] ^= 1;
        EXPECT(ballast_check(1) == 0);
    }
    int ran = 0;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        int is_last = i + 1 == sizeof cases / sizeof *cases;
        if (names ? is_named(argv + 2, names, cases[i].name) : !is_last) {
            case_name = cases[i].name;
            if (is_last) {
                unlink(path);
                rmdir(directory);
            }
            cases[i].run();
            EXPECT(ballast_check(1) == 0);
            printf("%s: right\n", case_name);
            fflush(stdout);
            ran++;
        }
    }
    unlink(path);
    rmdir(directory);
    EXPECT(ran > 0);
    return 0;
}
