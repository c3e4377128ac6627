// rare: what few programs do to their memory, their CPU and their children.
//
//   rare CASE MIB
//
// MIB MiB of ballast are rewritten before and after what a case does, so that under a budget well below it everything that the
// case has prepared is out. Prints "CASE: right" (exit status 0) if all was as it is natively; a wrong byte or answer: 1.
#include "expect.h"

#include <inttypes.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <net/if_arp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

enum { PAGE = 4096, WORDS = 512 };

static uint64_t *ballast;
static uint64_t ballast_pages, version;

static void *map_with(uint64_t pages, int flags) {
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
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

static int is_ballast_right(void) {
    for (uint64_t page = 0; page < ballast_pages; page++) {
        for (unsigned i = 0; i < WORDS; i += 64) {
            if (((volatile uint64_t *)ballast)[page * WORDS + i] != ((page + 1) * 0x9E3779B97F4A7C15u ^ (version * 65537 + i))) {
                return 0;
            }
        }
    }
    return 1;
}

// Every 256th page is zero throughout.
static void fill(unsigned char *memory, uint64_t pages, unsigned stamp) {
    for (uint64_t page = 0; page < pages; page++) {
        memset(memory + page * PAGE, (int)((page + stamp) & 255), PAGE);
    }
}

static int is_filled(const unsigned char *memory, uint64_t pages, unsigned stamp) {
    const volatile unsigned char *bytes = memory;
    for (uint64_t at = 0; at < pages * PAGE; at += 64) {
        if (bytes[at] != (unsigned char)((at / PAGE + stamp) & 255)) {
            return 0;
        }
    }
    return 1;
}

static void expect_of_child(pid_t child) {
    int status;
    EXPECT(child > 0 && waitpid(child, &status, __WALL) == child && status == 0);
}

static void *attach_by_name(int id, const void *at, int flags) { return shmat(id, at, flags); }

static void *attach_by_number(int id, const void *at, int flags) { return (void *)syscall(SYS_shmat, id, at, flags); }

// A segment takes the place of memory that is out, and fresh memory that of the segment.
static void segments(void *(*attach)(int, const void *, int)) {
    enum { AROUND = 1024, FROM = 256, PART = 300 };
    unsigned char *memory = map_with(AROUND, 0);
    fill(memory, AROUND, 1);
    push_out();
    unsigned char *middle = memory + FROM * PAGE;
    int id = shmget(IPC_PRIVATE, PART * PAGE - 100, 0600);
    EXPECT(id >= 0);
    // What is refused takes nothing away.
    EXPECT(attach(id, middle + 1, SHM_REMAP) == (void *)-1 && errno == EINVAL);
    EXPECT(attach(-1, middle, SHM_REMAP) == (void *)-1 && errno == EINVAL);
    EXPECT(is_filled(memory, AROUND, 1));
    push_out();
    EXPECT(attach(id, middle + 1, SHM_REMAP | SHM_RND) == middle);
    struct shmid_ds told;
    EXPECT(shmctl(id, IPC_STAT, &told) == 0 && told.shm_nattch == 1);
    EXPECT(shmctl(id, IPC_RMID, NULL) == 0);
    for (unsigned i = 0; i < PART * PAGE; i += 64) {
        EXPECT(middle[i] == 0);
    }
    fill(middle, PART, 7);
    push_out();
    EXPECT(is_filled(memory, FROM, 1) && is_filled(middle, PART, 7));
    EXPECT(is_filled(middle + PART * PAGE, AROUND - FROM - PART, 1 + FROM + PART));
    EXPECT(shmdt(middle) == 0);
    EXPECT(mmap(middle, PART * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == middle);
    for (unsigned i = 0; i < PART * PAGE; i += 64) {
        EXPECT(middle[i] == 0);
    }
    fill(middle, PART, 9);
    push_out();
    EXPECT(is_filled(middle, PART, 9));
}

static void segment(void) { segments(attach_by_name); }

static void segment_by_number(void) { segments(attach_by_number); }

static sigjmp_buf back;

static void go_back(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void expect_fork_right(void) {
    pid_t child = fork();
    if (child == 0) {
        push_out();
        _exit(!is_ballast_right());
    }
    expect_of_child(child);
}

// The thread may not read the CPU's counter, which the kernel's clock function does.
static void counter(void) {
    EXPECT(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
    push_out();
    expect_fork_right();
#ifdef __x86_64__
    signal(SIGSEGV, go_back);
    if (!sigsetjmp(back, 1)) {
        __builtin_ia32_rdtsc();
        EXPECT(!"the counter is denied");
    }
#endif
    EXPECT(prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0) == 0);
    push_out();
}

// What is mapped to be read from now on may be executed, also what a pager maps in a child.
static void execution(void) {
    EXPECT(personality(READ_IMPLIES_EXEC) != -1);
    unsigned char *memory = map_with(1024, 0);
    fill(memory, 1024, 3);
    push_out();
    EXPECT(mprotect(memory, 512 * PAGE, PROT_READ) == 0 && mprotect(memory, 512 * PAGE, PROT_READ | PROT_WRITE) == 0);
    push_out();
    EXPECT(is_filled(memory, 1024, 3));
    expect_fork_right();
}

// Copies of the process of rare kinds: right, or refused.
static void children(void) {
    static const unsigned long kinds[] = {CLONE_FILES, CLONE_FS, CLONE_FILES | CLONE_FS, CLONE_PARENT, CLONE_IO, CLONE_UNTRACED};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int told[2];
        push_out();
        EXPECT(pipe(told) == 0);
        pid_t child = (pid_t)syscall(SYS_clone, kinds[i] | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            char is_right = (char)is_ballast_right();
            EXPECT(write(told[1], &is_right, 1) == 1);
            _exit(0);
        }
        if (child < 0) {
            EXPECT(errno == ENOMEM && (kinds[i] & (CLONE_FILES | CLONE_PARENT)));
        } else {
            char is_right = 0;
            EXPECT(read(told[0], &is_right, 1) == 1 && is_right);
            EXPECT((kinds[i] & CLONE_PARENT) || waitpid(child, NULL, 0) == child);
        }
        EXPECT(close(told[0]) == 0 && close(told[1]) == 0);
        push_out();
        EXPECT(is_ballast_right());
    }
}

// Thousands of arguments, each on a page of its own, and some elsewhere.
static void arguments(void) {
    enum { COUNT = 3000 };
    char **list = calloc(COUNT + 4, sizeof *list);
    char *texts = map_with(2 * COUNT, 0), local[COUNT / 100][8];
    char *first[] = {"/bin/sh", "-c", "test $# = 2999 && test ${2999} = t2999"};
    memcpy(list, first, sizeof first);
    for (unsigned i = 0; i < COUNT; i++) {
        list[3 + i] = i % 100 == 50 ? local[i / 100] : texts + 2 * i * PAGE + i;
        snprintf(list[3 + i], 8, "t%u", i);
    }
    for (unsigned round = 0; round < 20; round++) {
        push_out();
        pid_t child;
        EXPECT(posix_spawn(&child, "/bin/sh", NULL, NULL, list, environ) == 0);
        expect_of_child(child);
    }
}

// Pages lent to a pipe, and taken from one, by calls that are not to wait.
static void lent(void) {
    enum { LENT = 64, STEP = 4 };
    unsigned char *from = map_with(LENT, 0), *to = map_with(LENT, 0);
    int ends[2], file = open("/proc/self/exe", O_RDONLY), nothing = open("/dev/null", O_WRONLY);
    EXPECT(pipe(ends) == 0);
    // To a pipe that was spliced from and to, no call can say by itself that it is not to wait.
    EXPECT(splice(file, NULL, ends[1], NULL, 100, 0) == 100 && splice(ends[0], NULL, nothing, NULL, 100, 0) == 100);
    for (unsigned round = 0; round < 4; round++) {
        fill(from, LENT, round);
        push_out();
        for (unsigned page = 0; page < LENT; page += STEP) {
            struct iovec given = {from + page * PAGE, STEP * PAGE}, taken = {to + page * PAGE, STEP * PAGE};
            EXPECT(vmsplice(ends[0], &taken, 1, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
            EXPECT(vmsplice(ends[1], &given, 1, SPLICE_F_NONBLOCK) == STEP * PAGE);
            EXPECT(vmsplice(ends[0], &taken, 1, SPLICE_F_NONBLOCK) == STEP * PAGE);
        }
        push_out();
        EXPECT(is_filled(to, LENT, round));
    }
    struct iovec all = {from, LENT * PAGE};
    ssize_t room = vmsplice(ends[1], &all, 1, SPLICE_F_NONBLOCK);
    EXPECT(room > 0 && room < LENT * PAGE);
    EXPECT(vmsplice(ends[1], &all, 1, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
}

// What names nothing, or no pipe, is an error, and changes nothing.
static void errors(void) {
    char name[] = "/var/tmp/pagetide-rare-XXXXXX", byte = 'x';
    int file = mkstemp(name);
    EXPECT(file >= 0 && unlink(name) == 0);
    int ends[2];
    EXPECT(pipe(ends) == 0);
    struct iovec piece = {&byte, 1};
    EXPECT(vmsplice(file, &piece, 1, 0) == -1 && errno == EBADF && lseek(file, 0, SEEK_END) == 0);
    EXPECT(vmsplice(ends[1], &piece, 1, 1u << 31) == -1 && errno == EINVAL);
    EXPECT(vmsplice(-1, &piece, 1, 0) == -1 && errno == EBADF);
    struct sock_fprog filter = {1, (struct sock_filter *)8};
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 8L) == -1 && errno == EFAULT);
    EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == -1 && errno == EFAULT);
    EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == -1 && errno == EFAULT);
}

// Calls whose structures go on where their numbers do not say.
static void structures(void) {
    enum { EXTENTS = 200, PAGES = 4 };
    char name[] = "/var/tmp/pagetide-rare-XXXXXX";
    int file = mkstemp(name);
    EXPECT(file >= 0 && unlink(name) == 0);
    for (unsigned i = 0; i < EXTENTS; i++)
        EXPECT(pwrite(file, name, sizeof name, i * 2l * PAGE) == sizeof name && (i % 20 || fsync(file) == 0));
    struct fiemap *map = map_with(PAGES, 0);
    unsigned char *memory = map_with(2, 0);
    struct arpreq *request = (void *)(memory + PAGE - 66);
    memset(memory, 1, 2 * PAGE);
    *map = (struct fiemap){.fm_length = ~0ul, .fm_flags = FIEMAP_FLAG_SYNC, .fm_extent_count = EXTENTS};
    memset(map->fm_extents, 1, EXTENTS * sizeof *map->fm_extents);
    push_out();
    // Not every file system can tell.
    EXPECT((ioctl(file, FS_IOC_FIEMAP, map) == 0 && map->fm_mapped_extents > 0) || errno == EOPNOTSUPP);
    push_out();
    int node = -1;
    EXPECT(syscall(SYS_get_mempolicy, &node, NULL, 0, memory, MPOL_F_NODE | MPOL_F_ADDR) == 0 || errno == ENOSYS);
    EXPECT(memory[0] == 1);
    memset(request, 0, sizeof *request);
    request->arp_pa.sa_family = AF_INET;
    strcpy(request->arp_dev, "lo");
    push_out();
    int talk = socket(AF_INET, SOCK_DGRAM, 0);
    EXPECT(ioctl(talk, SIOCGARP, request) == -1 && (errno == ENXIO || errno == ENODEV));
}

// The first number that is free is the program's, whatever the limit.
static void descriptors(void) {
    push_out();
    for (int number = 3; number < 100; number++)
        EXPECT(dup2(1, number) == number);
}

static volatile sig_atomic_t received;

static void on_signal(int number) {
    (void)number;
    received++;
}

// What is sent to the process group comes once.
static void group(void) {
    int numbers[] = {SIGUSR1, SIGTERM, SIGHUP, SIGIO, SIGPROF, SIGVTALRM, SIGRTMIN + 2, SIGRTMAX};
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        received = 0;
        EXPECT(sigaction(numbers[i], &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART}, NULL) == 0);
        EXPECT(kill(0, numbers[i]) == 0);
        for (struct timespec left = {0, 200000000}; nanosleep(&left, &left) == -1;)
            EXPECT(errno == EINTR);
        EXPECT(received == 1);
    }
}

