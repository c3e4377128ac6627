// regrow: threads that each unmap the end of a mapping and let what is left grow into the same place at once: it is empty there.
//
//   regrow THREADS MAPPINGS ROUNDS
//
// Each thread has so many mappings of 16 pages, and does so with each in every round. Prints "regrow: right" (exit status 0), or what is
// wrong: 1.
#include "expect.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 16, LEFT = 8, APART = 64 };

static uint64_t mappings, rounds;

// With nothing mapped behind it.
static uint64_t *map(void) {
    unsigned char *memory = mmap(NULL, APART * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    EXPECT(munmap(memory + PAGES * PAGE, (APART - PAGES) * PAGE) == 0);
    return (uint64_t *)memory;
}

static uint64_t *word(uint64_t *memory, uint64_t page) {
    return memory + page * (PAGE / sizeof *memory) + page;
}

static void *regrows(void *number) {
    uint64_t **memories = calloc(mappings, sizeof *memories), stamp = (uint64_t)(uintptr_t)number << 32;
    EXPECT(memories);
    for (uint64_t i = 0; i < mappings; i++)
        memories[i] = map();
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint64_t i = 0; i < mappings; i++)
            for (uint64_t page = 0; page < PAGES; page++)
                *(volatile uint64_t *)word(memories[i], page) = stamp + i * PAGES + page + 1;
        for (uint64_t i = 0; i < mappings; i++) {
            EXPECT(munmap(word(memories[i], LEFT) - LEFT, (PAGES - LEFT) * PAGE) == 0);
            // Another thread may have mapped something there.
            void *grown = mremap(memories[i], LEFT * PAGE, PAGES * PAGE, MREMAP_MAYMOVE);
            EXPECT(grown != MAP_FAILED);
            memories[i] = grown;
            for (uint64_t page = 0; page < PAGES; page++)
                EXPECT(*(volatile uint64_t *)word(memories[i], page) == (page < LEFT ? stamp + i * PAGES + page + 1 : 0));
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        dprintf(2, "usage: regrow THREADS MAPPINGS ROUNDS\n");
        return 2;
    }
    uint64_t threads = strtoull(argv[1], NULL, 10);
    mappings = strtoull(argv[2], NULL, 10);
    rounds = strtoull(argv[3], NULL, 10);
    pthread_t *all = calloc(threads, sizeof *all);
    EXPECT(all);
    for (uint64_t i = 0; i < threads; i++)
        EXPECT(pthread_create(&all[i], NULL, regrows, (void *)(uintptr_t)(i + 1)) == 0);
    for (uint64_t i = 0; i < threads; i++)
        EXPECT(pthread_join(all[i], NULL) == 0);
    dprintf(1, "regrow: right\n");
    return 0;
}
