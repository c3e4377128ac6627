// classes: one system call of each kind, with the memory that it reads and writes paged out.
//
//   classes MIB
//
// What a call takes away before it writes its answer (a counter, a child, a connection, a datagram, a signal, a message, a line of a
// terminal, a descriptor, an old value) must not be lost; what may end short must not; what names nothing must be EFAULT, as natively;
// what a signal interrupts must end or go on as natively. Before each call a ballast of MIB MiB is rewritten, and what the call writes to
// is memory that nobody has touched since the start. Prints one line per case and what the calls answered, so that a native run
// prints the same; a case that fails ends the program with 1. On standard error: how many calls found memory out.
#include "expect.h"

#include <arpa/inet.h>
#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, ROOM = PAGES * PAGE };

static uint64_t *ballast;
static uint64_t ballast_words;
static char *room;    // what the calls read and write
static char *nowhere; // behind it: no access
static unsigned rooms = 24;
static int pagemap;
static unsigned char before[PAGES];
static int is_pending;
static unsigned asked, out;

// Which pages of the room are present.
static void look(unsigned char present[PAGES]) {
    static uint64_t entries[PAGES]; // not in the room
    EXPECT(pread(pagemap, entries, sizeof entries, (off_t)((uintptr_t)room / PAGE * 8)) == sizeof entries);
    for (int i = 0; i < PAGES; i++) {
        present[i] = entries[i] >> 63;
    }
}

// Count the call since the last `page_out`, if it used memory that was out then.
static void settle(void) {
    unsigned char now[PAGES];
    look(now);
    int brought = 0;
    for (int i = 0; i < PAGES; i++) {
        brought += now[i] && !before[i];
    }
    out += is_pending && brought > 0;
    asked += (unsigned)is_pending;
    is_pending = 0;
}

static void page_out(void) {
    int error = errno;
    settle();
    for (uint64_t i = 0; i < ballast_words; i += 512) {
        ballast[i] += i;
    }
    look(before);
    is_pending = 1;
    errno = error;
}

// Another room. Nobody has touched it since it was written, long ago.
static char *next_room(void) {
    settle();
    room += ROOM + PAGE;
    nowhere = room + ROOM;
    EXPECT(mprotect(nowhere, PAGE, PROT_NONE) == 0 && rooms-- > 0);
    return room;
}

// What a call answered, for the comparison with a native run.
static void tell(const char *what, long answer) {
    printf("  %s: %ld%s%s\n", what, answer, answer < 0 ? " " : "", answer < 0 ? strerrorname_np(errno) : "");
}

static void case_counters(void) {
    uint64_t *value = (uint64_t *)(next_room() + 3 * PAGE);
    int event = eventfd(7, EFD_NONBLOCK);
    page_out();
    EXPECT(read(event, value, 8) == 8 && *value == 7);
    EXPECT(read(event, value, 8) == -1 && errno == EAGAIN);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec *when = (struct itimerspec *)room, *old = (struct itimerspec *)(room + 5 * PAGE);
    *when = (struct itimerspec){.it_value.tv_sec = 5000};
    page_out();
    EXPECT(timerfd_settime(timer, 0, when, NULL) == 0);
    *when = (struct itimerspec){.it_value.tv_nsec = 1000000};
    page_out();
    EXPECT(timerfd_settime(timer, 0, when, old) == 0 && old->it_value.tv_sec >= 4000);
    page_out();
    EXPECT(read(timer, value, 8) == 8 && *value == 1);
    close(timer);
    close(event);
}

static void case_children(void) {
    int *status = (int *)(next_room() + 7 * PAGE);
    struct rusage *usage = (struct rusage *)(room + 8 * PAGE);
    siginfo_t *info = (siginfo_t *)(room + 9 * PAGE);
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            _exit(31 + round);
        }
        EXPECT(child > 0);
        page_out();
        if (round == 0) {
            EXPECT(wait4(child, status, 0, usage) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 31);
        } else {
            EXPECT(waitid(P_PID, (id_t)child, info, WEXITED) == 0 && info->si_pid == child && info->si_status == 32);
        }
        EXPECT(waitpid(child, NULL, 0) == -1 && errno == ECHILD);
    }
}

