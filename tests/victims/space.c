// space: mappings, threads and locks of which a pager must know more than their addresses.
//
//   space CASE MIB
//
// MIB MiB of ballast are rewritten before and after what a case does, so that under a budget well below it everything that the
// case has prepared is out. Prints "CASE: right" (exit status 0) if all was as it is natively; a wrong byte or answer: 1.
#include "storm.h"

#include <alloca.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = 512, PAGES = 256 };
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static uint64_t *ballast;
static uint64_t ballast_pages, version;

static void *map(uint64_t pages) {
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    return memory;
}

static void push_out(void) {
    for (int round = 0; round < 2; round++) {
        version++;
        for (uint64_t page = 0; page < ballast_pages; page++) {
            for (unsigned i = 0; i < WORDS; i += 64) {
                ballast[page * WORDS + i] = (page + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537 + i);
            }
        }
    }
}

static void check_ballast(void) {
    for (uint64_t page = 0; page < ballast_pages; page++) {
        for (unsigned i = 0; i < WORDS; i += 64) {
            EXPECT(((volatile uint64_t *)ballast)[page * WORDS + i] == ((page + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537 + i)));
        }
    }
}

static void fill(unsigned char *memory, uint64_t pages, unsigned stamp) {
    for (uint64_t page = 0; page < pages; page++) {
        memset(memory + page * PAGE, (int)(1 + (page + stamp) % 250), PAGE);
    }
}

static int is_filled(const unsigned char *memory, uint64_t page, unsigned stamp) {
    const volatile unsigned char *bytes = memory + page * PAGE;
    for (unsigned i = 0; i < PAGE; i++) {
        if (bytes[i] != (unsigned char)(1 + (page + stamp) % 250)) {
            return 0;
        }
    }
    return 1;
}

static int is_zero(const unsigned char *memory, uint64_t page) {
    const volatile unsigned char *bytes = memory + page * PAGE;
    for (unsigned i = 0; i < PAGE; i++) {
        if (bytes[i] != 0) {
            return 0;
        }
    }
    return 1;
}

// ---- content

