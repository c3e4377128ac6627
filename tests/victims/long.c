// long: system calls that name more memory than the program may have.
//
//   long MIB [CASE...]
//
// Each case names MIB MiB in one call, or in several at once. Prints one line per case; a case that fails ends the program with 1.
#include "expect.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

// What is sent, and what is received into.
static char *from, *to;
static size_t bytes;

static uint64_t word_at(size_t page) {
    return page * 2654435761u + 12345;
}

static void fill(void) {
    for (size_t page = 0; page < bytes / PAGE; page++) {
        ((volatile uint64_t *)from)[page * WORDS] = word_at(page);
        ((volatile uint64_t *)to)[page * WORDS] = 0;
    }
}

static void check(void) {
    for (size_t page = 0; page < bytes / PAGE; page++) {
        EXPECT(((volatile uint64_t *)to)[page * WORDS] == word_at(page));
    }
}

static int pair[2];

// Control data come once, with the first bytes.
static void *receive_stream(void *unused) {
    (void)unused;
    size_t got = 0;
    int files = 0;
    while (got < bytes) {
        char control[CMSG_SPACE(sizeof(int))];
        struct iovec vectors[2] = {{to + got, 1}, {to + got + 1, bytes - got - 1}};
        struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t more = recvmsg(pair[1], &message, 0);
        EXPECT(more > 0);
        got += (size_t)more;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head) {
            EXPECT(head->cmsg_type == SCM_RIGHTS && close(*(int *)CMSG_DATA(head)) == 0);
            files++;
        }
    }
    EXPECT(files == 1);
    return NULL;
}

static void streams(void) {
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    fill();
    pthread_t receiver;
    EXPECT(pthread_create(&receiver, NULL, receive_stream, NULL) == 0);
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec vectors[3] = {{from, 5}, {from + 5, bytes - 100}, {from + bytes - 95, 95}};
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 3, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    *(int *)CMSG_DATA(head) = 0;
    EXPECT(sendmsg(pair[0], &message, 0) == (ssize_t)bytes);
    EXPECT(pthread_join(receiver, NULL) == 0);
    check();
    close(pair[0]);
    close(pair[1]);
}

