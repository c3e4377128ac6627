// hoard: threads that map, fill and unmap blocks of memory all at once, until together they have so much; then each checks what it has.
//
//   hoard THREADS MIB [malloc]
//
// malloc: the blocks are malloc's, of up to 96 KiB, in heaps that it reserves and grows by mprotect. They are there, and small, before MIB MiB
// are mapped, filled and unmapped; then they grow.
//
// Most of them wait for the lock of the address space, and so does whoever looks into it from outside. Prints "hoard: right" (exit status 0), or
// what is wrong: 1.
#include "expect.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, BLOCKS = 4096, BLOCK_PAGES = 512, HEAP_BLOCK_PAGES = 24 };

struct block {
    unsigned char *memory;
    uint64_t pages, stamp;
};

static uint64_t share; // pages of each thread
static int uses_malloc;
static pthread_barrier_t ready, begun;

static unsigned char *allocate(uint64_t pages) {
    if (uses_malloc)
        return malloc(pages * PAGE);
    void *fresh = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return fresh == MAP_FAILED ? NULL : fresh;
}

static void give_back(struct block *of) {
    if (uses_malloc)
        free(of->memory);
    else
        EXPECT(munmap(of->memory, of->pages * PAGE) == 0);
}

static uint64_t below(uint64_t *random, uint64_t limit) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random % limit;
}

static volatile uint64_t *word(struct block *of, uint64_t page) {
    return (volatile uint64_t *)(of->memory + page * PAGE + page % 64 * 8);
}

static void fill(struct block *of) {
    for (uint64_t page = 0; page < of->pages; page++)
        *word(of, page) = of->stamp + page;
}

static void check(struct block *of) {
    for (uint64_t page = 0; page < of->pages; page++)
        EXPECT(*word(of, page) == of->stamp + page);
}

static void *hoards(void *number) {
    uint64_t random = 0x9E3779B97F4A7C15u * (uintptr_t)number, held = 0, count = 0, stamp = 0;
    struct block *blocks = calloc(BLOCKS, sizeof *blocks);
    EXPECT(blocks);
    if (uses_malloc) {
        *(volatile unsigned char *)allocate(1) = 1;
        pthread_barrier_wait(&ready);
        pthread_barrier_wait(&begun);
    }
    while (held < share && count < BLOCKS) {
        struct block *fresh = &blocks[count++];
        uint64_t pages = 1 + below(&random, uses_malloc ? HEAP_BLOCK_PAGES : BLOCK_PAGES);
        *fresh = (struct block){.pages = pages, .stamp = (uintptr_t)number << 48 | ++stamp << 16};
        fresh->memory = allocate(pages);
        EXPECT(fresh->memory);
        fill(fresh);
        held += pages;
        if (below(&random, 3) == 0) {
            struct block *old = &blocks[below(&random, count)];
            check(old);
            give_back(old);
            held -= old->pages;
            *old = blocks[--count];
        }
    }
    for (uint64_t i = 0; i < count; i++)
        check(&blocks[i]);
    return NULL;
}

int main(int argc, char **argv) {
    uses_malloc = argc == 4 && strcmp(argv[3], "malloc") == 0;
    if (argc != 3 + uses_malloc) {
        dprintf(2, "usage: hoard THREADS MIB [malloc]\n");
        return 2;
    }
    uint64_t threads = strtoull(argv[1], NULL, 10);
    share = strtoull(argv[2], NULL, 10) * 256 / threads;
    EXPECT(pthread_barrier_init(&ready, NULL, threads + 1) == 0 && pthread_barrier_init(&begun, NULL, threads + 1) == 0);
    pthread_t *all = calloc(threads, sizeof *all);
    EXPECT(all);
    for (uint64_t i = 0; i < threads; i++)
        EXPECT(pthread_create(&all[i], NULL, hoards, (void *)(uintptr_t)(i + 1)) == 0);
    if (uses_malloc) {
        pthread_barrier_wait(&ready);
        struct block first = {.pages = share * threads, .stamp = 1};
        first.memory = mmap(NULL, first.pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT(first.memory != MAP_FAILED);
        fill(&first);
        check(&first);
        EXPECT(munmap(first.memory, first.pages * PAGE) == 0);
        pthread_barrier_wait(&begun);
    }
    for (uint64_t i = 0; i < threads; i++)
        EXPECT(pthread_join(all[i], NULL) == 0);
    dprintf(1, "hoard: right\n");
    return 0;
}
