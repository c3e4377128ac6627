// memload: one anonymous region, timed passes over it, every page checked.
//
//   memload MIB SCRIPT [THREADS] [--latency]
//
// SCRIPT is a list of phases:
//   w     rewrite every page, ascending           r     check every page, ascending
//   b     check every page, descending            s     check every second page
//   WN    N random rewrites in all                RN    N random checks in all
//   cN    combined: half of the threads rewrite the lower half of the region once, ascending, while the others
//         do N random rewrites in the upper half (at least two threads)
//
// The region is filled before the first phase (untimed) with words that do not compress and are never zero. A page
// carries its number and its version in its first and last word; the versions are kept aside. A rewrite or a
// check compares both words first: a page that came back old, torn or swapped with another ends the program with 1.
// One JSON line per phase. Sequential phases give each thread one contiguous share; random ones give thread t the
// pages with index = t modulo THREADS, so that no two threads write one page and neighbours belong to different threads.
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE_WORDS = 512, THREADS_MAX = 64, BUCKETS = 64 * 16 };

struct worker {
    pthread_t id;
    unsigned index;
    uint64_t rng;
    uint64_t done;
    uint64_t latency[BUCKETS];
};

static uint64_t *region;
static uint32_t *version;
static uint64_t pages;
static unsigned threads = 1;
static int want_latency;
static char phase_kind;
static uint64_t phase_count;
static pthread_barrier_t gate;
static struct worker workers[THREADS_MAX];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// xorshift64 (13, 7, 17), as in the simulator's scripts.
static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static uint64_t stamp(uint64_t page) {
    return ((page + 1) << 32) | version[page];
}

static void fill(uint64_t page) {
    uint64_t *words = region + page * PAGE_WORDS;
    uint64_t x = page * 0x9E3779B97F4A7C15u + 88172645463325252u;
    for (int i = 1; i < PAGE_WORDS - 1; i++) {
        words[i] = next_random(&x);
    }
    words[0] = stamp(page);
    words[PAGE_WORDS - 1] = ~stamp(page);
}

static void check(uint64_t page) {
    const volatile uint64_t *words = region + page * PAGE_WORDS;
    uint64_t first = words[0], last = words[PAGE_WORDS - 1];
    if (first != stamp(page) || last != ~stamp(page)) {
        fprintf(stderr, "memload: WRONG page %" PRIu64 ": first %016" PRIx64 " last %016" PRIx64 ", expected %016" PRIx64 "\n",
                page, first, last, stamp(page));
        exit(1);
    }
}

static void rewrite(uint64_t page) {
    volatile uint64_t *words = region + page * PAGE_WORDS;
    check(page);
    version[page]++;
    words[0] = stamp(page);
    words[PAGE_WORDS - 1] = ~stamp(page);
}

// 16 linear steps in each power of two.
static unsigned bucket_of(uint64_t ns) {
    if (ns < 16) {
        return (unsigned)ns;
    }
    unsigned log = 63u - (unsigned)__builtin_clzll(ns);
    return (log - 3) * 16 + (unsigned)((ns >> (log - 4)) & 15);
}

static uint64_t bucket_floor(unsigned bucket) {
    if (bucket < 16) {
        return bucket;
    }
    unsigned log = bucket / 16 + 3;
    return (1ull << log) | ((uint64_t)(bucket % 16) << (log - 4));
}

static void touch(struct worker *self, uint64_t page, int write) {
    uint64_t begin = want_latency ? now_ns() : 0;
    if (write) {
        rewrite(page);
    } else {
        check(page);
    }
    if (want_latency) {
        self->latency[bucket_of(now_ns() - begin)]++;
    }
    self->done++;
}

static void sequential(struct worker *self, uint64_t begin, uint64_t end, int write) {
    for (uint64_t page = begin; page < end; page++) {
        touch(self, page, write);
    }
}

// `count` random pages of [begin, end) whose index is `lane` modulo `lanes`.
static void random_pages(struct worker *self, uint64_t begin, uint64_t end, uint64_t lane, uint64_t lanes, uint64_t count, int write) {
    uint64_t own = (end - begin - lane + lanes - 1) / lanes;
    for (uint64_t i = 0; i < count; i++) {
        touch(self, begin + (next_random(&self->rng) % own) * lanes + lane, write);
    }
}

static void combined(struct worker *self) {
    uint64_t half = pages / 2, writers = threads / 2, others = threads - writers;
    if (self->index < writers) {
        sequential(self, half * self->index / writers, half * (self->index + 1) / writers, 1);
    } else {
        random_pages(self, half, pages, self->index - writers, others, phase_count / others, 1);
    }
}