static void case_connections(void) {
    struct sockaddr_in *address = (struct sockaddr_in *)(next_room() + PAGE);
    socklen_t *len = (socklen_t *)(room + 2 * PAGE);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    page_out();
    EXPECT(bind(listener, (struct sockaddr *)address, sizeof *address) == 0 && listen(listener, 4) == 0);
    *len = sizeof *address;
    page_out();
    EXPECT(getsockname(listener, (struct sockaddr *)address, len) == 0 && address->sin_port != 0);
    int near = socket(AF_INET, SOCK_STREAM, 0);
    page_out();
    EXPECT(connect(near, (struct sockaddr *)address, sizeof *address) == 0);
    memset(address, 0, sizeof *address);
    *len = sizeof *address;
    page_out();
    int far = accept4(listener, (struct sockaddr *)address, len, SOCK_CLOEXEC);
    EXPECT(far > 0 && *len == sizeof *address && address->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    strcpy(room + 5 * PAGE, "over the wire");
    page_out();
    EXPECT(send(near, room + 5 * PAGE, 14, 0) == 14);
    page_out();
    EXPECT(recv(far, room + 6 * PAGE, PAGE, 0) == 14 && strcmp(room + 6 * PAGE, "over the wire") == 0);
    int *option = (int *)(room + 9 * PAGE);
    *len = sizeof *option;
    page_out();
    EXPECT(getsockopt(far, SOL_SOCKET, SO_TYPE, option, len) == 0 && *option == SOCK_STREAM);
    close(far);
    close(near);
    close(listener);
}

static void case_datagrams(void) {
    int pair[2], far = socket(AF_INET, SOCK_DGRAM, 0), near = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address, *told = (socklen_t *)(next_room() + PAGE);
    struct sockaddr_in *from = (struct sockaddr_in *)(room + 2 * PAGE);
    EXPECT(bind(far, (struct sockaddr *)&address, len) == 0 && getsockname(far, (struct sockaddr *)&address, &len) == 0);
    *told = sizeof *from;
    EXPECT(sendto(near, "first", 5, 0, (struct sockaddr *)&address, len) == 5);
    EXPECT(sendto(near, "second", 6, 0, (struct sockaddr *)&address, len) == 6);
    page_out();
    EXPECT(recvfrom(far, room + 3 * PAGE - 2, PAGE, 0, (struct sockaddr *)from, told) == 5);
    EXPECT(memcmp(room + 3 * PAGE - 2, "first", 5) == 0 && *told == sizeof *from && from->sin_family == AF_INET);
    page_out();
    EXPECT(recv(far, room + 9 * PAGE - 2, PAGE, MSG_PEEK) == 6);
    page_out();
    EXPECT(recv(far, room + 9 * PAGE - 2, PAGE, 0) == 6 && memcmp(room + 9 * PAGE - 2, "second", 6) == 0);
    EXPECT(recv(far, room, PAGE, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    EXPECT(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    struct mmsghdr *messages = (struct mmsghdr *)(room + 20 * PAGE);
    struct iovec *pieces = (struct iovec *)(room + 22 * PAGE);
    memset(messages, 0, 3 * sizeof *messages);
    for (int i = 0; i < 3; i++) {
        pieces[i] = (struct iovec){room + (24 + 2 * i) * PAGE - 3, 100};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
        EXPECT(send(pair[0], "datagram", 8 - (size_t)i, 0) == 8 - i);
    }
    page_out();
    EXPECT(recvmmsg(pair[1], messages, 3, 0, NULL) == 3);
    for (int i = 0; i < 3; i++) {
        EXPECT(messages[i].msg_len == 8u - (unsigned)i && memcmp(pieces[i].iov_base, "datagram", 8 - (size_t)i) == 0);
    }
    page_out();
    EXPECT(sendmmsg(pair[0], messages, 3, 0) == 3);
    EXPECT(recv(pair[1], room, PAGE, 0) == 100);
    close(pair[0]);
    close(pair[1]);
    close(far);
    close(near);
}

static void case_descriptors(void) {
    int pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct msghdr *message = (struct msghdr *)next_room();
    struct iovec *piece = (struct iovec *)(room + 2 * PAGE - 8);
    char *control = room + 4 * PAGE;
    *piece = (struct iovec){room + 6 * PAGE, 1};
    *message = (struct msghdr){.msg_iov = piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(8)};
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(8);
    memcpy(CMSG_DATA(header), pair, sizeof pair);
    page_out();
    EXPECT(sendmsg(pair[0], message, 0) == 1);
    int next = dup(0);
    close(next);
    memset(control, 0, CMSG_SPACE(8));
    page_out();
    EXPECT(recvmsg(pair[1], message, 0) == 1);
    int passed[2];
    memcpy(passed, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof passed);
    EXPECT(passed[0] == next && passed[1] == next + 1 && fcntl(passed[1], F_GETFD) == 0);
    int *ends = (int *)(room + 8 * PAGE);
    page_out();
    EXPECT(pipe2(ends, O_CLOEXEC) == 0 && ends[0] == next + 2 && ends[1] == next + 3);
    for (int i = 0; i < 4; i++) {
        close(next + i);
    }
    close(pair[0]);
    close(pair[1]);
}

static void case_signals_that_wait(void) {
    sigset_t *set = (sigset_t *)next_room(), *old = (sigset_t *)(room + PAGE);
    siginfo_t *info = (siginfo_t *)(room + 2 * PAGE);
    struct timespec *limit = (struct timespec *)(room + 3 * PAGE);
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    page_out();
    EXPECT(sigprocmask(SIG_BLOCK, set, old) == 0 && !sigismember(old, SIGUSR1));
    page_out();
    int fd = signalfd(-1, set, SFD_NONBLOCK);
    sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 4711});
    struct signalfd_siginfo *told = (struct signalfd_siginfo *)(room + 5 * PAGE - 64);
    page_out();
    EXPECT(read(fd, told, sizeof *told) == sizeof *told && told->ssi_signo == SIGUSR1 && told->ssi_int == 4711);
    EXPECT(read(fd, told, sizeof *told) == -1 && errno == EAGAIN);
    sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 4712});
    *limit = (struct timespec){.tv_sec = 20};
    page_out();
    EXPECT(sigtimedwait(set, info, limit) == SIGUSR1 && info->si_value.sival_int == 4712);
    page_out();
    EXPECT(sigprocmask(SIG_SETMASK, old, NULL) == 0);
    close(fd);
}