// A datagram arrives whole in the longest buffer, and one that is too long is refused.
static void datagrams_of(int kind) {
    EXPECT(socketpair(AF_UNIX, kind, 0, pair) == 0);
    fill();
    struct iovec vectors[2] = {{from, 1}, {from + 1, bytes - 1}};
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
    EXPECT(send(pair[0], from, bytes, 0) == -1 && errno == EMSGSIZE);
    EXPECT(write(pair[0], from, bytes) == -1 && errno == EMSGSIZE);
    EXPECT(writev(pair[0], vectors, 2) == -1 && errno == EMSGSIZE);
    EXPECT(sendmsg(pair[0], &message, 0) == -1 && errno == EMSGSIZE);
    EXPECT(recv(pair[1], to, bytes, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    const ssize_t LEN = 30 * PAGE;
    for (int i = 0; i < 5; i++) {
        EXPECT(send(pair[0], from, (size_t)LEN, 0) == LEN);
        memset(to, 0, (size_t)LEN);
        struct iovec into[2] = {{to, 1}, {to + 1, bytes - 1}};
        struct msghdr got = {.msg_iov = into, .msg_iovlen = 2};
        struct sockaddr_un name;
        socklen_t name_len = sizeof name;
        ssize_t answer = i == 0   ? recv(pair[1], to, bytes, 0)
                         : i == 1 ? read(pair[1], to, bytes)
                         : i == 2 ? recvmsg(pair[1], &got, MSG_TRUNC)
                         : i == 3 ? readv(pair[1], into, 2)
                                  : recvfrom(pair[1], to, bytes, 0, (struct sockaddr *)&name, &name_len);
        EXPECT(answer == LEN && memcmp(to, from, (size_t)LEN) == 0);
    }
    close(pair[0]);
    close(pair[1]);
}

static void datagrams(void) {
    datagrams_of(SOCK_DGRAM);
    datagrams_of(SOCK_SEQPACKET);
    int far = socket(AF_INET, SOCK_DGRAM, 0), near = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, sender;
    socklen_t len = sizeof name;
    EXPECT(bind(far, (struct sockaddr *)&name, len) == 0 && getsockname(far, (struct sockaddr *)&name, &len) == 0);
    EXPECT(sendto(near, from, bytes, 0, (struct sockaddr *)&name, len) == -1 && errno == EMSGSIZE);
    EXPECT(sendto(near, from, 5 * PAGE, 0, (struct sockaddr *)&name, len) == 5 * PAGE);
    EXPECT(recvfrom(far, to, bytes, 0, (struct sockaddr *)&sender, &len) == 5 * PAGE && len == sizeof sender);
    EXPECT(sender.sin_family == AF_INET && memcmp(to, from, 5 * PAGE) == 0);
    close(far);
    close(near);
}

// Fewer messages may go at once, none is lost.
static void several(void) {
    enum { COUNT = 4 };
    EXPECT(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    struct iovec vectors[COUNT];
    struct mmsghdr messages[COUNT];
    size_t part = bytes / COUNT;
    for (int i = 0; i < COUNT; i++) {
        vectors[i] = (struct iovec){from + (size_t)i * part, (size_t)(i + 1) * 1000};
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vectors[i], .msg_iovlen = 1}};
    }
    EXPECT(sendmmsg(pair[0], messages, COUNT, 0) == COUNT);
    int got = 0;
    while (got < COUNT) {
        for (int i = got; i < COUNT; i++) {
            vectors[i] = (struct iovec){to + (size_t)i * part, part};
        }
        int more = recvmmsg(pair[1], messages + got, (unsigned)(COUNT - got), 0, NULL);
        EXPECT(more > 0);
        got += more;
    }
    for (int i = 0; i < COUNT; i++) {
        EXPECT(messages[i].msg_len == (unsigned)(i + 1) * 1000);
        EXPECT(memcmp(from + (size_t)i * part, to + (size_t)i * part, messages[i].msg_len) == 0);
    }
    close(pair[0]);
    close(pair[1]);
}

static void files(void) {
    fill();
    int file = memfd_create("long", 0);
    struct iovec out[2] = {{from, 3 * PAGE}, {from + 3 * PAGE, bytes - 3 * PAGE}}, in[2] = {{to, bytes / 2}, {to + bytes / 2, bytes / 2}};
    EXPECT(pwritev2(file, out, 2, 0, 0) == (ssize_t)bytes);
    EXPECT(preadv2(file, in, 2, 0, 0) == (ssize_t)bytes);
    check();
    EXPECT(lseek(file, 0, SEEK_CUR) == 0);
    memset(to, 0, bytes);
    EXPECT(preadv2(file, in, 2, -1, 0) == (ssize_t)bytes && lseek(file, 0, SEEK_CUR) == (off_t)bytes);
    check();
    close(file);
    int zero = open("/dev/zero", O_RDWR);
    EXPECT(read(zero, to, bytes) == (ssize_t)bytes && write(zero, from, bytes) == (ssize_t)bytes);
    for (size_t page = 0; page < bytes / PAGE; page++) {
        EXPECT(((volatile uint64_t *)to)[page * WORDS] == 0);
    }
    close(zero);
}

// Buffers that are never filled.
static void short_answers(void) {
    EXPECT(readlink("/proc/self/exe", to, bytes) > 0 && readlinkat(AT_FDCWD, "/proc/self/exe", to, bytes) > 0);
    EXPECT(getcwd(to, bytes) == to);
    int directory = open("/proc/self", O_RDONLY | O_DIRECTORY);
    EXPECT(syscall(SYS_getdents64, directory, to, bytes) > 0);
    close(directory);
    int event = eventfd(7, 0), set = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = 99};
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, event, &wanted) == 0);
    EXPECT(epoll_wait(set, (struct epoll_event *)to, (int)(bytes / 12), 0) == 1 && ((struct epoll_event *)to)->data.u64 == 99);
    EXPECT(read(event, to, bytes) == 8 && *(uint64_t *)to == 7);
    close(event);
    close(set);
}

// Who is told of edges (EPOLLET) takes a short read for all that there was: one that does not block reads on to the end.
static void read_to_the_edge(int in, int out, size_t there) {
    enum { VECTORS = 32, VECTOR = 65536 };
    struct iovec vectors[VECTORS];
    for (int index = 0; index < VECTORS; index++) {
        vectors[index] = (struct iovec){to + (size_t)index * VECTOR, VECTOR};
    }
    EXPECT(write(out, from, there) == (ssize_t)there);
    EXPECT(readv(in, vectors, VECTORS) == (ssize_t)there);
    EXPECT(memcmp(from, to, there) == 0 && readv(in, vectors, VECTORS) == -1 && errno == EAGAIN);
    EXPECT(write(out, from, there) == (ssize_t)there);
    EXPECT(read(in, to, bytes) == (ssize_t)there);
    EXPECT(memcmp(from, to, there) == 0 && read(in, to, bytes) == -1 && errno == EAGAIN);
}

static void *read_all(void *argument) {
    size_t left = *(size_t *)argument;
    while (left) {
        ssize_t more = read(pair[0], to, left < bytes ? left : bytes);
        EXPECT(more > 0);
        left -= (size_t)more;
    }
    return NULL;
}

static void transfer(size_t count) {
    pthread_t reader;
    EXPECT(pthread_create(&reader, NULL, read_all, &count) == 0);
    for (size_t left = count; left;) {
        ssize_t sent = write(pair[1], from, left < bytes ? left : bytes);
        EXPECT(sent > 0);
        left -= (size_t)sent;
    }
    EXPECT(pthread_join(reader, NULL) == 0);
}

