// sealed: constants that the dynamic linker writes (addresses) and then makes read-only, as C++ libraries have by the MiB.
//
//   sealed MIB
//
// A thread reads a quarter of a table of 2 MiB of them all the time, while the first one rewrites MIB MiB. In between a store to the table is an error, in a
// child, too; then the program makes some of it writable, changes it, and makes it read-only again. Prints "sealed: right" (exit status 0), or
// what is wrong: 1.
#include "expect.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096, ENTRIES = 1 << 18, CHANGED = ENTRIES / 2 / 512 * 512, CHANGED_ENTRIES = 16 * 512 };

static char target[ENTRIES];

#define E1(n) target + (n)
#define E8(n) E1(n), E1(n + 1), E1(n + 2), E1(n + 3), E1(n + 4), E1(n + 5), E1(n + 6), E1(n + 7)
#define E64(n) E8(n), E8(n + 8), E8(n + 16), E8(n + 24), E8(n + 32), E8(n + 40), E8(n + 48), E8(n + 56)
#define E512(n) E64(n), E64(n + 64), E64(n + 128), E64(n + 192), E64(n + 256), E64(n + 320), E64(n + 384), E64(n + 448)
#define E4K(n) E512(n), E512(n + 512), E512(n + 1024), E512(n + 1536), E512(n + 2048), E512(n + 2560), E512(n + 3072), E512(n + 3584)
#define E32K(n) E4K(n), E4K(n + 4096), E4K(n + 8192), E4K(n + 12288), E4K(n + 16384), E4K(n + 20480), E4K(n + 24576), E4K(n + 28672)
static char *const table[ENTRIES] = {E32K(0), E32K(32768), E32K(65536), E32K(98304), E32K(131072), E32K(163840), E32K(196608), E32K(229376)};

static atomic_int is_over;
static atomic_int changed_by; // entries of the part that is changed are so much further
static sigjmp_buf back;

// What the compiler knows of the constants is not what is in memory.
static char *entry(uint32_t index) {
    return ((char *const volatile *)table)[index];
}

static char *expected(uint32_t index, int by) {
    return target + (index - CHANGED < CHANGED_ENTRIES ? (index + by) % ENTRIES : index);
}

static void check_all(void) {
    int by = atomic_load(&changed_by);
    for (uint32_t i = 0; i < ENTRIES; i++)
        EXPECT(entry(i) == expected(i, by));
}

static void *reads(void *unused) {
    for (uint32_t i = 0; !atomic_load(&is_over); i = (i + 4099) % (ENTRIES / 4))
        EXPECT(entry(i) == target + i);
    return unused;
}

static void on_error(int signal) {
    siglongjmp(back, signal);
}

static void store_is_an_error(uint32_t index) {
    char *before = entry(index);
    int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        *(char *volatile *)&table[index] = target;
        fail("a store to a constant is an error", __LINE__);
    }
    EXPECT(signal == SIGSEGV && entry(index) == before);
}

static void rewrite(uint64_t *ballast, uint64_t words, uint64_t stamp) {
    for (uint64_t i = 0; i < words; i += PAGE / 8) {
        EXPECT(ballast[i] == (stamp == 0 ? 0 : i + stamp - 1));
        ballast[i] = i + stamp;
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        dprintf(2, "usage: sealed MIB\n");
        return 2;
    }
    uint64_t words = strtoull(argv[1], NULL, 10) << 17;
    uint64_t *ballast = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(ballast != MAP_FAILED && signal(SIGSEGV, on_error) != SIG_ERR);
    pthread_t reader;
    EXPECT(pthread_create(&reader, NULL, reads, NULL) == 0);
    for (uint64_t stamp = 0; stamp < 6; stamp++) {
        case_name = "the table while memory is rewritten";
        rewrite(ballast, words, stamp);
        check_all();
        case_name = "stores";
        for (uint32_t i = 0; i < ENTRIES; i += 777 * 64)
            store_is_an_error(i);
        if (stamp == 2) {
            case_name = "a child";
            pid_t child = fork();
            EXPECT(child >= 0);
            if (child == 0) {
                rewrite(ballast, words / 4, stamp + 1);
                check_all();
                store_is_an_error(ENTRIES - 1);
                _exit(0);
            }
            int status;
            EXPECT(waitpid(child, &status, 0) == child && status == 0);
        }
        if (stamp == 3) {
            case_name = "a part that the program changes";
            void *part = (void *)((uintptr_t)&table[CHANGED] / PAGE * PAGE);
            EXPECT(mprotect(part, CHANGED_ENTRIES * 8 + PAGE, PROT_READ | PROT_WRITE) == 0);
            for (uint32_t i = CHANGED; i < CHANGED + CHANGED_ENTRIES; i++)
                *(char *volatile *)&table[i] = target + (i + 1) % ENTRIES;
            atomic_store(&changed_by, 1);
            rewrite(ballast, words, stamp + 1);
            stamp++;
            *(char *volatile *)&table[CHANGED] = target + CHANGED + 1;
            check_all();
            EXPECT(mprotect(part, CHANGED_ENTRIES * 8 + PAGE, PROT_READ) == 0);
        }
    }
    atomic_store(&is_over, 1);
    EXPECT(pthread_join(reader, NULL) == 0);
    dprintf(1, "sealed: right\n");
    return 0;
}