static void case_watches(void) {
    char *name = next_room() + 3 * PAGE - 4;
    int fd = inotify_init1(IN_NONBLOCK);
    // In a directory of its own: where the program runs, the run writes its statistics.
    strcpy(name, "watched");
    EXPECT(mkdir(name, 0700) == 0);
    page_out();
    int watch = inotify_add_watch(fd, name, IN_CREATE);
    EXPECT(fd >= 0 && watch >= 0);
    strcpy(name, "watched/classes-file");
    page_out();
    int made = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    EXPECT(made >= 0 && close(made) == 0);
    struct inotify_event *event = (struct inotify_event *)(room + 9 * PAGE - 16);
    page_out();
    long got = read(fd, event, 512);
    EXPECT(got > 16);
    EXPECT(event->wd == watch && strcmp(event->name, "classes-file") == 0);
    EXPECT(read(fd, event, 512) == -1 && errno == EAGAIN);
    page_out();
    EXPECT(unlink(name) == 0 && rmdir("watched") == 0);
    close(fd);
}

static void case_queues(void) {
    struct {
        long type;
        char text[PAGE];
    } *message = (void *)(next_room() + PAGE - 8);
    int queue = msgget(IPC_PRIVATE, 0600);
    message->type = 9;
    strcpy(message->text, "by message queue");
    page_out();
    EXPECT(msgsnd(queue, message, 17, 0) == 0);
    memset(message, 0, 100);
    page_out();
    EXPECT(msgrcv(queue, message, PAGE, 9, 0) == 17 && message->type == 9 && strcmp(message->text, "by message queue") == 0);
    EXPECT(msgrcv(queue, message, PAGE, 0, IPC_NOWAIT) == -1 && errno == ENOMSG);
    msgctl(queue, IPC_RMID, NULL);
    char *name = room + 5 * PAGE - 5;
    unsigned *priority = (unsigned *)(room + 7 * PAGE);
    struct mq_attr *wanted = (struct mq_attr *)(room + 8 * PAGE), *old = (struct mq_attr *)(room + 10 * PAGE);
    snprintf(name, 64, "/pagetide-classes-%d", getpid());
    *wanted = (struct mq_attr){.mq_maxmsg = 4, .mq_msgsize = 512};
    page_out();
    mqd_t posix = mq_open(name, O_CREAT | O_RDWR | O_NONBLOCK, 0600, wanted);
    EXPECT(posix >= 0);
    page_out();
    EXPECT(mq_unlink(name) == 0);
    strcpy(room + 12 * PAGE, "posix");
    page_out();
    EXPECT(mq_send(posix, room + 12 * PAGE, 6, 5) == 0);
    page_out();
    EXPECT(mq_receive(posix, room + 14 * PAGE, 512, priority) == 6 && *priority == 5 && strcmp(room + 14 * PAGE, "posix") == 0);
    EXPECT(mq_receive(posix, room + 14 * PAGE, 512, priority) == -1 && errno == EAGAIN);
    *wanted = (struct mq_attr){.mq_flags = 0};
    page_out();
    EXPECT(mq_setattr(posix, wanted, old) == 0 && old->mq_flags == O_NONBLOCK && old->mq_msgsize == 512);
    mq_close(posix);
}