// One call takes all that a socket has, be it a MiB: by a message of several vectors or by one buffer, whether it would wait or not.
static void take_what_is_there(int kind) {
    const int MUCH = 1 << 20;
    int there = 0;
    EXPECT(send(pair[1], from, (size_t)MUCH, 0) == MUCH);
    for (int look = 0; look < 500 && there < MUCH; look++) {
        usleep(10000);
        EXPECT(ioctl(pair[0], FIONREAD, &there) == 0);
    }
    EXPECT(there == MUCH);
    struct iovec vectors[3] = {{to, 1000}, {to + 1000, 700000}, {to + 701000, bytes - 701000}};
    char control[64];
    struct sockaddr_in name;
    struct msghdr message = {.msg_name = &name, .msg_namelen = sizeof name, .msg_iov = vectors, .msg_iovlen = 3,
                             .msg_control = control, .msg_controllen = sizeof control};
    int flags = kind & 1 ? MSG_DONTWAIT : 0;
    ssize_t got = kind & 2 ? recv(pair[0], to, bytes, flags) : recvmsg(pair[0], &message, flags);
    EXPECT(got == MUCH && memcmp(from, to, (size_t)MUCH) == 0);
    EXPECT(kind & 2 || (message.msg_controllen == 0 && message.msg_flags == 0));
    EXPECT(recv(pair[0], to, bytes, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

static void sockets(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof name;
    EXPECT(bind(listener, (struct sockaddr *)&name, len) == 0 && getsockname(listener, (struct sockaddr *)&name, &len) == 0);
    EXPECT(listen(listener, 1) == 0);
    pair[1] = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(connect(pair[1], (struct sockaddr *)&name, len) == 0);
    pair[0] = accept(listener, NULL, NULL);
    EXPECT(pair[0] >= 0);
    for (int kind = 0; kind < 4; kind++) {
        // Buffers of TCP grow with what is read.
        transfer(64 << 20);
        take_what_is_there(kind);
    }
    close(listener);
    close(pair[0]);
    close(pair[1]);
}

static void edges(void) {
    EXPECT(pipe2(pair, O_NONBLOCK) == 0 && fcntl(pair[0], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
    read_to_the_edge(pair[0], pair[1], 1 << 20);
    close(pair[0]);
    close(pair[1]);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    read_to_the_edge(pair[0], pair[1], 100000);
    close(pair[0]);
    close(pair[1]);
}

static void *wait_for_a_byte(void *argument) {
    size_t index = (size_t)argument;
    char *into = to + index * (bytes / 64);
    EXPECT(read(pair[0], into, bytes / 64) == 1 && *into == 'x');
    return NULL;
}

// Threads that wait in calls hold all of it together.
static void many_at_once(void) {
    // One that keeps what is written together apart.
    EXPECT(pipe2(pair, O_DIRECT) == 0);
    fill();
    pthread_t threads[64];
    for (size_t i = 0; i < 64; i++) {
        EXPECT(pthread_create(&threads[i], NULL, wait_for_a_byte, (void *)i) == 0);
    }
    usleep(100000);
    fill();
    for (int i = 0; i < 64; i++) {
        EXPECT(write(pair[1], "x", 1) == 1);
        usleep(1000);
    }
    for (int i = 0; i < 64; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    close(pair[0]);
    close(pair[1]);
}

// Both lists are gone through, whose vectors end at different places.
static void another_process(void) {
    fill();
    size_t third = bytes / 3;
    struct iovec near[3] = {{to, 3 * PAGE + 5}, {to, 0}, {to + 3 * PAGE + 5, bytes - 3 * PAGE - 5}};
    struct iovec far[2] = {{from, third}, {from + third, bytes - third}};
    EXPECT(process_vm_readv(getpid(), near, 3, far, 2, 0) == (ssize_t)bytes);
    check();
    memset(to, 0, bytes);
    EXPECT(process_vm_writev(getpid(), far, 2, near, 3, 0) == (ssize_t)bytes);
    check();
    EXPECT(process_vm_readv(getpid(), near, 3, far, 1, 0) == (ssize_t)third);
    EXPECT(process_vm_readv(getpid(), near, 3, &(struct iovec){NULL, bytes}, 1, 0) == -1 && errno == EFAULT);
    EXPECT(process_vm_readv(getpid(), near, 3, far, 2, 1) == -1 && errno == EINVAL);
    EXPECT(process_vm_readv(INT32_MAX, near, 3, far, 2, 0) == -1 && errno == ESRCH);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {
        {"streams", streams},
        {"datagrams", datagrams},
        {"several", several},
        {"files", files},
        {"short_answers", short_answers},
        {"edges", edges},
        {"sockets", sockets},
        {"many_at_once", many_at_once},
        {"another_process", another_process},
    };
    bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 24) << 20;
    from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(from != MAP_FAILED && to != MAP_FAILED);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        case_name = CASES[i].name;
        int is_wanted = argc == 2;
        for (int at = 2; at < argc; at++) {
            is_wanted |= strcmp(argv[at], case_name) == 0;
        }
        if (!is_wanted) {
            continue;
        }
        fill();
        CASES[i].run();
        printf("%s: right\n", case_name);
        fflush(stdout);
    }
    return 0;
}