#ifdef __x86_64__
// The thread is told of accesses that are not aligned, while it misses pages and makes calls.
static void alignment(void) {
    enum { TOUCHED = 1024 };
    unsigned char *memory = map_with(TOUCHED, 0);
    for (unsigned round = 0; round < 4; round++) {
        fill(memory, TOUCHED, round);
        push_out();
        unsigned long sum = 0, expected = 0;
        long pid;
        __asm__ volatile("pushf\n orl $0x40000, (%%rsp)\n popf" ::: "memory", "cc");
        for (unsigned page = 0; page < TOUCHED; page++) {
            sum += ((volatile unsigned char *)memory)[page * PAGE];
        }
        __asm__ volatile("syscall" : "=a"(pid) : "a"((long)SYS_getpid) : "rcx", "r11", "memory");
        unsigned long flags;
        __asm__ volatile("pushf\n mov (%%rsp), %0\n andl $~0x40000, (%%rsp)\n popf" : "=r"(flags)::"memory", "cc");
        for (unsigned page = 0; page < TOUCHED; page++) {
            expected += (page + round) & 255;
        }
        EXPECT(sum == expected && pid == getpid() && (flags & 0x40000));
    }
}

static long by_interrupt(long number, long first, long second, long third) {
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(number), "b"(first), "c"(second), "d"(third) : "memory", "r8", "r9", "r10", "r11");
    return answer;
}