static void case_terminals(void) {
    int master, slave;
    EXPECT(openpty(&master, &slave, NULL, NULL, NULL) == 0);
    strcpy(next_room() + PAGE, "one\ntwo\n");
    page_out();
    EXPECT(write(master, room + PAGE, 8) == 8);
    page_out();
    EXPECT(read(slave, room + 3 * PAGE, PAGE) == 4 && memcmp(room + 3 * PAGE, "one\n", 4) == 0);
    page_out();
    EXPECT(read(slave, room + 5 * PAGE, PAGE) == 4 && memcmp(room + 5 * PAGE, "two\n", 4) == 0);
    struct winsize *size = (struct winsize *)(room + 7 * PAGE);
    *size = (struct winsize){.ws_row = 33, .ws_col = 111};
    page_out();
    EXPECT(ioctl(master, TIOCSWINSZ, size) == 0);
    memset(size, 0, sizeof *size);
    page_out();
    EXPECT(ioctl(slave, TIOCGWINSZ, size) == 0 && size->ws_row == 33 && size->ws_col == 111);
    close(slave);
    close(master);
}

static void on_signal(int number) {
    (void)number;
}

static void case_old_values(void) {
    struct sigaction *action = (struct sigaction *)next_room(), *before = (struct sigaction *)(room + 2 * PAGE);
    struct itimerval *timer = (struct itimerval *)(room + 4 * PAGE), *rest = (struct itimerval *)(room + 6 * PAGE);
    struct rlimit *limit = (struct rlimit *)(room + 8 * PAGE), *was = (struct rlimit *)(room + 10 * PAGE);
    memset(action, 0, sizeof *action);
    action->sa_handler = on_signal;
    EXPECT(sigaction(SIGUSR2, action, NULL) == 0);
    action->sa_handler = SIG_IGN;
    page_out();
    EXPECT(sigaction(SIGUSR2, action, before) == 0 && before->sa_handler == on_signal);
    memset(timer, 0, sizeof *timer);
    timer->it_value.tv_sec = 3000;
    page_out();
    EXPECT(setitimer(ITIMER_REAL, timer, NULL) == 0);
    memset(timer, 0, sizeof *timer);
    page_out();
    EXPECT(setitimer(ITIMER_REAL, timer, rest) == 0 && rest->it_value.tv_sec >= 2000);
    EXPECT(getrlimit(RLIMIT_CORE, limit) == 0);
    rlim_t core = limit->rlim_cur;
    limit->rlim_cur = 0;
    page_out();
    EXPECT(prlimit(0, RLIMIT_CORE, limit, was) == 0 && was->rlim_cur == core);
    struct sigevent *event = (struct sigevent *)(room + 12 * PAGE);
    timer_t *id = (timer_t *)(room + 14 * PAGE);
    struct itimerspec *when = (struct itimerspec *)(room + 16 * PAGE), *old = (struct itimerspec *)(room + 18 * PAGE);
    memset(event, 0, sizeof *event);
    event->sigev_notify = SIGEV_NONE;
    page_out();
    EXPECT(timer_create(CLOCK_MONOTONIC, event, id) == 0);
    *when = (struct itimerspec){.it_value.tv_sec = 3000};
    page_out();
    EXPECT(timer_settime(*id, 0, when, NULL) == 0);
    page_out();
    EXPECT(timer_settime(*id, 0, when, old) == 0 && old->it_value.tv_sec >= 2000);
    timer_delete(*id);
}