static void child_of_wiped_memory(int (*copy)(void)) {
    unsigned char *memory = map(3 * PAGES), *wiped = memory + PAGES * PAGE;
    EXPECT(madvise(wiped, PAGES * PAGE, MADV_WIPEONFORK) == 0);
    fill(memory, 3 * PAGES, 7);
    push_out();
    int child = copy();
    EXPECT(child >= 0);
    for (uint64_t page = 0; page < 3 * PAGES; page++) {
        int is_wiped = child == 0 && page >= PAGES && page < 2 * PAGES;
        EXPECT(is_wiped ? is_zero(memory, page) : is_filled(memory, page, 7));
    }
    if (child == 0) {
        wiped[5] = 1;
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(is_filled(wiped, 0, PAGES + 7));
}

static int fork_by_libc(void) {
    return fork();
}

static int fork_by_clone(void) {
    return (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static void wipe_on_fork(void) {
    child_of_wiped_memory(fork_by_libc);
}

static void wipe_on_clone(void) {
    child_of_wiped_memory(fork_by_clone);
}

// As soon as the copy is made, another thread asks for the memory to be copied again. The list of mappings is long in front of it: who
// looks after the copy what the child gets comes too late.
enum { IN_FRONT = 4000 };
static unsigned char *to_wipe;
static volatile int is_forking;

static void *has_it_copied(void *arg) {
    char path[64], text[16];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", *(pid_t *)arg);
    int children = open(path, O_RDONLY);
    while (is_forking && (children < 0 || pread(children, text, sizeof text, 0) < 1)) {
    }
    EXPECT(madvise(to_wipe, PAGES * PAGE, MADV_KEEPONFORK) == 0);
    close(children);
    return NULL;
}

static void wiped_beside_a_fork(void) {
    pid_t main_thread = getpid();
    uint64_t in_front = 2 * IN_FRONT * PAGE;
    unsigned char *memory = mmap(NULL, in_front + PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    for (unsigned i = 0; i < IN_FRONT; i++) {
        EXPECT(mprotect(memory + 2 * i * PAGE, PAGE, PROT_READ) == 0);
    }
    to_wipe = memory + in_front;
    EXPECT(mprotect(to_wipe, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
    fill(to_wipe, PAGES, 7);
    for (int round = 0; round < 4; round++) {
        push_out();
        EXPECT(madvise(to_wipe, PAGES * PAGE, MADV_WIPEONFORK) == 0);
        pthread_t thread;
        is_forking = 1;
        EXPECT(pthread_create(&thread, NULL, has_it_copied, &main_thread) == 0);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            for (uint64_t page = 0; page < PAGES; page++) {
                EXPECT(is_zero(to_wipe, page));
            }
            _exit(0);
        }
        is_forking = 0;
        int status;
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        EXPECT(pthread_join(thread, NULL) == 0);
    }
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(is_filled(to_wipe, page, 7));
    }
}

static sigjmp_buf back;

static void on_fault(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static int faults(const volatile unsigned char *byte) {
    if (sigsetjmp(back, 1) == 0) {
        (void)*byte;
        return 0;
    }
    return 1;
}

static int advise_by_libc(void *memory, size_t bytes, int advice) {
    return madvise(memory, bytes, advice);
}

static int advise_by_syscall(void *memory, size_t bytes, int advice) {
    return (int)syscall(SYS_madvise, memory, bytes, advice);
}

// As about another process, by a descriptor of its own.
static int advise_by_process(void *memory, size_t bytes, int advice) {
    struct iovec place = {memory, bytes};
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    EXPECT(own >= 0);
    ssize_t advised = process_madvise(own, &place, 1, (unsigned)advice, 0);
    int error = errno;
    EXPECT(close(own) == 0);
    errno = error;
    return advised == (ssize_t)bytes ? 0 : -1;
}

// Pages inside memory that is out become guards; what lies around them is read ahead; then they are pages again.
static void guards(int (*advise)(void *, size_t, int)) {
    signal(SIGSEGV, on_fault);
    unsigned char *memory = map(PAGES);
    fill(memory, PAGES, 3);
    push_out();
    unsigned char *guard = memory + 100 * PAGE;
    if (advise(guard, 8 * PAGE, MADV_GUARD_INSTALL) && errno == EINVAL) {
        return; // a kernel before 6.13
    }
    for (uint64_t page = 0; page < PAGES; page++) {
        int is_guard = page >= 100 && page < 108;
        EXPECT(is_guard ? faults(memory + page * PAGE) : is_filled(memory, page, 3));
    }
    push_out();
    EXPECT(faults(guard) && faults(guard + 7 * PAGE));
    EXPECT(advise(guard, 8 * PAGE, MADV_GUARD_REMOVE) == 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(page >= 100 && page < 108 ? is_zero(memory, page) : is_filled(memory, page, 3));
    }
    // Over a hole the kernel makes the guards, and says ENOMEM.
    fill(memory, PAGES, 4);
    EXPECT(munmap(memory + 104 * PAGE, 2 * PAGE) == 0);
    push_out();
    EXPECT(advise(guard, 8 * PAGE, MADV_GUARD_INSTALL) == -1 && errno == ENOMEM);
    EXPECT(faults(guard) && faults(guard + 7 * PAGE));
    EXPECT(advise(guard, 4 * PAGE, MADV_GUARD_REMOVE) == 0 && advise(guard + 6 * PAGE, 2 * PAGE, MADV_GUARD_REMOVE) == 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(page == 104 || page == 105 || (page >= 100 && page < 108 ? is_zero(memory, page) : is_filled(memory, page, 4)));
    }
}

static void guard_pages(void) {
    guards(advise_by_libc);
}

// One thread makes guards of memory that is out, piece by piece. Between any two of its system calls a signal stops it while another one
// forks: the child finds a piece as it was, or a guard with nothing under it.
enum { PIECE = 4, FORKS = 24 };
static unsigned char *guarded;
static volatile uint64_t piece;
static volatile int is_stopped, may_go_on;

static void on_stop(int number) {
    (void)number;
    is_stopped = 1;
    while (!may_go_on) {
        usleep(100);
    }
    is_stopped = 0;
}

static void *makes_guards(void *arg) {
    for (uint64_t pieces = *(uint64_t *)arg; piece < pieces; piece++) {
        EXPECT(madvise(guarded + piece * PIECE * PAGE, PIECE * PAGE, MADV_GUARD_INSTALL) == 0);
    }
    return NULL;
}

static int is_old_or_a_guard(unsigned char *memory, uint64_t first) {
    int guards = 0, old = 0;
    for (uint64_t page = first; page < first + PIECE; page++) {
        if (faults(memory + page * PAGE)) {
            guards++;
        } else {
            old += is_filled(memory, page, 5);
        }
    }
    if (guards == 0) {
        return old == PIECE;
    }
    int is_empty = madvise(memory + first * PAGE, PIECE * PAGE, MADV_GUARD_REMOVE) == 0;
    for (uint64_t page = first; page < first + PIECE; page++) {
        is_empty &= is_zero(memory, page);
    }
    return guards == PIECE && is_empty;
}

static void guards_beside_a_fork(pthread_t thread) {
    is_stopped = may_go_on = 0;
    EXPECT(pthread_kill(thread, SIGUSR1) == 0);
    while (!is_stopped) {
        usleep(20);
    }
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        for (uint64_t near = piece > 2 ? piece - 2 : 0; near <= piece; near++) {
            EXPECT(is_old_or_a_guard(guarded, near * PIECE));
        }
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    may_go_on = 1;
    while (is_stopped) {
        usleep(20);
    }
}

static void guards_and_forks(void) {
    signal(SIGSEGV, on_fault);
    signal(SIGUSR1, on_stop);
    pthread_t thread;
    uint64_t pages = ballast_pages / 2, pieces = pages / PIECE - 1;
    guarded = map(pages);
    if (madvise(guarded, PAGE, MADV_GUARD_INSTALL) && errno == EINVAL) {
        return; // a kernel before 6.13
    }
    EXPECT(madvise(guarded, PAGE, MADV_GUARD_REMOVE) == 0);
    fill(guarded, pages, 5);
    push_out();
    EXPECT(pthread_create(&thread, NULL, makes_guards, &pieces) == 0);
    for (int forks = 0; forks < FORKS && piece + 100 < pieces; forks++) {
        guards_beside_a_fork(thread);
    }
    EXPECT(pthread_join(thread, NULL) == 0);
}

// More than the budget in all, of which nothing is ever filled.
static void mapped_only_before(void) {
    for (int round = 0; round < 4; round++) {
        map(ballast_pages / 4);
        usleep(2000);
    }
}

// Arrays that malloc has mapped for itself, of which nobody is told, are filled by several threads at once, as by OpenMP.
enum { FILLERS = 4 };
static uint64_t *arrays[3];

static void *fills_a_part(void *argument) {
    uint64_t part = (uintptr_t)argument, words = ballast_pages * WORDS;
    for (unsigned array = 0; array < 3; array++) {
        for (uint64_t i = words / FILLERS * part; i < words / FILLERS * (part + 1); i++) {
            arrays[array][i] = i * 3 + array;
        }
    }
    return NULL;
}

static void first_threads(void) {
    pthread_t threads[FILLERS];
    for (unsigned array = 0; array < 3; array++) {
        arrays[array] = malloc(ballast_pages * PAGE);
        EXPECT(arrays[array]);
    }
    for (uintptr_t i = 0; i < FILLERS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, fills_a_part, (void *)i) == 0);
    }
    for (unsigned i = 0; i < FILLERS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    for (unsigned array = 0; array < 3; array++) {
        for (uint64_t i = 0; i < ballast_pages * WORDS; i++) {
            EXPECT(arrays[array][i] == i * 3 + array);
        }
    }
}

// Threads read memory that is out while another maps something else over half of it, again and again: who waits for a page that is
// replaced meanwhile finds the new one.
enum { READERS = 6, REPLACED = 2048 };
static volatile int has_ended;

static void *reads_all(void *argument) {
    uint64_t state = (uintptr_t)argument + 1;
    while (!has_ended) {
        state = state * 6364136223846793005u + 1;
        uint64_t page = (state >> 33) % REPLACED, word = *(volatile uint64_t *)(guarded + page * PAGE);
        EXPECT(word == page + 1 || (page >= REPLACED / 2 && word == 0));
    }
    return NULL;
}

static void replaced_under_readers(void) {
    guarded = map(REPLACED);
    for (uint64_t page = 0; page < REPLACED; page++) {
        *(uint64_t *)(guarded + page * PAGE) = page + 1;
    }
    push_out();
    pthread_t threads[READERS];
    for (uintptr_t i = 0; i < READERS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, reads_all, (void *)i) == 0);
    }
    unsigned char *upper = guarded + REPLACED / 2 * PAGE;
    for (int round = 0; round < 100; round++) {
        int unsaid = round & 1 ? MAP_NORESERVE : 0;
        EXPECT(mmap(upper, REPLACED / 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | unsaid, -1, 0) == upper);
        for (uint64_t page = REPLACED / 2; round % 3 == 0 && page < REPLACED; page += 2) {
            *(uint64_t *)(guarded + page * PAGE) = page + 1;
        }
        if (round % 10 == 0) {
            push_out();
        }
    }
    has_ended = 1;
    for (unsigned i = 0; i < READERS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
}

// Memory that is mapped while others are paged is managed before it is filled, also if as much was unmapped before.
static void fresh_memory(void) {
    for (int round = 1; round <= 20; round++) {
        uint64_t pages = ballast_pages / 2;
        unsigned char *memory = map(pages);
        fill(memory, pages, (unsigned)round);
        usleep(1000 * (round % 4));
        for (uint64_t page = 0; page < pages; page++) {
            EXPECT(is_filled(memory, page, (unsigned)round));
        }
        EXPECT(munmap(memory, pages * PAGE) == 0);
    }
}

static void *waits_for_the_end(void *arg) {
    pthread_barrier_wait(arg);
    return NULL;
}

// A thread is interrupted as soon as it exists, and its handler waits for a fork: nothing that it does before its own code takes a lock
// that fork needs.
static void fresh_threads(void) {
    pthread_barrier_t end;
    signal(SIGUSR1, on_stop);
    EXPECT(pthread_barrier_init(&end, NULL, 2) == 0);
    for (int round = 0; round < 1500; round++) {
        pthread_t thread;
        is_stopped = may_go_on = 0;
        EXPECT(pthread_create(&thread, NULL, waits_for_the_end, &end) == 0);
        for (volatile int spun = 0; spun < round % 100 * 50; spun++) {
        }
        EXPECT(pthread_kill(thread, SIGUSR1) == 0);
        while (!is_stopped) {
            sched_yield();
        }
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            _exit(0);
        }
        int status;
        may_go_on = 1;
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        pthread_barrier_wait(&end);
        EXPECT(pthread_join(thread, NULL) == 0);
    }
}

static void guard_pages_by_syscall(void) {
    guards(advise_by_syscall);
}

// A guard is made by several calls, each of which a signal may come before.
static void guard_pages_and_signals(void) {
    storm_begin();
    for (int round = 0; round < 20; round++) {
        guards(advise_by_syscall);
    }
}

static void guard_pages_by_process(void) {
    guards(advise_by_process);
    // What is wrong with one of several places is said before anything is done.
    unsigned char *memory = map(2);
    fill(memory, 2, 6);
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec places[] = {{memory, PAGE}, {memory + 1, 0}, {memory + PAGE, PAGE}, {memory, (size_t)-1}};
    EXPECT(process_madvise(own, places, 4, MADV_DONTNEED, 0) == -1);
    EXPECT(is_filled(memory, 0, 6) && is_filled(memory, 1, 6));
    if (process_madvise(own, places, 3, MADV_DONTNEED, 0) == 2 * PAGE) {
        EXPECT(is_zero(memory, 0) && is_zero(memory, 1));
    }
    EXPECT(close(own) == 0);
}

// Pages lent to a pipe by the raw call; then the memory is needed for something else.
static void raw_vmsplice(void) {
    int ends[2];
    unsigned char *memory = map(16), *found = map(16);
    fill(memory, 16, 9);
    EXPECT(pipe(ends) == 0);
    EXPECT(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) >= 0);
    struct iovec piece = {memory, 16 * PAGE};
    EXPECT(syscall(SYS_vmsplice, ends[1], &piece, 1, 0) == 16 * PAGE);
    push_out();
    check_ballast();
    for (size_t done = 0; done < 16 * PAGE;) {
        ssize_t count = read(ends[0], found + done, 16 * PAGE - done);
        EXPECT(count > 0);
        done += (size_t)count;
    }
    for (uint64_t page = 0; page < 16; page++) {
        EXPECT(is_filled(found, page, 9));
    }
}

// The receiver takes little at a time: what it has not taken stays with the sender, by reference.
static void tcp_pair(int ends[2]) {
    int little = 4096, much = 16 << 20;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof little) == 0);
    EXPECT(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof much) == 0);
    EXPECT(connect(ends[0], (struct sockaddr *)&address, sizeof address) == 0);
    ends[1] = accept(listener, NULL, NULL);
    EXPECT(ends[1] >= 0);
    close(listener);
}

