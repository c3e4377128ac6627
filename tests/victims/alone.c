// alone: threads rewrite and check memory while the user may have no further process or thread: what the runtime or the kernel would make
// one for has to be done without.
//
//   alone MIB THREADS
//
// Becomes an ordinary user if it is root, whom the limit does not bind. Prints "alone: right" (exit status 0).
#include "expect.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PAGE_WORDS = 512, ROUNDS = 3, ORDINARY = 54322 };

static uint64_t *memory;
static size_t pages;
static unsigned thread_count;
static pthread_barrier_t limited;

static uint64_t word(size_t page, unsigned round) { return page * 0x9e3779b97f4a7c15u + round + 1; }

static void *rewrites(void *argument) {
    pthread_barrier_wait(&limited);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (size_t page = (uintptr_t)argument; page < pages; page += thread_count) {
            EXPECT(memory[page * PAGE_WORDS] == word(page, round));
            memory[page * PAGE_WORDS] = word(page, round + 1);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        dprintf(2, "usage: alone MIB THREADS\n");
        return 2;
    }
    pages = (size_t)atoi(argv[1]) << 8;
    thread_count = (unsigned)atoi(argv[2]);
    if (getuid() == 0)
        EXPECT(setgid(ORDINARY) == 0 && setuid(ORDINARY) == 0);
    memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    for (size_t page = 0; page < pages; page++)
        memory[page * PAGE_WORDS] = word(page, 0);
    EXPECT(pthread_barrier_init(&limited, NULL, thread_count + 1) == 0);
    pthread_t *threads = calloc(thread_count, sizeof *threads);
    for (uintptr_t i = 0; i < thread_count; i++)
        EXPECT(pthread_create(&threads[i], NULL, rewrites, (void *)i) == 0);
    struct rlimit one = {1, 1};
    EXPECT(setrlimit(RLIMIT_NPROC, &one) == 0);
    pthread_barrier_wait(&limited);
    for (unsigned i = 0; i < thread_count; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    dprintf(1, "alone: right\n");
    return 0;
}