// Nothing may be read or written short that is not natively.
static void case_counts(void) {
    enum { BYTES = 3 << 20 };
    char *large = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = open("classes-file", O_CREAT | O_RDWR | O_TRUNC, 0600), copy = open("classes-copy", O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (int i = 0; i < BYTES; i++) {
        large[i] = (char)(i * 7 + i / PAGE);
    }
    page_out();
    EXPECT(write(file, large, BYTES) == BYTES);
    memset(large, 0, BYTES);
    page_out();
    EXPECT(pread(file, large, BYTES, 0) == BYTES);
    for (int i = 0; i < BYTES; i++) {
        EXPECT(large[i] == (char)(i * 7 + i / PAGE));
    }
    off_t *at = (off_t *)next_room();
    *at = 100;
    page_out();
    EXPECT(sendfile(copy, file, at, 100000) == 100000 && *at == 100100);
    loff_t *from = (loff_t *)(room + 2 * PAGE), *to = (loff_t *)(room + 4 * PAGE);
    *from = 5, *to = 100000;
    page_out();
    EXPECT(copy_file_range(file, from, copy, to, 50000, 0) == 50000 && *from == 50005 && *to == 150000);
    struct iovec *pieces = (struct iovec *)(room + 6 * PAGE);
    for (int i = 0; i < 16; i++) {
        pieces[i] = (struct iovec){room + (8 + 2 * i) * PAGE - 100, 300};
    }
    page_out();
    EXPECT(preadv(copy, pieces, 16, 0) == 4800 && memcmp(pieces[15].iov_base, large + 100 + 4500, 300) == 0);
    page_out();
    EXPECT(pwritev(copy, pieces, 16, 200000) == 4800);
    int ends[2];
    EXPECT(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 18) > 0);
    memset(room, 0x5a, ROOM);
    page_out();
    EXPECT(write(ends[1], room, 200000) == 200000);
    memset(room, 0, ROOM);
    page_out();
    EXPECT(read(ends[0], room, ROOM) == 200000 && room[0] == 0x5a && room[199999] == 0x5a && room[200000] == 0);
    close(ends[0]);
    close(ends[1]);
    close(file);
    close(copy);
    unlink("classes-file");
    unlink("classes-copy");
    munmap(large, BYTES);
}

enum { LONG = 12 << 20 };

static void *drains(void *fd) {
    static char bytes[65536];
    size_t count = 0;
    for (ssize_t got; (got = read((int)(intptr_t)fd, bytes, sizeof bytes)) > 0;) {
        count += (size_t)got;
    }
    return (void *)count;
}

// More than the budget has room for.
static void case_long_ones(void) {
    char *large = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = open("classes-file", O_CREAT | O_RDWR | O_TRUNC, 0600), pair[2];
    struct iovec halves[2] = {{large, LONG / 2}, {large + LONG / 2, LONG / 2}};
    pthread_t reader;
    void *count;
    for (int i = 0; i < LONG; i += 1024) {
        large[i] = (char)(i / 1024 + i / PAGE);
    }
    EXPECT(writev(file, halves, 2) == LONG);
    memset(large, 7, LONG);
    EXPECT(preadv(file, halves, 2, 0) == LONG && pread(file, large, LONG, 0) == LONG);
    for (int i = 0; i < LONG; i += 1024) {
        EXPECT(large[i] == (char)(i / 1024 + i / PAGE) && large[i + 1] == 0);
    }
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    EXPECT(pthread_create(&reader, NULL, drains, (void *)(intptr_t)pair[1]) == 0);
    EXPECT(send(pair[0], large, LONG, 0) == LONG && shutdown(pair[0], SHUT_WR) == 0);
    EXPECT(pthread_join(reader, &count) == 0 && (size_t)count == LONG);
    EXPECT(syscall(SYS_getrandom, large, LONG, 0) == LONG);
    EXPECT(madvise(large, LONG, MADV_POPULATE_READ) == 0 && madvise(large, LONG, MADV_POPULATE_WRITE) == 0);
    close(pair[0]), close(pair[1]), close(file);
    unlink("classes-file");
    munmap(large, LONG);
}

