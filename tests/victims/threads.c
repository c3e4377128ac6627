// threads: many threads read, write and check one shared array whose pages carry versions, in random order.
//
//   threads MIB THREADS SECONDS SEED [--corrupt | --packs]
//
// A page has 511 words that follow from its number and version, and one word, the last, that any thread increments
// atomically without a lock. Under a page's lock a thread checks all words and, every second time, writes the next
// version into all of them. Without a lock it increments, so that a page taken away between the load and the
// store of a locked instruction, or while two threads write, shows as a lost count. At the end every page is
// checked and every count compared. Prints "ok" and ends with 0; a wrong byte ends it at once with 1.
// --packs: its pages compress, to an eighth and a little.
// --corrupt damages one bit behind the checker's back: the program must then fail (the canary of its test).
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_WORDS = 512, COUNT_WORD = 511, THREADS_MAX = 64 };

static uint64_t *array;
static uint32_t *version;
static _Atomic uint32_t *increments;
static _Atomic unsigned char *locked;
static uint64_t pages;
static unsigned equal_words = 1; // so many in a row
static atomic_int stop;
static atomic_ullong operations;

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static uint64_t word(uint64_t page, uint32_t page_version, unsigned index) {
    uint64_t x = (page << 32 | page_version) + index / equal_words * 0x9E3779B97F4A7C15u;
    x ^= x >> 31;
    return x * 0xBF58476D1CE4E5B9u;
}

static void write_page(uint64_t page) {
    volatile uint64_t *words = array + page * PAGE_WORDS;
    for (unsigned i = 0; i < COUNT_WORD; i++) {
        words[i] = word(page, version[page], i);
    }
}

static void check_page(uint64_t page) {
    const volatile uint64_t *words = array + page * PAGE_WORDS;
    for (unsigned i = 0; i < COUNT_WORD; i++) {
        uint64_t found = words[i], expected = word(page, version[page], i);
        if (found != expected) {
            fprintf(stderr, "threads: WRONG page %" PRIu64 " word %u version %" PRIu32 ": %016" PRIx64 ", expected %016" PRIx64 ", now %016" PRIx64 "\n",
                    page, i, version[page], found, expected, words[i]);
            _exit(1);
        }
    }
}

static int try_lock(uint64_t page) {
    return !atomic_exchange_explicit(&locked[page], 1, memory_order_acquire);
}

static void unlock(uint64_t page) {
    atomic_store_explicit(&locked[page], 0, memory_order_release);
}

static void *work(void *arg) {
    uint64_t rng = (uint64_t)(uintptr_t)arg, done = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t page = next_random(&rng) % pages;
        unsigned choice = (unsigned)(next_random(&rng) % 4);
        if (choice == 0) {
            atomic_fetch_add((_Atomic uint64_t *)&array[page * PAGE_WORDS + COUNT_WORD], 1);
            atomic_fetch_add(&increments[page], 1);
        } else if (try_lock(page)) {
            check_page(page);
            if (choice == 1 || choice == 2) {
                version[page]++;
                write_page(page);
            }
            unlock(page);
        }
        done++;
    }
    atomic_fetch_add(&operations, done);
    return NULL;
}

static void check_everything(void) {
    for (uint64_t page = 0; page < pages; page++) {
        check_page(page);
        uint64_t count = array[page * PAGE_WORDS + COUNT_WORD];
        if (count != increments[page]) {
            fprintf(stderr, "threads: WRONG count of page %" PRIu64 ": %" PRIu64 ", expected %" PRIu32 "\n", page, count, increments[page]);
            _exit(1);
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: threads MIB THREADS SECONDS SEED [--corrupt | --packs]\n");
        return 2;
    }
    pages = strtoull(argv[1], NULL, 10) * 256;
    unsigned threads = (unsigned)strtoul(argv[2], NULL, 10);
    time_t seconds = (time_t)strtoul(argv[3], NULL, 10);
    uint64_t seed = strtoull(argv[4], NULL, 10) | 1;
    int corrupt = argc > 5 && strcmp(argv[5], "--corrupt") == 0;
    if (argc > 5 && strcmp(argv[5], "--packs") == 0) {
        equal_words = 16;
    }
    if (threads == 0 || threads > THREADS_MAX) {
        return 2;
    }
    array = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    version = calloc(pages, sizeof *version);
    increments = calloc(pages, sizeof *increments);
    locked = calloc(pages, sizeof *locked);
    if (array == MAP_FAILED || !version || !increments || !locked) {
        perror("threads: memory");
        return 2;
    }
    for (uint64_t page = 0; page < pages; page++) {
        version[page] = 1;
        write_page(page);
    }
    if (corrupt) {
        array[pages / 2 * PAGE_WORDS + 100] ^= 1u << 13;
    }
    pthread_t ids[THREADS_MAX];
    for (unsigned t = 0; t < threads; t++) {
        pthread_create(&ids[t], NULL, work, (void *)(uintptr_t)(seed * 0x9E3779B97F4A7C15u + t * 2 + 1));
    }
    nanosleep(&(struct timespec){.tv_sec = seconds}, NULL);
    atomic_store(&stop, 1);
    for (unsigned t = 0; t < threads; t++) {
        pthread_join(ids[t], NULL);
    }
    check_everything();
    fprintf(stderr, "threads: %llu operations\n", atomic_load(&operations));
    printf("ok\n");
    return 0;
}