static void run_phase(struct worker *self) {
    uint64_t begin = pages * self->index / threads, end = pages * (self->index + 1) / threads;
    switch (phase_kind) {
    case 'w': sequential(self, begin, end, 1); break;
    case 'r': sequential(self, begin, end, 0); break;
    case 'b':
        for (uint64_t page = end; page-- > begin;) {
            touch(self, page, 0);
        }
        break;
    case 's':
        for (uint64_t page = begin; page < end; page += 2) {
            touch(self, page, 0);
        }
        break;
    case 'W': random_pages(self, 0, pages, self->index, threads, phase_count / threads, 1); break;
    case 'R': random_pages(self, 0, pages, self->index, threads, phase_count / threads, 0); break;
    case 'c': combined(self); break;
    }
}

static void *work(void *arg) {
    struct worker *self = arg;
    for (;;) {
        pthread_barrier_wait(&gate);
        if (phase_kind == 0) {
            return NULL;
        }
        run_phase(self);
        pthread_barrier_wait(&gate);
    }
}

// Only accesses of 1 us and more count: those that had to wait for something.
static uint64_t slow_percentile(uint64_t *slow, unsigned per_thousand) {
    static uint64_t sum[BUCKETS];
    uint64_t total = 0;
    memset(sum, 0, sizeof sum);
    for (unsigned t = 0; t < threads; t++) {
        for (unsigned b = bucket_of(1000); b < BUCKETS; b++) {
            sum[b] += workers[t].latency[b];
            total += workers[t].latency[b];
        }
    }
    *slow = total;
    uint64_t want = total * per_thousand / 1000, seen = 0;
    for (unsigned b = 0; b < BUCKETS; b++) {
        seen += sum[b];
        if (seen > want) {
            return bucket_floor(b);
        }
    }
    return 0;
}

static void time_phase(const char *name) {
    for (unsigned t = 0; t < threads; t++) {
        workers[t].done = 0;
        memset(workers[t].latency, 0, sizeof workers[t].latency);
    }
    uint64_t begin = now_ns();
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    uint64_t ns = now_ns() - begin, done = 0;
    for (unsigned t = 0; t < threads; t++) {
        done += workers[t].done;
    }
    printf("{\"phase\":\"%s\",\"pages\":%" PRIu64 ",\"ns\":%" PRIu64 ",\"pages_per_s\":%" PRIu64, name, done, ns,
           (uint64_t)((double)done * 1e9 / (double)ns));
    if (want_latency) {
        uint64_t slow, p50 = slow_percentile(&slow, 500), p99 = slow_percentile(&slow, 990);
        printf(",\"slow\":%" PRIu64 ",\"slow_p50_ns\":%" PRIu64 ",\"slow_p99_ns\":%" PRIu64, slow, p50, p99);
    }
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: memload MIB SCRIPT [THREADS] [--latency]\n");
        return 2;
    }
    pages = strtoull(argv[1], NULL, 10) * 256;
    if (argc > 3) {
        threads = (unsigned)strtoul(argv[3], NULL, 10);
    }
    want_latency = argc > 4 && strcmp(argv[4], "--latency") == 0;
    if (pages == 0 || threads == 0 || threads > THREADS_MAX) {
        fprintf(stderr, "memload: MIB must be positive and THREADS 1..%d\n", THREADS_MAX);
        return 2;
    }
    region = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    version = calloc(pages, sizeof *version);
    if (region == MAP_FAILED || !version) {
        perror("memload: memory");
        return 1;
    }
    madvise(region, pages * 4096, MADV_NOHUGEPAGE);
    for (uint64_t page = 0; page < pages; page++) {
        version[page] = 1;
        fill(page);
    }
    pthread_barrier_init(&gate, NULL, threads + 1);
    for (unsigned t = 0; t < threads; t++) {
        workers[t].index = t;
        workers[t].rng = 88172645463325252u + t * 0x9E3779B97F4A7C15u;
        pthread_create(&workers[t].id, NULL, work, &workers[t]);
    }
    for (char *name = strtok(argv[2], " "); name; name = strtok(NULL, " ")) {
        phase_kind = name[0];
        phase_count = strtoull(name + 1, NULL, 10);
        if (!strchr("wrbsWRc", phase_kind) || (phase_kind == 'c' && threads < 2)) {
            fprintf(stderr, "memload: unknown phase '%s' for %u threads\n", name, threads);
            return 2;
        }
        time_phase(name);
    }
    phase_kind = 0;
    pthread_barrier_wait(&gate);
    for (unsigned t = 0; t < threads; t++) {
        pthread_join(workers[t].id, NULL);
    }
    for (uint64_t page = 0; page < pages; page++) {
        check(page);
    }
    return 0;
}