// What names nothing is EFAULT, and whatever natively stays or goes then does so here.
static void case_faults(void) {
    int ends[2], pair[2], event = eventfd(3, EFD_NONBLOCK), epoll = epoll_create1(0);
    char *edge = next_room() + ROOM - PAGE; // the last page; behind it there is nothing
    EXPECT(pipe2(ends, O_NONBLOCK) == 0 && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) == 0);
    struct epoll_event is_readable = {.events = EPOLLIN};
    EXPECT(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &is_readable) == 0);
    tell("write from nowhere", write(ends[1], nowhere, 10));
    tell("write over the edge", write(ends[1], edge, 2 * PAGE));
    tell("read to nowhere", read(ends[0], nowhere, 10));
    page_out();
    tell("read over the edge", read(ends[0], edge + PAGE - 100, 1000));
    tell("read the rest", read(ends[0], room, PAGE));
    tell("eventfd to nowhere", read(event, nowhere, 8));
    tell("eventfd again", read(event, room, 8));
    EXPECT(send(pair[0], "lost as natively", 16, 0) == 16);
    tell("datagram to nowhere", recv(pair[1], nowhere, 100, 0));
    tell("datagram again", recv(pair[1], room, 100, 0));
    EXPECT(write(event, &(uint64_t){1}, 8) == 8);
    tell("epoll_wait to nowhere", epoll_wait(epoll, (struct epoll_event *)nowhere, 4, 0));
    tell("futex nowhere", syscall(SYS_futex, nowhere, FUTEX_WAIT, 0, NULL, NULL, 0));
    tell("open nowhere", open(nowhere, O_RDONLY));
    memset(edge, 'x', PAGE);
    page_out();
    tell("open over the edge", open(edge + PAGE - 5, O_RDONLY));
    struct iovec pieces[2] = {{edge, PAGE}, {nowhere, PAGE}};
    page_out();
    tell("writev with a piece of nothing", writev(ends[1], pieces, 2));
    tell("writev from nowhere", writev(ends[1], (struct iovec *)nowhere, 2));
    tell("recvmsg to nowhere", recvmsg(pair[1], (struct msghdr *)nowhere, 0));
    tell("sigaction from nowhere", syscall(SYS_rt_sigaction, SIGUSR1, nowhere, NULL, 8));
    tell("sigaction of SIGKILL from nowhere", syscall(SYS_rt_sigaction, SIGKILL, nowhere, NULL, 8));
    tell("sigaction of no signal from nowhere", syscall(SYS_rt_sigaction, 999, nowhere, NULL, 8));
    tell("sigprocmask from nowhere", syscall(SYS_rt_sigprocmask, SIG_BLOCK, nowhere, NULL, 8));
    tell("clock to nowhere", syscall(SYS_clock_gettime, CLOCK_REALTIME, nowhere));
    tell("execve of nothing", execve(nowhere, (char **)nowhere, (char **)nowhere));
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    tell("wait4 to nowhere", wait4(child, (int *)nowhere, 0, NULL) > 0);
    tell("wait4 again", waitpid(child, NULL, 0) > 0);
    tell("a number that no kernel has", syscall(999, room, nowhere));
    close(ends[0]), close(ends[1]), close(pair[0]), close(pair[1]), close(event), close(epoll);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void *writes_later(void *fd) {
    nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL);
    EXPECT(write((int)(intptr_t)fd, "late", 4) == 4);
    return NULL;
}