// Calls of 32 bits from 64-bit code, with buffers that are out.
static void interrupt(void) {
    enum { NEAR = 512, READ = 3, WRITE = 4, GETPID = 20, BRK = 45, MUNMAP = 91 };
    unsigned char *near = map_with(NEAR, MAP_32BIT);
    int ends[2];
    EXPECT(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        by_interrupt(GETPID, 0, 0, 0);
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) {
        return; // a kernel without calls of 32 bits
    }
    for (unsigned round = 0; round < 4; round++) {
        fill(near, NEAR, round);
        push_out();
        long from = (long)(near + 100 * PAGE), to = (long)(near + 300 * PAGE);
        EXPECT(by_interrupt(GETPID, 0, 0, 0) == getpid());
        EXPECT(by_interrupt(WRITE, ends[1], from, 3 * PAGE) == 3 * PAGE);
        push_out();
        EXPECT(by_interrupt(READ, ends[0], to, 3 * PAGE) == 3 * PAGE);
        EXPECT(is_filled(near + 300 * PAGE, 3, 100 + round) && is_filled(near, 300, round));
        EXPECT(by_interrupt(WRITE, ends[1], 0, 1) == -EFAULT);
    }
    push_out();
    EXPECT(by_interrupt(MUNMAP, (long)near, 16 * PAGE, 0) == 0);
    EXPECT(mmap(near, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == near);
    for (unsigned i = 0; i < 16 * PAGE; i += 64) {
        EXPECT(near[i] == 0);
    }
    // Whatever is not understood does nothing.
    long end = by_interrupt(BRK, 0, 0, 0);
    EXPECT(end == -ENOSYS || end > 0);
}
#endif

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"segment", segment},
    {"segment-by-number", segment_by_number},
    {"counter", counter},
    {"execution", execution},
    {"children", children},
    {"arguments", arguments},
    {"lent", lent},
    {"errors", errors},
    {"structures", structures},
    {"descriptors", descriptors},
    {"group", group},
#ifdef __x86_64__
    {"alignment", alignment},
    {"interrupt", interrupt},
#endif
};

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    // Before anything is paged.
    EXPECT(strcmp(argv[1], "descriptors") != 0 || setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1024}) == 0);
    ballast_pages = strtoull(argv[2], NULL, 10) * 256;
    ballast = map_with(ballast_pages, 0);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            case_name = cases[i].name;
            push_out();
            cases[i].run();
            EXPECT(is_ballast_right());
            dprintf(1, "%s: right\n", case_name);
            return 0;
        }
    }
    EXPECT(!"a case of this name");
}