static void receive(int end, uint64_t pages, unsigned stamp) {
    unsigned char *found = map(pages);
    for (size_t done = 0; done < pages * PAGE;) {
        ssize_t count = recv(end, found + done, pages * PAGE - done, 0);
        EXPECT(count > 0);
        done += (size_t)count;
    }
    for (uint64_t page = 0; page < pages; page++) {
        EXPECT(is_filled(found, page, stamp));
    }
}

// A program that asks for zero copy by the raw call must do without it, or get the bytes that it sent.
static void raw_zerocopy(void) {
    int ends[2], one = 1;
    unsigned char *memory = map(PAGES);
    fill(memory, PAGES, 11);
    tcp_pair(ends);
    int flags = syscall(SYS_setsockopt, ends[0], SOL_SOCKET, 60 /* SO_ZEROCOPY */, &one, sizeof one) == 0 ? 0x4000000 : 0;
    EXPECT(send(ends[0], memory, PAGES * PAGE, flags) == PAGES * PAGE);
    push_out();
    check_ballast();
    receive(ends[1], PAGES, 11);
}

// IORING_OP_SEND_ZC (or IORING_OP_SEND where that is missing) from memory that is then paged.
static void ring_send_zc(void) {
    int ends[2];
    unsigned char *memory = map(PAGES);
    tcp_pair(ends);
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) {
        return;
    }
    unsigned char *rings = mmap(NULL, params.sq_off.array + params.sq_entries * 4 + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, 0);
    struct io_uring_sqe *sqe = mmap(NULL, params.sq_entries * sizeof *sqe, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, 0x10000000);
    EXPECT(rings != MAP_FAILED && (void *)sqe != MAP_FAILED);
    fill(memory, PAGES, 13);
    *sqe = (struct io_uring_sqe){.opcode = 47 /* IORING_OP_SEND_ZC */, .fd = ends[0], .addr = (uintptr_t)memory, .len = PAGES * PAGE};
    ((uint32_t *)(rings + params.sq_off.array))[0] = 0;
    __atomic_store_n((uint32_t *)(rings + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    EXPECT(syscall(SYS_io_uring_enter, ring, 1, 1, 1 /* IORING_ENTER_GETEVENTS */, NULL, 0) == 1);
    struct io_uring_cqe *cqe = (void *)(rings + params.cq_off.cqes);
    EXPECT(cqe->res == PAGES * PAGE);
    push_out();
    check_ballast();
    receive(ends[1], PAGES, 13);
}

// A process that shares the memory goes on when the one that began with it has ended.
static unsigned char *shared;
static int report[2];

static int goes_on(void *arg) {
    (void)arg;
    while (getppid() != 1 && syscall(SYS_getppid) == *(volatile int *)(shared + PAGES * PAGE)) {
        usleep(1000);
    }
    usleep(50000);
    for (uint64_t page = 0; page < PAGES; page++) {
        if (!is_filled(shared, page, 21)) {
            char wrong = 'w';
            _exit(write(report[1], &wrong, 1) != 1);
        }
    }
    char right = 'r';
    _exit(write(report[1], &right, 1) != 1);
}

// Three answers are right: the call is refused, the bytes are right, or the one that goes on is ended. Not: other bytes.
static void outlives_its_maker(void) {
    EXPECT(pipe(report) == 0);
    int maker = fork();
    EXPECT(maker >= 0);
    if (maker == 0) {
        ballast_pages /= 2;
        shared = map(PAGES + 1);
        fill(shared, PAGES, 21);
        *(int *)(shared + PAGES * PAGE) = getpid();
        unsigned char *stack = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        push_out();
        int child = clone(goes_on, stack + 64 * PAGE, CLONE_VM | CLONE_FILES, NULL);
        if (child < 0) {
            char refused = 'n';
            EXPECT(write(report[1], &refused, 1) == 1);
        }
        _exit(0);
    }
    int status;
    EXPECT(waitpid(maker, &status, 0) == maker && status == 0);
    close(report[1]);
    char answer = 'e';
    ssize_t count = read(report[0], &answer, 1);
    EXPECT(count == 0 || answer != 'w');
}

// ---- threads

static void *ends_at_once(void *arg) {
    volatile unsigned char local[2 * PAGE];
    local[0] = (unsigned char)(uintptr_t)arg;
    local[2 * PAGE - 1] = local[0];
    return arg;
}

static volatile int is_over;

static void *rewrites(void *arg) {
    (void)arg;
    while (!is_over) {
        push_out();
    }
    return NULL;
}

// What the kernel writes at the end of a thread is written without waiting for a page.
static void short_threads(void) {
    enum { AT_ONCE = 64, ROUNDS = 60 };
    pthread_t writer, threads[AT_ONCE];
    EXPECT(pthread_create(&writer, NULL, rewrites, NULL) == 0);
    for (uintptr_t round = 0; round < ROUNDS; round++) {
        for (uintptr_t i = 0; i < AT_ONCE; i++) {
            EXPECT(pthread_create(&threads[i], NULL, ends_at_once, (void *)(round + i)) == 0);
        }
        for (uintptr_t i = 0; i < AT_ONCE; i++) {
            void *answer;
            EXPECT(pthread_join(threads[i], &answer) == 0 && answer == (void *)(round + i));
        }
    }
    is_over = 1;
    EXPECT(pthread_join(writer, NULL) == 0);
}

// A thread ends by the raw call, far down its stack, so that nothing but the kernel touches its control block. (With restartable
// sequences the kernel does so all the time: the test runs it without.)
static pthread_barrier_t barrier;
static volatile int may_end;

static __attribute__((noinline)) void rests_and_ends(void) {
    struct timespec a_while = {.tv_nsec = 1000000};
    while (!may_end) {
        syscall(SYS_nanosleep, &a_while, NULL);
    }
    syscall(SYS_exit, 0);
}

static void *ends_by_the_raw_call(void *arg) {
    volatile unsigned char frame[1 << 16];
    frame[0] = (unsigned char)(uintptr_t)arg;
    pthread_barrier_wait(&barrier);
    rests_and_ends();
    return (void *)(uintptr_t)frame[0];
}

static void sleeping_threads(void) {
    enum { THREADS = 32 };
    pthread_t threads[THREADS];
    EXPECT(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, ends_by_the_raw_call, NULL) == 0);
    }
    pthread_barrier_wait(&barrier);
    push_out();
    may_end = 1;
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
}

// Exits, cancellation and their handlers, with what is unwound out of memory.
static int unwound;

static void on_unwinding(void *arg) {
    unwound += (int)(intptr_t)arg;
}

static void *exits_by_unwinding(void *arg) {
    pthread_cleanup_push(on_unwinding, (void *)1);
    pthread_exit(arg);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *waits_to_be_cancelled(void *arg) {
    pthread_cleanup_push(on_unwinding, (void *)2);
    pthread_barrier_wait(&barrier);
    for (;;) {
        pause();
    }
    pthread_cleanup_pop(0);
    return arg;
}

static void unwinding_threads(void) {
    pthread_t thread;
    void *answer;
    EXPECT(pthread_create(&thread, NULL, exits_by_unwinding, &unwound) == 0);
    EXPECT(pthread_join(thread, &answer) == 0 && answer == &unwound && unwound == 1);
    EXPECT(pthread_barrier_init(&barrier, NULL, 2) == 0);
    EXPECT(pthread_create(&thread, NULL, waits_to_be_cancelled, NULL) == 0);
    pthread_barrier_wait(&barrier);
    push_out();
    EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, &answer) == 0);
    EXPECT(answer == PTHREAD_CANCELED && unwound == 3);
}

struct robust {
    _Alignas(PAGE) pthread_mutex_t mutex;
};

static void *dies_with_mutexes(void *arg) {
    struct robust *robust = arg;
    for (int i = 0; i < 64; i++) {
        EXPECT(pthread_mutex_lock(&robust[i].mutex) == 0);
    }
    push_out();
    syscall(SYS_exit, 0);
    return NULL;
}