// In this thread only; again and again, so that none comes before the call alone.
static void alarm_ms(int ms) {
    struct itimerval timer = {.it_value.tv_usec = ms * 1000, .it_interval.tv_usec = 20000};
    alarms = 0;
    EXPECT(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void case_interruptions(void) {
    int ends[2], pair[2], epoll = epoll_create1(0);
    struct sigaction action = {.sa_handler = on_alarm};
    sigset_t alarm_alone;
    sigemptyset(&alarm_alone);
    sigaddset(&alarm_alone, SIGALRM);
    EXPECT(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    next_room();
    struct timespec *time = (struct timespec *)(room + 3 * PAGE), *rest = (struct timespec *)(room + 5 * PAGE);
    EXPECT(sigaction(SIGALRM, &action, NULL) == 0);
    page_out();
    alarm_ms(30);
    tell("read", read(ends[0], room, 10));
    tell("recv", recv(pair[0], room, 10, 0));
    tell("epoll_wait", epoll_wait(epoll, (struct epoll_event *)room, 4, 10000));
    tell("poll", poll((struct pollfd *)memset(room, 0xff, 8), 1, 10000));
    *(int *)room = 0;
    tell("futex", syscall(SYS_futex, room, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0));
    *time = (struct timespec){.tv_sec = 100};
    tell("nanosleep", nanosleep(time, rest));
    EXPECT(rest->tv_sec >= 90 && alarms >= 6);
    action.sa_flags = SA_RESTART;
    EXPECT(sigaction(SIGALRM, &action, NULL) == 0);
    pthread_t writer;
    for (int fd = 0; fd < 2; fd++) {
        pthread_sigmask(SIG_BLOCK, &alarm_alone, NULL);
        EXPECT(pthread_create(&writer, NULL, writes_later, (void *)(intptr_t)(fd ? pair[1] : ends[1])) == 0);
        pthread_sigmask(SIG_UNBLOCK, &alarm_alone, NULL);
        alarm_ms(30);
        tell(fd ? "recv that goes on" : "read that goes on", fd ? recv(pair[0], room, 10, 0) : read(ends[0], room, 10));
        EXPECT(memcmp(room, "late", 4) == 0 && alarms >= 2);
        pthread_join(writer, NULL);
    }
    tell("epoll_wait all the same", epoll_wait(epoll, (struct epoll_event *)room, 4, 10000));
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    close(ends[0]), close(ends[1]), close(pair[0]), close(pair[1]), close(epoll);
}

static void *dies_with_it(void *mutex) {
    EXPECT(pthread_mutex_lock(mutex) == 0);
    page_out();
    return NULL;
}

static void case_robust_words(void) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)(next_room() + 3 * PAGE);
    pthread_mutexattr_t attributes;
    pthread_t thread;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    for (int round = 0; round < 2; round++) {
        EXPECT(pthread_mutex_init(mutex, &attributes) == 0);
        EXPECT(pthread_create(&thread, NULL, dies_with_it, mutex) == 0 && pthread_join(thread, NULL) == 0);
        EXPECT(pthread_mutex_lock(mutex) == EOWNERDEAD && pthread_mutex_consistent(mutex) == 0);
        EXPECT(pthread_mutex_unlock(mutex) == 0 && pthread_mutex_destroy(mutex) == 0);
        pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_NONE);
    }
}

// Filters of sockets name their instructions elsewhere, and the length of one that is read counts instructions.
static void case_options(void) {
    struct sock_filter *filter = (struct sock_filter *)(next_room() + PAGE), *back = (struct sock_filter *)(room + 3 * PAGE);
    struct sock_fprog *program = (struct sock_fprog *)(room + 5 * PAGE);
    socklen_t *len = (socklen_t *)(room + 7 * PAGE);
    // Longer than a page: takes no more than three bytes of each datagram.
    enum { INSTRUCTIONS = PAGE / sizeof *filter + 88 };
    for (int i = 0; i < INSTRUCTIONS; i++) {
        filter[i] = (struct sock_filter){i < INSTRUCTIONS - 1 ? BPF_LD | BPF_IMM : BPF_RET | BPF_K, 0, 0, 3};
    }
    *program = (struct sock_fprog){INSTRUCTIONS, filter};
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    page_out();
    EXPECT(setsockopt(ends[1], SOL_SOCKET, SO_ATTACH_FILTER, program, sizeof *program) == 0);
    EXPECT(send(ends[0], "abcdef", 6, 0) == 6 && recv(ends[1], room + 9 * PAGE, 10, 0) == 3);
    *len = INSTRUCTIONS;
    page_out();
    EXPECT(getsockopt(ends[1], SOL_SOCKET, SO_GET_FILTER, back, len) == 0 && *len == INSTRUCTIONS);
    EXPECT(memcmp(back, filter, INSTRUCTIONS * sizeof *filter) == 0);
    close(ends[0]);
    close(ends[1]);
}

