// calls: what system calls cost that never sleep, in a program that pages or does not.
//
//   calls MIB
//
// Writes MIB MiB of memory first, so that under a smaller budget the program pages from then on; what the calls use stays in memory.
// Prints a line for each call: its name, and the median of the nanoseconds that one takes, over batches of 64.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, BATCHES = 4000, BYTES = 64 };

static int pipes[2], sockets[2], epoll;
static char buffer[BYTES];
static uint32_t word;
static uint64_t samples[BATCHES];

static void must(int is_right, const char *what) {
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int nothing(void) { return 1; }

static int call_getpid(void) { return getpid() > 0; }

static int call_clock(void) {
    struct timespec now;
    return clock_gettime(CLOCK_MONOTONIC, &now) == 0;
}

static int call_write(void) { return write(pipes[1], buffer, BYTES) == BYTES; }
static int call_read(void) { return read(pipes[0], buffer, BYTES) == BYTES; }
static int call_send(void) { return send(sockets[0], buffer, BYTES, 0) == BYTES; }
static int call_recv(void) { return recv(sockets[1], buffer, BYTES, 0) == BYTES; }
static int call_futex(void) { return syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 0; }

static int call_epoll(void) {
    struct epoll_event events[8];
    return epoll_wait(epoll, events, 8, 0) == 1;
}

static int call_writev(void) {
    struct iovec pieces[2] = {{buffer, BYTES / 2}, {buffer + BYTES / 2, BYTES / 2}};
    return writev(pipes[1], pieces, 2) == BYTES;
}

static int call_stat(void) {
    struct stat status;
    return stat("/", &status) == 0;
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

// `before` and `after` surround each batch and are not timed: they fill what the call empties, and empty what it fills.
static void measure(const char *name, int (*call)(void), int (*before)(void), int (*after)(void)) {
    for (int batch = 0; batch < BATCHES; batch++) {
        for (int i = 0; i < BATCH; i++) {
            must(before(), name);
        }
        uint64_t start = now_ns();
        for (int i = 0; i < BATCH; i++) {
            must(call(), name);
        }
        samples[batch] = now_ns() - start;
        for (int i = 0; i < BATCH; i++) {
            must(after(), name);
        }
    }
    qsort(samples, BATCHES, sizeof *samples, compare);
    printf("%s %llu\n", name, (unsigned long long)(samples[BATCHES / 2] / BATCH));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: calls MIB\n");
        return 2;
    }
    size_t bytes = strtoull(argv[1], NULL, 10) << 20;
    if (bytes != 0) {
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(memory != MAP_FAILED, "mmap");
        for (size_t at = 0; at < bytes; at += sizeof at) {
            memcpy(memory + at, &at, sizeof at);
        }
    }
    must(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "descriptors");
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(1, 0), &event) == 0, "epoll");
    measure("getpid", call_getpid, nothing, nothing);
    measure("clock_gettime", call_clock, nothing, nothing);
    measure("write", call_write, nothing, call_read);
    measure("read", call_read, call_write, nothing);
    measure("send", call_send, nothing, call_recv);
    measure("recv", call_recv, call_send, nothing);
    measure("futex", call_futex, nothing, nothing);
    measure("epoll_wait", call_epoll, nothing, nothing);
    measure("writev", call_writev, nothing, call_read);
    measure("stat", call_stat, nothing, nothing);
    return 0;
}