static void robust_mutexes(void) {
    struct robust *robust = map(64);
    pthread_mutexattr_t attributes;
    EXPECT(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    for (int i = 0; i < 64; i++) {
        EXPECT(pthread_mutex_init(&robust[i].mutex, &attributes) == 0);
    }
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, dies_with_mutexes, robust) == 0 && pthread_join(thread, NULL) == 0);
    for (int i = 0; i < 64; i++) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec += 5;
        EXPECT(pthread_mutex_timedlock(&robust[i].mutex, &soon) == EOWNERDEAD);
    }
}

// Pages with words that the kernel knows stay in memory, in every child, too: there are more of them than what each of so many keeps.
static void pi_words_in_children(void) {
    enum { HELD = 240, CHILDREN = 40, MUCH = 8 * PAGES };
    unsigned char *words = map(HELD), *memory = map(MUCH);
    for (int i = 0; i < HELD; i++) {
        uint32_t *word = (uint32_t *)(words + (size_t)i * PAGE);
        EXPECT(syscall(SYS_futex, word, FUTEX_LOCK_PI_PRIVATE, 0, NULL) == 0);
        EXPECT(syscall(SYS_futex, word, FUTEX_UNLOCK_PI_PRIVATE) == 0);
    }
    fill(memory, MUCH, 1);
    pid_t children[CHILDREN];
    for (unsigned i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        EXPECT(children[i] >= 0);
        for (unsigned round = 0; children[i] == 0 && round < 3; round++) {
            for (uint64_t page = 0; page < MUCH; page++) {
                EXPECT(is_filled(memory, page, round == 0 ? 1 : i + round));
            }
            fill(memory, MUCH, i + round + 1);
        }
        if (children[i] == 0) {
            _exit(0);
        }
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        EXPECT(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
    for (uint64_t page = 0; page < MUCH; page++) {
        EXPECT(is_filled(memory, page, 1));
    }
}

// On one CPU, of which nobody else has anything while a thread of it runs, and on which the supervisor is as well. A child has had its
// agent started when fork returns in it: it has used next to nothing of the CPU by then, and a second of it ends the child.
static void real_time_fork(void) {
    struct rlimit limit = {20, 20}, limit_of_child = {1, 1};
    struct sched_param first = {.sched_priority = 1};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    unsigned char *memory = map(PAGES);
    fill(memory, PAGES, 1);
    EXPECT(setrlimit(RLIMIT_CPU, &limit) == 0 && (sched_setscheduler(0, SCHED_FIFO, &first) == 0 || errno == EPERM));
    EXPECT(sched_setaffinity(0, sizeof one, &one) == 0 && sched_setaffinity(getppid(), sizeof one, &one) == 0);
    push_out();
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        EXPECT(child > 0 || (child == 0 && setrlimit(RLIMIT_CPU, &limit_of_child) == 0));
        for (uint64_t page = 0; child == 0 && page < PAGES; page++) {
            EXPECT(is_filled(memory, page, 1));
        }
        if (child == 0) {
            _exit(0);
        }
        int status;
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        push_out();
    }
}

static void pi_futex(void) {
    uint32_t *word = (uint32_t *)map(PAGES) + 100 * 1024;
    fill((unsigned char *)map(PAGES), PAGES, 1);
    for (int round = 0; round < 4; round++) {
        *word = 0;
        push_out();
        EXPECT(syscall(SYS_futex, word, FUTEX_LOCK_PI_PRIVATE, 0, NULL) == 0);
        EXPECT((*word & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid));
        push_out();
        EXPECT(syscall(SYS_futex, word, FUTEX_UNLOCK_PI_PRIVATE) == 0);
    }
}

static uint32_t *moved_from, *moved_to;

// Waits at one word and is moved to a lock, which it has when it wakes.
static void *waits_to_be_moved(void *arg) {
    EXPECT(syscall(SYS_futex, moved_from, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 0, NULL, moved_to, 0) == 0);
    EXPECT((*moved_to & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid));
    EXPECT(syscall(SYS_futex, moved_to, FUTEX_UNLOCK_PI_PRIVATE) == 0);
    return arg;
}

static void pi_requeue(void) {
    enum { WAITERS = 3 };
    for (int round = 0; round < 2; round++) {
        pthread_t threads[WAITERS];
        moved_from = map(1);
        moved_to = map(1);
        *moved_from = *moved_to = 0;
        push_out();
        for (int i = 0; i < WAITERS; i++) {
            EXPECT(pthread_create(&threads[i], NULL, waits_to_be_moved, NULL) == 0);
        }
        int moved = 0;
        while (moved < WAITERS) {
            push_out();
            // The first one is woken with the lock, and counts as moved.
            long answer = syscall(SYS_futex, moved_from, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, WAITERS, moved_to, 0);
            EXPECT(answer >= 0);
            moved += (int)answer;
        }
        for (int i = 0; i < WAITERS; i++) {
            EXPECT(pthread_join(threads[i], NULL) == 0);
        }
    }
}

// The second word of FUTEX_WAKE_OP is changed at once; where there is none, that is EFAULT.
static void wake_op(void) {
    uint32_t *words = map(2);
    for (int round = 0; round < 4; round++) {
        words[0] = words[1024] = (uint32_t)round;
        push_out();
        EXPECT(syscall(SYS_futex, words, FUTEX_WAKE_OP_PRIVATE, 1, 1, words + 1024, FUTEX_OP(FUTEX_OP_ADD, 70, FUTEX_OP_CMP_EQ, 9)) == 0);
        EXPECT(words[1024] == 70 + (uint32_t)round);
    }
    uint32_t *gone = map(1);
    EXPECT(munmap(gone, PAGE) == 0);
    EXPECT(syscall(SYS_futex, words, FUTEX_WAKE_OP_PRIVATE, 1, 1, gone, 0) == -1 && errno == EFAULT);
    EXPECT(syscall(SYS_futex, gone, FUTEX_LOCK_PI_PRIVATE, 0, NULL) == -1 && errno == EFAULT);
    EXPECT(syscall(SYS_futex, NULL, FUTEX_UNLOCK_PI_PRIVATE) == -1 && errno == EFAULT);
}

static void *locks_and_rests(void *arg) {
    pthread_mutex_t *mutex = arg;
    EXPECT(pthread_mutex_lock(mutex) == 0);
    pthread_barrier_wait(&barrier);
    usleep(200000);
    EXPECT(pthread_mutex_unlock(mutex) == 0);
    return NULL;
}

static void pi_mutex(void) {
    pthread_mutex_t *mutex = map(1);
    pthread_mutexattr_t attributes;
    EXPECT(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
    EXPECT(pthread_mutex_init(mutex, &attributes) == 0 && pthread_barrier_init(&barrier, NULL, 2) == 0);
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, locks_and_rests, mutex) == 0);
        pthread_barrier_wait(&barrier);
        push_out();
        EXPECT(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
        EXPECT(pthread_join(thread, NULL) == 0);
    }
}

// ---- calls that fail

// The kernel tells of what a call is to unmap before it has done so, and takes nothing back where the call fails after that.
static void is_kept(unsigned char *memory, unsigned stamp, int fails) {
    int errno_of_call = errno;
    EXPECT(fails);
    EXPECT(errno_of_call == ENOMEM || errno_of_call == EPERM);
    for (uint64_t page = 0; page < 2 * PAGES; page++) {
        EXPECT(is_filled(memory, page, stamp));
    }
    fill(memory, 2 * PAGES, stamp + 1);
    push_out();
    for (uint64_t page = 0; page < 2 * PAGES; page++) {
        EXPECT(is_filled(memory, page, stamp + 1));
    }
}

static unsigned char *to_keep(unsigned stamp) {
    unsigned char *memory = map(2 * PAGES);
    fill(memory, 2 * PAGES, stamp);
    push_out();
    return memory;
}