// A child that is traced from before it executes another program, as debuggers make them: stopped when it has.
static pid_t traced(int stops_itself) {
    pid_t child = stops_itself ? fork() : vfork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME);
        if (stops_itself) {
            raise(SIGSTOP);
        }
        execl("/bin/sleep", "sleep", "60", NULL);
        _exit(1);
    }
    int status;
    EXPECT(child > 0);
    if (stops_itself) {
        EXPECT(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
        EXPECT(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    return child;
}

// Registers that are read from another process by a vector, and signals that wait for it, by a structure.
static void case_traced(void) {
    struct iovec *vector = (struct iovec *)(next_room() + PAGE);
    struct __ptrace_peeksiginfo_args *which = (struct __ptrace_peeksiginfo_args *)(room + 3 * PAGE);
    siginfo_t *infos = (siginfo_t *)(room + 9 * PAGE);
    for (int stops_itself = 0; stops_itself < 2; stops_itself++) {
        pid_t child = traced(stops_itself);
        *vector = (struct iovec){room + 5 * PAGE, 2 * PAGE};
        page_out();
        EXPECT(ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, vector) == 0 && vector->iov_len == sizeof(struct user_regs_struct));
        EXPECT(((struct user_regs_struct *)vector->iov_base)->rip != 0);
        EXPECT(kill(child, SIGUSR1) == 0 && kill(child, SIGUSR2) == 0);
        *which = (struct __ptrace_peeksiginfo_args){.flags = PTRACE_PEEKSIGINFO_SHARED, .nr = 40};
        page_out();
        tell("peeked at", ptrace(PTRACE_PEEKSIGINFO, child, which, infos));
        EXPECT(infos[0].si_signo == SIGUSR1 && infos[1].si_signo == SIGUSR2);
        EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    }
}

// A child that is to be traced and faults, as debuggers try out what a machine does.
static void case_traced_faults(void) {
    for (int which = 0; which < 4; which++) {
        next_room();
        page_out();
        pid_t child = fork();
        if (child == 0) {
            volatile int zero = 0;
            ptrace(PTRACE_TRACEME);
            switch (which) {
            case 0: *(volatile int *)(uintptr_t)(zero + 8) = 1; break;
            case 1: __asm__ volatile("ud2"); break;
            case 2: __asm__ volatile("int3"); break;
            default: zero = which / zero;
            }
            _exit(50 + which);
        }
        int status;
        EXPECT(child > 0 && waitpid(child, &status, 0) == child);
        tell("faulted: stopped by", WIFSTOPPED(status) ? WSTOPSIG(status) : -status);
        if (WIFSTOPPED(status)) {
            // What stopped at a trap goes on behind it.
            EXPECT(ptrace(which == 2 ? PTRACE_CONT : PTRACE_KILL, child, NULL, NULL) == 0);
            EXPECT(waitpid(child, &status, 0) == child);
            tell("ended with", status);
        }
    }
}

// The argument of clone3 may be longer than what its kernel knows, if the rest is zero, and names a list of numbers.
static void case_made_children(void) {
    struct clone_args *new = (struct clone_args *)(next_room() + PAGE);
    pid_t *numbers = (pid_t *)(room + 3 * PAGE);
    for (unsigned longer = 0; longer < 3; longer++) {
        memset(new, 0, PAGE);
        new->exit_signal = SIGCHLD;
        ((char *)new)[sizeof *new + 7] = longer == 2;
        page_out();
        long child = syscall(SYS_clone3, new, sizeof *new + longer * 8);
        if (child == 0) {
            _exit(7);
        }
        int status = 0;
        EXPECT(child < 0 || (waitpid((pid_t)child, &status, 0) == child && WEXITSTATUS(status) == 7));
        tell("clone3", child < 0 ? child : 0);
    }
    memset(new, 0, PAGE);
    *new = (struct clone_args){.exit_signal = SIGCHLD, .set_tid = (uintptr_t)numbers, .set_tid_size = 1};
    *numbers = -1;
    page_out();
    tell("with a number that none can be", syscall(SYS_clone3, new, sizeof *new));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"counters", case_counters},
    {"children", case_children},
    {"connections", case_connections},
    {"datagrams", case_datagrams},
    {"descriptors", case_descriptors},
    {"signals_that_wait", case_signals_that_wait},
    {"watches", case_watches},
    {"queues", case_queues},
    {"terminals", case_terminals},
    {"old_values", case_old_values},
    {"counts", case_counts},
    {"long_ones", case_long_ones},
    {"faults", case_faults},
    {"interruptions", case_interruptions},
    {"robust_words", case_robust_words},
    {"options", case_options},
    {"traced", case_traced},
    {"traced-faults", case_traced_faults},
    {"made_children", case_made_children},
};

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: classes MIB\n");
        return 2;
    }
    size_t bytes = strtoull(argv[1], NULL, 10) << 20;
    ballast_words = bytes / 8;
    ballast = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    room = mmap(NULL, (rooms + 1) * (ROOM + PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(ballast != MAP_FAILED && room != MAP_FAILED);
    memset(room, 0, (rooms + 1) * (ROOM + PAGE));
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    EXPECT(pagemap >= 0);
    for (int round = 0; round < 2; round++) {
        page_out();
        is_pending = 0;
    }
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        case_name = cases[i].name;
        cases[i].run();
        printf("%s: right\n", case_name);
        fflush(stdout);
    }
    settle();
    fprintf(stderr, "classes: %u of %u calls found memory out\n", out, asked);
    return 0;
}