static void mapped_in_vain(void) {
    unsigned char *memory = to_keep(3);
    struct rlimit before, low;
    EXPECT(getrlimit(RLIMIT_AS, &before) == 0);
    low = (struct rlimit){4ul << 30, before.rlim_max};
    EXPECT(setrlimit(RLIMIT_AS, &low) == 0);
    errno = 0;
    void *got = mmap(memory, 8ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    EXPECT(setrlimit(RLIMIT_AS, &before) == 0);
    is_kept(memory, 3, got == MAP_FAILED);
}

// Pages in the midst that can never be unmapped.
static unsigned char *sealed(unsigned stamp) {
    unsigned char *memory = to_keep(stamp);
    enum { MSEAL = 462 };
    if (syscall(MSEAL, memory + PAGES * PAGE, 16 * PAGE, 0) != 0) {
        EXPECT(errno == ENOSYS);
        return NULL;
    }
    return memory;
}

static void sealed_in_vain(void) {
    unsigned char *memory = sealed(4);
    if (memory == NULL) {
        return;
    }
    is_kept(memory, 4, munmap(memory, 2 * PAGES * PAGE) == -1);
    memory = sealed(6);
    is_kept(memory, 6, mmap(memory, 2 * PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
    memory = sealed(8);
    is_kept(memory, 8, mremap(memory, 2 * PAGES * PAGE, PAGES / 2 * PAGE, 0) == MAP_FAILED);
    memory = sealed(10);
    unsigned char *other = to_keep(20);
    is_kept(memory, 10, mremap(other, 2 * PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory) == MAP_FAILED);
    is_kept(other, 20, 1);
}

// In a copy that no fork handler is told of, as its first call: who fills it is told of the end of memory that stays.
static void sealed_in_vain_in_copies(void) {
    unsigned char *memory = sealed(4);
    if (memory == NULL) {
        return;
    }
    pid_t child = fork_by_clone();
    EXPECT(child >= 0);
    if (child == 0) {
        EXPECT(munmap(memory, 2 * PAGES * PAGE) == -1);
        for (uint64_t page = 0; page < 2 * PAGES; page++) {
            EXPECT(is_filled(memory, page, 4));
        }
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    is_kept(memory, 4, munmap(memory, 2 * PAGES * PAGE) == -1);
}

// Memory moves over pages that were out, and grows: what it has more is empty.
static unsigned char *place_of_another(unsigned char **memory) {
    *memory = map(PAGES);
    unsigned char *place = to_keep(8);
    fill(*memory, PAGES, 5);
    push_out();
    return place;
}

static void moves_over(unsigned char *place, unsigned char *memory) {
    EXPECT(mremap(memory, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    for (uint64_t page = 0; page < 2 * PAGES; page++) {
        EXPECT(page < PAGES ? is_filled(place, page, 5) : is_zero(place, page));
    }
}

static void moved_over(void) {
    unsigned char *memory, *place = place_of_another(&memory);
    moves_over(place, memory);
}

static void moved_over_in_copies(void) {
    unsigned char *memory, *place = place_of_another(&memory);
    pid_t child = fork_by_clone();
    EXPECT(child >= 0);
    if (child == 0) {
        moves_over(place, memory);
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(is_filled(place, 2 * PAGES - 1, 8));
}

// ---- locks, limits and rights

static void lock_all(void) {
    unsigned char *memory = map(PAGES);
    fill(memory, PAGES, 5);
    EXPECT(mlockall(MCL_CURRENT) == 0 || errno == ENOMEM);
    EXPECT(munlockall() == 0);
    push_out();
    EXPECT(mlockall(MCL_FUTURE) == 0);
    unsigned char *later = map(PAGES);
    fill(later, PAGES, 6);
    EXPECT(munlockall() == 0);
    push_out();
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(is_filled(memory, page, 5) && is_filled(later, page, 6));
    }
}

// As much as is granted, then a little less as memtester does it: what is granted must be usable.
static void lock_much(void) {
    uint64_t pages = ballast_pages;
    unsigned char *memory = map(pages);
    while (pages > 64 && mlock(memory, pages * PAGE)) {
        EXPECT(errno == ENOMEM || errno == EAGAIN || errno == EPERM);
        pages -= pages / 8;
    }
    for (int round = 0; round < 3; round++) {
        fill(memory, pages, 30);
        push_out();
        for (uint64_t page = 0; page < pages; page++) {
            EXPECT(is_filled(memory, page, 30));
        }
    }
    dprintf(2, "space: %" PRIu64 " pages were locked\n", pages);
}

static void set_limit(int which, uint64_t value) {
    struct rlimit limit;
    EXPECT(getrlimit(which, &limit) == 0);
    limit.rlim_cur = value;
    EXPECT(setrlimit(which, &limit) == 0);
}

static uint64_t status_of(const char *key) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    uint64_t value = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = strtoull(line + strlen(key) + 1, NULL, 10) << 10;
        }
    }
    fclose(file);
    return value;
}

static void limit_of_addresses(void) {
    set_limit(RLIMIT_AS, status_of("VmSize") + ballast_pages * PAGE + (8 << 20));
    push_out();
    EXPECT(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    EXPECT(mmap(NULL, ballast_pages * PAGE * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    set_limit(RLIMIT_AS, status_of("VmSize") + (8 << 20));
    EXPECT(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
}

static void limit_of_data(void) {
    set_limit(RLIMIT_DATA, status_of("VmData") + (8 << 20));
    push_out();
    EXPECT(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    EXPECT(mmap(NULL, 1 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    // As a program sets it that knows what it has mapped itself.
    set_limit(RLIMIT_DATA, 2 * ballast_pages * PAGE + (48 << 20));
    push_out();
    unsigned char *memory = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    EXPECT(mmap(NULL, 4ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    fill(memory, 1024, 3);
    int status, child = fork();
    EXPECT(child >= 0);
    push_out();
    for (uint64_t page = 0; page < 1024; page++) {
        EXPECT(is_filled(memory, page, 3));
    }
    if (child == 0) {
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

static void limit_of_files(void) {
    set_limit(RLIMIT_NOFILE, 4);
    push_out();
    int status, child = fork();
    EXPECT(child >= 0);
    push_out();
    check_ballast();
    if (child == 0) {
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    // Just below and above what the runtime has open.
    for (int limit = 5; limit < 40; limit++) {
        set_limit(RLIMIT_NOFILE, limit);
        child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            _exit(ballast[limit * WORDS] != ((uint64_t)(limit + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537)));
        }
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
    }
}

static volatile int was_told;

static void on_size(int number) {
    (void)number;
    was_told++;
}

static void limit_of_file_sizes(void) {
    set_limit(RLIMIT_FSIZE, 1 << 16);
    signal(SIGXFSZ, on_size);
    push_out();
    check_ballast();
    EXPECT(was_told == 0);
    FILE *file = tmpfile();
    char block[1 << 15] = {1};
    EXPECT(file && write(fileno(file), block, sizeof block) > 0 && write(fileno(file), block, sizeof block) > 0);
    EXPECT(write(fileno(file), block, sizeof block) < 0 && errno == EFBIG && was_told == 1);
    push_out();
    check_ballast();
}

static void without_proc(void) {
    char path[] = "/tmp/space-XXXXXX";
    EXPECT(mkdtemp(path) && chroot(path) == 0 && chdir("/") == 0);
    push_out();
    check_ballast();
    int status, child = fork();
    EXPECT(child >= 0);
    push_out();
    check_ballast();
    if (child == 0) {
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

static int take_own_as_root(void *unused) {
    (void)unused;
    _exit(chroot("/proc/self/fdinfo") || chdir("/"));
}

// As a browser's sandbox does: the root becomes a directory of a helper that then ends, where each look says ESRCH.
static void ended_root(void) {
    unsigned char *helpers = map(16);
    int status, helper = clone(take_own_as_root, helpers + 16 * PAGE, CLONE_FS | CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    EXPECT(helper > 0 && waitpid(helper, &status, 0) == helper && status == 0);
    EXPECT(open("/proc/self/maps", O_RDONLY) < 0 && errno == ESRCH);
    push_out();
    check_ballast();
    for (unsigned round = 0; round < 2; round++) {
        int child = fork();
        EXPECT(child >= 0);
        unsigned char *memory = map(8 * PAGES);
        fill(memory, 8 * PAGES, round);
        check_ballast();
        push_out();
        check_ballast();
        for (uint64_t page = 0; page < 8 * PAGES; page++) {
            EXPECT(is_filled(memory, page, round));
        }
        if (child == 0) {
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        EXPECT(munmap(memory, 8 * PAGES * PAGE) == 0);
    }
}

// Memory that is filled and then only read, more than the budget of it.
static void read_only(void) {
    push_out();
    EXPECT(mprotect(ballast, ballast_pages * PAGE, PROT_READ) == 0);
    check_ballast();
    check_ballast();
    unsigned char *memory = map(PAGES);
    fill(memory, PAGES, 2);
    check_ballast();
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(is_filled(memory, page, 2));
    }
    EXPECT(mprotect(ballast, ballast_pages * PAGE, PROT_READ | PROT_WRITE) == 0);
    push_out();
}

// More addresses than can be managed: what is written there stays where it is.
static void beyond_64_gib(void) {
    push_out();
    uint64_t bytes = UINT64_C(70) << 30, pages = 2048;
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(memory != MAP_FAILED);
    fill(memory + bytes / 2, pages, 3);
    check_ballast();
    // Long enough for a look at what is there.
    usleep(300000);
    check_ballast();
    for (uint64_t page = 0; page < pages; page++) {
        EXPECT(is_filled(memory + bytes / 2, page, 3));
    }
}

static unsigned char *watched;

static void *serves(void *arg) {
    int fd = *(int *)arg;
    for (int served = 0; served < PAGES;) {
        struct uffd_msg message;
        if (read(fd, &message, sizeof message) != sizeof message || message.event != UFFD_EVENT_PAGEFAULT) {
            continue;
        }
        unsigned char *page = (unsigned char *)(message.arg.pagefault.address & ~(uint64_t)(PAGE - 1));
        static unsigned char content[PAGE];
        memset(content, 77, PAGE);
        struct uffdio_copy copy = {.dst = (uintptr_t)page, .src = (uintptr_t)content, .len = PAGE};
        EXPECT(ioctl(fd, UFFDIO_COPY, &copy) == 0);
        served++;
    }
    return NULL;
}

// The program's own userfaultfd, on memory that was in use before.
static void own_userfaultfd(void) {
    watched = map(2 * PAGES);
    fill(watched + PAGES * PAGE, PAGES, 4);
    push_out();
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    EXPECT(fd >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    EXPECT(ioctl(fd, UFFDIO_API, &api) == 0);
    struct uffdio_register range = {.range = {.start = (uintptr_t)watched, .len = 2 * PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    EXPECT(ioctl(fd, UFFDIO_REGISTER, &range) == 0);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, serves, &fd) == 0);
    push_out();
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(watched[page * PAGE] == 77);
        EXPECT(is_filled(watched + PAGES * PAGE, page, 4));
    }
    EXPECT(pthread_join(thread, NULL) == 0);
}

// Hundreds of frames of 64 KiB: a deep stack, walked down and up twice.
static uint64_t deep(unsigned depth) {
    volatile unsigned char frame[1 << 16];
    for (unsigned i = 0; i < sizeof frame; i += PAGE) {
        frame[i] = (unsigned char)(depth + i / PAGE);
    }
    uint64_t sum = depth ? deep(depth - 1) : 0;
    for (unsigned i = 0; i < sizeof frame; i += PAGE) {
        EXPECT(frame[i] == (unsigned char)(depth + i / PAGE));
    }
    return sum + frame[0];
}

static void *goes_deep(void *arg) {
    return (void *)(uintptr_t)(deep((unsigned)(uintptr_t)arg) + deep((unsigned)(uintptr_t)arg));
}

static void deep_stack(void) {
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    EXPECT(setrlimit(RLIMIT_STACK, &limit) == 0);
    goes_deep((void *)(uintptr_t)(ballast_pages / 3));
    // The stack stays where it was; long enough for a look at what is there, which takes no more than a part of the time.
    usleep(2000000);
}

// Interpreters touch the far end of their stack to see whether it is there.
static void far_end_of_the_stack(void) {
    enum { BELOW = 7800 << 10 };
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    EXPECT(setrlimit(RLIMIT_STACK, &limit) == 0);
    ((volatile unsigned char *)alloca(BELOW))[0] = 1;
    push_out();
    usleep(300000);
}

static void deep_stack_of_a_thread(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    EXPECT(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, (ballast_pages + PAGES) * PAGE) == 0);
    EXPECT(pthread_create(&thread, &attributes, goes_deep, (void *)(uintptr_t)(ballast_pages / 16 - 8)) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
}

// Addresses that are reserved before any library has begun, as allocators do that take the place of the C library's, and made
// accessible a piece at a time.
static unsigned char *reserved;

static void reserve_at_load(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "reserved-at-load") == 0) {
        reserved = mmap(NULL, UINT64_C(1) << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
}
__attribute__((section(".preinit_array"), used)) static void (*const first_of_all)(int, char **) = reserve_at_load;

static void reserved_at_load(void) {
    EXPECT(reserved && reserved != MAP_FAILED);
    for (uint64_t page = 0; page < ballast_pages; page += PAGES) {
        EXPECT(mprotect(reserved + page * PAGE, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
        fill(reserved + page * PAGE, PAGES, 40);
        // Nothing announces it: long enough for a look at what is there.
        usleep(20000);
    }
    push_out();
    for (uint64_t page = 0; page < ballast_pages; page++) {
        EXPECT(is_filled(reserved + page / PAGES * PAGES * PAGE, page % PAGES, 40));
    }
}

// The ballast's pages are as they were filled, here and in a child.
static void expect_filled_in_both(unsigned char *memory, unsigned stamp) {
    int status, child = fork();
    EXPECT(child >= 0);
    for (uint64_t page = 0; page < ballast_pages; page++) {
        EXPECT(is_filled(memory, page, stamp));
    }
    if (child == 0) {
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

// Memory that an allocator in place of the C library's has mapped, and begun to use, before any library has begun.
static unsigned char *used_early;

static void use_at_load(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "used-at-load") == 0) {
        used_early = mmap(NULL, UINT64_C(40) << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (used_early != MAP_FAILED) {
            fill(used_early, PAGES, 45);
        }
    }
}
__attribute__((section(".preinit_array"), used)) static void (*const allocator_begins)(int, char **) = use_at_load;

static void used_at_load(void) {
    EXPECT(used_early && used_early != MAP_FAILED && ballast_pages * PAGE <= UINT64_C(40) << 20);
    EXPECT(ballast_pages > PAGES && is_filled(used_early, 0, 45));
    fill(used_early, ballast_pages, 45);
    push_out();
    expect_filled_in_both(used_early, 45);
}

// Large tables of the program itself, as compilers of Fortran make them.
static unsigned char table[40 << 20];

static void static_data(void) {
    EXPECT(ballast_pages * PAGE <= sizeof table);
    fill(table, ballast_pages, 50);
    push_out();
    expect_filled_in_both(table, 50);
}

// Shared memory is all that there is, so that no agent is started.
static void shared_alone(void) {
    int file = memfd_create("shared", 0);
    EXPECT(file >= 0 && ftruncate(file, (off_t)(ballast_pages * PAGE)) == 0);
    unsigned char *shared = mmap(NULL, ballast_pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT(shared != MAP_FAILED);
    fill(shared, ballast_pages, 8);
    usleep(300000);
    for (uint64_t page = 0; page < ballast_pages; page++) {
        EXPECT(is_filled(shared, page, 8));
    }
}

// A file's pages that are written stay in memory, and the file is as it was; long enough for a look at what is there.
static void private_file(void) {
    FILE *file = tmpfile();
    EXPECT(file && ftruncate(fileno(file), (off_t)(ballast_pages * PAGE)) == 0);
    unsigned char *written = mmap(NULL, ballast_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    EXPECT(written != MAP_FAILED);
    fill(written, ballast_pages, 8);
    push_out();
    int status, child = fork();
    EXPECT(child >= 0);
    for (int look = 0; look < 4; look++) {
        usleep(150000);
        for (uint64_t page = 0; page < ballast_pages; page++) {
            EXPECT(is_filled(written, page, 8));
        }
    }
    check_ballast();
    if (child == 0) {
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    unsigned char byte = 1;
    EXPECT(pread(fileno(file), &byte, 1, 5 * PAGE) == 1 && byte == 0);
}

// Pages of a private file mapping that are written before anything is paged: they are paged like others, no store to them is lost while
// paging begins, and where they are given back the file is there again.
enum { FILE_PAGES = 2048, HOLE = 700, HOLE_END = 740, COUNTED = 1500, COUNTERS = 64 };
static unsigned char *of_file;
static uint64_t counts[COUNTERS];

static void *count_there(void *arg) {
    (void)arg;
    volatile uint64_t *there = (volatile uint64_t *)(of_file + COUNTED * PAGE);
    for (uint64_t turn = 0; !is_over; turn++) {
        unsigned which = turn % COUNTERS;
        there[which * 8]++;
        counts[which]++;
    }
    return NULL;
}

static void *sleep_there(void *arg) {
    pthread_mutex_t *held = arg;
    pthread_mutex_lock(held);
    pthread_mutex_unlock(held);
    return NULL;
}

// Written pages from `from` on are as they were written, those of the hole and those that were given back as in the file.
static void check_file_pages(uint64_t from, uint64_t to) {
    for (uint64_t page = from; page < to; page++) {
        if (page == COUNTED) {
            continue;
        }
        EXPECT(is_filled(of_file, page, page >= HOLE && page < HOLE_END ? 3 : 8));
    }
}

static void give_back(uint64_t page, uint64_t pages) {
    EXPECT(madvise(of_file + page * PAGE, pages * PAGE, MADV_DONTNEED) == 0);
    for (uint64_t at = page; at < page + pages; at++) {
        EXPECT(is_filled(of_file, at, 3));
    }
}

static void private_file_before(void) {
    char name[] = "/tmp/space-XXXXXX";
    int file = mkstemp(name);
    EXPECT(file >= 0 && unlink(name) == 0 && ftruncate(file, FILE_PAGES * PAGE) == 0);
    unsigned char *shared = mmap(NULL, FILE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT(shared != MAP_FAILED);
    fill(shared, FILE_PAGES, 3);
    EXPECT(munmap(shared, FILE_PAGES * PAGE) == 0);
    of_file = mmap(NULL, FILE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    EXPECT(of_file != MAP_FAILED && close(file) == 0);
    fill(of_file, HOLE, 8);
    fill(of_file + HOLE_END * PAGE, FILE_PAGES - HOLE_END, 8 + HOLE_END);
    memset(of_file + COUNTED * PAGE, 0, PAGE);
    pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    pthread_t counter, sleepers[3];
    pthread_mutex_lock(&held);
    for (int i = 0; i < 3; i++) {
        EXPECT(pthread_create(&sleepers[i], NULL, sleep_there, &held) == 0);
    }
    EXPECT(pthread_create(&counter, NULL, count_there, NULL) == 0);
    push_out();
    is_over = 1;
    EXPECT(pthread_join(counter, NULL) == 0);
    for (unsigned i = 0; i < COUNTERS; i++) {
        EXPECT(((uint64_t *)(of_file + COUNTED * PAGE))[i * 8] == counts[i]);
    }
    check_file_pages(0, FILE_PAGES);
    push_out();
    // Given back: in the midst, at the edge of the hole, all rights gone, and by two threads' worth of calls for the same pages.
    give_back(100, 50);
    give_back(100, 1);
    give_back(HOLE - 20, 30);
    EXPECT(mprotect(of_file + 200 * PAGE, 20 * PAGE, PROT_READ) == 0);
    give_back(190, 40);
    EXPECT(mprotect(of_file + 200 * PAGE, 20 * PAGE, PROT_READ | PROT_WRITE) == 0);
    fill(of_file + 100 * PAGE, 50, 8 + 100);
    fill(of_file + (HOLE - 20) * PAGE, 20, 8 + HOLE - 20);
    fill(of_file + 190 * PAGE, 40, 8 + 190);
    push_out();
    check_file_pages(0, FILE_PAGES);
    // What the kernel refuses changes nothing, and stands in no later call's way.
    EXPECT(madvise(of_file + 300 * PAGE + 64, 10 * PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    EXPECT(madvise(of_file + 300 * PAGE, SIZE_MAX - 100 * PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    EXPECT(madvise(of_file + 300 * PAGE, SIZE_MAX, MADV_DONTNEED) == -1 && errno == EINVAL);
    check_file_pages(0, FILE_PAGES);
    give_back(295, 15);
    fill(of_file + 295 * PAGE, 15, 8 + 295);
    // As for any mapping of a file.
    EXPECT(madvise(of_file + 300 * PAGE, 10 * PAGE, MADV_FREE) == -1 && errno == EINVAL);
    EXPECT(madvise(of_file + 300 * PAGE, 10 * PAGE, MADV_WIPEONFORK) == -1 && errno == EINVAL);
    int status, child = fork();
    EXPECT(child >= 0);
    check_file_pages(0, FILE_PAGES);
    fill(of_file + 400 * PAGE, 100, child == 0 ? 1 : 2);
    push_out();
    give_back(430, 40);
    EXPECT(is_filled(of_file + 400 * PAGE, 20, child == 0 ? 1 : 2) && is_filled(of_file + 400 * PAGE, 80, child == 0 ? 1 : 2));
    check_file_pages(500, FILE_PAGES);
    // Something else is there: what is given back is empty.
    EXPECT(munmap(of_file + 600 * PAGE, 20 * PAGE) == 0);
    unsigned char *other = mmap(of_file + 600 * PAGE, 40 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT(other == of_file + 600 * PAGE);
    fill(other, 40, 5);
    push_out();
    EXPECT(is_filled(other, 0, 5) && is_filled(other, 39, 5));
    EXPECT(madvise(other, 40 * PAGE, MADV_DONTNEED) == 0);
    for (uint64_t page = 0; page < 40; page++) {
        EXPECT(is_zero(other, page));
    }
    check_file_pages(500, 600);
    check_file_pages(640, FILE_PAGES);
    pthread_mutex_unlock(&held);
    check_ballast();
    if (child == 0) {
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        EXPECT(pthread_join(sleepers[i], NULL) == 0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

// The run's own process gets no CPU for a while, as on a machine that has too much to do, and meanwhile memory is mapped and filled, a
// little at a time.
enum { LATE_MAPPINGS = 24, LATE_PAGES = 448 };

static void late_look(void) {
    pid_t run = getppid();
    int status, child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        usleep(700000);
        kill(run, SIGCONT);
        _exit(0);
    }
    EXPECT(kill(run, SIGSTOP) == 0);
    unsigned char *filled[LATE_MAPPINGS];
    for (unsigned i = 0; i < LATE_MAPPINGS; i++) {
        filled[i] = map(LATE_PAGES);
        fill(filled[i], LATE_PAGES, i);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    push_out();
    for (unsigned i = 0; i < LATE_MAPPINGS; i++) {
        for (uint64_t page = 0; page < LATE_PAGES; page++) {
            EXPECT(is_filled(filled[i], page, i));
        }
    }
}

// Who may not be looked into has nobody to wait for. (It is not paged, and so is left out of what the other cases do.)
static void unseen(void) {
    struct rusage used;
    EXPECT(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
    for (unsigned i = 0; i < LATE_MAPPINGS / 2; i++) {
        fill(map(LATE_PAGES), LATE_PAGES, i);
    }
    EXPECT(getrusage(RUSAGE_SELF, &used) == 0 && used.ru_nvcsw < 400);
}

// Threads that run are stopped for a moment when paging begins: no signal that comes then is lost.
enum { RUNNERS = 3 };
static volatile uint64_t arrived[RUNNERS];
static volatile int is_drained;
static __thread unsigned runner;

static void on_arrival(int number) {
    (void)number;
    arrived[runner]++;
}

static void *run_there(void *arg) {
    runner = (unsigned)(uintptr_t)arg;
    for (volatile uint64_t turn = 0; !is_drained; turn++) {
    }
    return NULL;
}

static volatile uint64_t sent_to[RUNNERS];
static pthread_t runners[RUNNERS];

static void *send_there(void *arg) {
    (void)arg;
    for (uint64_t turn = 0; !is_over; turn++) {
        unsigned which = turn % RUNNERS;
        // A busy machine takes its time for what waits.
        if (sent_to[which] < arrived[which] + 1000 && pthread_sigqueue(runners[which], SIGRTMIN, (union sigval){0}) == 0) {
            sent_to[which]++;
        }
    }
    return NULL;
}

static void signals_before(void) {
    pthread_t sender;
    signal(SIGRTMIN, on_arrival);
    for (uintptr_t i = 0; i < RUNNERS; i++) {
        EXPECT(pthread_create(&runners[i], NULL, run_there, (void *)i) == 0);
    }
    usleep(20000);
    EXPECT(pthread_create(&sender, NULL, send_there, NULL) == 0);
    push_out();
    for (unsigned i = 0; i < RUNNERS; i++) {
        // On a busy machine the sender may hardly have run.
        for (int look = 0; look < 600 && sent_to[i] <= 100; look++) {
            usleep(50000);
        }
    }
    is_over = 1;
    EXPECT(pthread_join(sender, NULL) == 0);
    for (unsigned i = 0; i < RUNNERS; i++) {
        for (int look = 0; look < 600 && arrived[i] < sent_to[i]; look++) {
            usleep(50000);
        }
        EXPECT(arrived[i] == sent_to[i]);
        EXPECT(sent_to[i] > 100);
    }
    is_drained = 1;
    check_ballast();
}

// Bytes that were given back while others were taken: what is resident stays in the budget, and nothing old comes back.
static void *discards(void *arg) {
    unsigned char *memory = arg;
    while (!is_over) {
        madvise(memory, 4 * PAGE, MADV_DONTNEED);
        usleep(500);
    }
    return NULL;
}

static void freed_and_taken_back(void) {
    unsigned char *memory = map(ballast_pages), *small = map(64);
    pthread_t thread;
    push_out();
    fill(small, 64, 1);
    EXPECT(pthread_create(&thread, NULL, discards, small) == 0);
    for (int round = 0; round < 12; round++) {
        fill(memory, ballast_pages, (unsigned)round);
        EXPECT(madvise(memory, ballast_pages * PAGE, MADV_FREE) == 0);
        fill(memory, ballast_pages, (unsigned)round);
        usleep(100000);
        for (uint64_t page = 0; page < ballast_pages; page++) {
            EXPECT(is_filled(memory, page, (unsigned)round));
        }
    }
    is_over = 1;
    EXPECT(pthread_join(thread, NULL) == 0);
}

// Thousands of mappings of one page, no two of which touch, in a process that changes its mappings all the time.
static void small_mappings(void) {
    enum { SMALL = 6000, BLOCKS = 8, BLOCK_PAGES = 64, ROUNDS = 400 };
    unsigned char *memory = mmap(NULL, 2 * SMALL * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    for (unsigned i = 0; i < SMALL; i++) {
        unsigned char *at = memory + 2 * i * PAGE;
        EXPECT(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        fill(at, 1, i);
        if (i % 512 == 0) {
            usleep(5000); // they are found a little after they have come
        }
    }
    unsigned char *blocks[BLOCKS] = {0};
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned char **block = &blocks[round % BLOCKS];
        if (*block) {
            EXPECT(is_filled(*block, round % BLOCK_PAGES, round - BLOCKS));
            EXPECT(munmap(*block, BLOCK_PAGES * PAGE) == 0);
        }
        *block = map(BLOCK_PAGES);
        fill(*block, BLOCK_PAGES, round);
    }
    for (unsigned i = 0; i < SMALL; i++) {
        EXPECT(is_filled(memory + 2 * i * PAGE, 0, i));
    }
    EXPECT(munmap(memory, 2 * SMALL * PAGE) == 0);
}

// Every second page may not be written any more, a mapping each, and then there are all mappings that the kernel grants: a fork.
static void all_mappings(void) {
    enum { SPLIT = 40000, MORE = 60000 };
    unsigned char *memory = map(SPLIT);
    fill(memory, SPLIT, 7);
    for (unsigned page = 0; page < SPLIT; page += 2) {
        EXPECT(mprotect(memory + page * PAGE, PAGE, PROT_READ) == 0);
    }
    for (unsigned page = 0; page < SPLIT; page++) {
        EXPECT(is_filled(memory, page, 7));
    }
    unsigned more = 0;
    while (more < MORE && mmap(NULL, PAGE, more % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
        more++;
    }
    for (unsigned round = 0; round < 2; round++) {
        pid_t child = fork();
        EXPECT(child >= 0);
        for (unsigned page = round; page < SPLIT; page += 50) {
            EXPECT(is_filled(memory, page, 7));
        }
        if (child == 0) {
            _exit(0);
        }
        int status;
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
    }
    EXPECT(munmap(memory, SPLIT * PAGE) == 0);
}

// Pages that every child reads, in no order and none beside another, and their maker never does.
static void read_by_children(void) {
    enum { READ = 151, APART = 16, CHILDREN = 24 };
    unsigned char *memory = map(READ * APART);
    for (unsigned page = 0; page < READ; page++) {
        fill(memory + page * APART * PAGE, 1, page);
    }
    push_out();
    for (unsigned round = 0; round < CHILDREN; round++) {
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            for (unsigned i = 0; i < READ; i++) {
                unsigned page = (i * 59 + 11) % READ;
                EXPECT(is_filled(memory + page * APART * PAGE, 0, page));
            }
            _exit(0);
        }
        int status;
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
    }
    EXPECT(munmap(memory, READ * APART * PAGE) == 0);
}

// A rule set (Landlock) behind which no directory may be read, as of a program that shuts itself in; and a child of it.
static void behind_rules(void) {
    uint64_t read_directories = 1 << 3;
    int rules = (int)syscall(444 /* landlock_create_ruleset */, &read_directories, sizeof read_directories, 0);
    if (rules >= 0) {
        EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        EXPECT(syscall(446 /* landlock_restrict_self */, rules, 0) == 0);
    }
    push_out();
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        check_ballast();
        push_out();
        check_ballast();
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    check_ballast();
}

// Places that a program may have chosen for itself are free.
static void round_places(void) {
    for (uint64_t at = 1ull << 44; at < 5ull << 44; at += 1ull << 42) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        void *place = (void *)(uintptr_t)at;
        EXPECT(mmap(place, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == place);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"behind-rules", behind_rules},
    {"before-behind-rules", behind_rules},
    {"round-places", round_places},
    {"small-mappings", small_mappings},
    {"all-mappings", all_mappings},
    {"read-by-children", read_by_children},
    {"wipe-on-fork", wipe_on_fork},
    {"wipe-on-clone", wipe_on_clone},
    {"wiped-beside-a-fork", wiped_beside_a_fork},
    {"guard-pages", guard_pages},
    {"guard-pages-by-syscall", guard_pages_by_syscall},
    {"guard-pages-by-process", guard_pages_by_process},
    {"guard-pages-and-signals", guard_pages_and_signals},
    {"guards-and-forks", guards_and_forks},
    {"fresh-memory", fresh_memory},
    {"fresh-threads", fresh_threads},
    {"raw-vmsplice", raw_vmsplice},
    {"raw-zerocopy", raw_zerocopy},
    {"ring-send-zc", ring_send_zc},
    {"outlives-its-maker", outlives_its_maker},
    {"short-threads", short_threads},
    {"sleeping-threads", sleeping_threads},
    {"unwinding-threads", unwinding_threads},
    {"robust-mutexes", robust_mutexes},
    {"real-time-fork", real_time_fork},
    {"pi-futex", pi_futex},
    {"pi-mutex", pi_mutex},
    {"pi-words-in-children", pi_words_in_children},
    {"pi-requeue", pi_requeue},
    {"wake-op", wake_op},
    {"mapped-in-vain", mapped_in_vain},
    {"sealed-in-vain", sealed_in_vain},
    {"sealed-in-vain-in-copies", sealed_in_vain_in_copies},
    {"moved-over", moved_over},
    {"moved-over-in-copies", moved_over_in_copies},
    {"lock-all", lock_all},
    {"lock-much", lock_much},
    {"lock-first", lock_much},
    {"limit-of-addresses", limit_of_addresses},
    {"limit-of-data", limit_of_data},
    {"limit-of-files", limit_of_files},
    {"limit-of-file-sizes", limit_of_file_sizes},
    {"without-proc", without_proc},
    {"ended-root", ended_root},
    {"before-ended-root", ended_root},
    {"read-only", read_only},
    {"beyond-64-gib", beyond_64_gib},
    {"own-userfaultfd", own_userfaultfd},
    {"deep-stack", deep_stack},
    {"far-end-of-the-stack", far_end_of_the_stack},
    {"deep-stack-of-a-thread", deep_stack_of_a_thread},
    {"private-file", private_file},
    {"before-shared-alone", shared_alone},
    {"before-private-file", private_file_before},
    {"before-late-look", late_look},
    {"before-unseen", unseen},
    {"replaced-under-readers", replaced_under_readers},
    {"before-mapped-only", mapped_only_before},
    {"before-first-threads", first_threads},
    {"before-signals", signals_before},
    {"reserved-at-load", reserved_at_load},
    {"used-at-load", used_at_load},
    {"static-data", static_data},
    {"freed-and-taken-back", freed_and_taken_back},
};

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: space CASE MIB\n");
        return 2;
    }
    case_name = argv[1];
    ballast_pages = strtoull(argv[2], NULL, 10) * 256;
    int is_filled_before = strncmp(case_name, "limit", 5) && strncmp(case_name, "lock-first", 10) && strncmp(case_name, "deep", 4) && strncmp(case_name, "before", 6) && strcmp(case_name, "without-proc");
    // What is filled later is not told of before: the limits of a case are set before anything is paged.
    int unsaid = is_filled_before ? 0 : MAP_NORESERVE;
    ballast = mmap(NULL, ballast_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | unsaid, -1, 0);
    EXPECT(ballast != MAP_FAILED);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(case_name, cases[i].name) == 0) {
            if (is_filled_before) {
                push_out();
            }
            cases[i].run();
            if (is_filled_before) {
                check_ballast();
            }
            dprintf(1, "%s: right\n", case_name);
            return 0;
        }
    }
    fprintf(stderr, "space: unknown case '%s'\n", case_name);
    return 2;
}
