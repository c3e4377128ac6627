// hotload: accesses of one thread to pages of one anonymous region, some of them more often than others, every page checked.
//
//   hotload PAGES ACCESSES hot HOT_PAGES PER_THOUSAND   PER_THOUSAND of the accesses go to a hot set, the rest to all pages
//   hotload PAGES ACCESSES zipf EXPONENT                rank r is drawn as r^-EXPONENT is to the sum of all
//   hotload PAGES ACCESSES loop                         all pages again and again in one random order
//
// A tenth of the accesses of `hot` and `zipf` are writes, those of `loop` are reads. Which page a rank stands for is drawn once,
// so that neighbours in rank are no neighbours in memory. The region is filled before, in ascending order, with words that do not
// compress and are never zero. A page carries its number and version in its first and last word; a page that came back old,
// torn or swapped with another ends the program with 1. Nothing but the version (4 bytes a page) is kept aside.
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_WORDS = 512 };

static uint64_t *region;
static uint32_t *version;
static uint64_t pages;
static uint64_t state = 88172645463325252u;

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static uint64_t draw(void) {
    return mix(state += 0x9E3779B97F4A7C15u);
}

static double unit(void) {
    return (double)(draw() >> 11) * 0x1p-53;
}

// A permutation of 0..pages without a table: a Feistel network over the next even power of two, walked until it falls inside.
static uint64_t page_of(uint64_t rank) {
    unsigned half = 1;
    while (1ull << 2 * half < pages) {
        half++;
    }
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = rank >> half, right = rank & mask;
        for (uint64_t round = 1; round <= 4; round++) {
            uint64_t next = left ^ (mix(right + (round << 40)) & mask);
            left = right;
            right = next;
        }
        rank = left << half | right;
    } while (rank >= pages);
    return rank;
}

static uint64_t stamp(uint64_t page) {
    return ((page + 1) << 32) | version[page];
}

static void fill(uint64_t page) {
    uint64_t *words = region + page * PAGE_WORDS;
    for (int i = 1; i < PAGE_WORDS - 1; i++) {
        words[i] = mix(page * PAGE_WORDS + (uint64_t)i) | 1;
    }
    version[page] = 1;
    words[0] = stamp(page);
    words[PAGE_WORDS - 1] = ~stamp(page);
}

static void touch(uint64_t page, int write) {
    volatile uint64_t *words = region + page * PAGE_WORDS;
    uint64_t first = words[0], last = words[PAGE_WORDS - 1];
    if (first != stamp(page) || last != ~stamp(page)) {
        fprintf(stderr, "hotload: WRONG page %" PRIu64 ": first %016" PRIx64 " last %016" PRIx64 ", expected %016" PRIx64 "\n",
                page, first, last, stamp(page));
        exit(1);
    }
    if (write) {
        version[page]++;
        words[0] = stamp(page);
        words[PAGE_WORDS - 1] = ~stamp(page);
    }
}

// Rejection from the curve above the steps (Hormann and Derflinger 1996), so that no table of the ranks is needed.
static double exponent, whole, start;

static double integral(double x) {
    return exponent == 1.0 ? log(x) : (pow(x, 1.0 - exponent) - 1.0) / (1.0 - exponent);
}

static double inverse(double y) {
    return exponent == 1.0 ? exp(y) : pow(1.0 + y * (1.0 - exponent), 1.0 / (1.0 - exponent));
}

static uint64_t zipf_rank(void) {
    for (;;) {
        double u = whole + unit() * (start - whole), x = inverse(u), k = floor(x + 0.5);
        k = k < 1.0 ? 1.0 : k > (double)pages ? (double)pages : k;
        if (u >= integral(k + 0.5) - pow(k, -exponent)) {
            return (uint64_t)k - 1;
        }
    }
}

int main(int argc, char **argv) {
    const char *kind = argc > 3 ? argv[3] : "";
    int hot = argc == 6 && !strcmp(kind, "hot"), zipf = argc == 5 && !strcmp(kind, "zipf"), loop = argc == 4 && !strcmp(kind, "loop");
    if (!hot && !zipf && !loop) {
        fprintf(stderr, "usage: hotload PAGES ACCESSES hot HOT_PAGES PER_THOUSAND | zipf EXPONENT | loop\n");
        return 2;
    }
    pages = strtoull(argv[1], NULL, 10);
    uint64_t accesses = strtoull(argv[2], NULL, 10), hot_pages = hot ? strtoull(argv[4], NULL, 10) : 0;
    uint64_t per_thousand = hot ? strtoull(argv[5], NULL, 10) : 0;
    if (pages == 0 || hot_pages > pages || (hot && hot_pages == 0)) {
        fprintf(stderr, "hotload: PAGES must be positive and HOT_PAGES at most PAGES\n");
        return 2;
    }
    exponent = zipf ? strtod(argv[4], NULL) : 1.0;
    start = integral(1.5) - 1.0;
    whole = integral((double)pages + 0.5);
    region = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    version = calloc(pages, sizeof *version);
    if (region == MAP_FAILED || !version) {
        perror("hotload: memory");
        return 1;
    }
    madvise(region, pages * 4096, MADV_NOHUGEPAGE);
    for (uint64_t page = 0; page < pages; page++) {
        fill(page);
    }
    uint64_t digest = 0;
    for (uint64_t index = 0; index < accesses; index++) {
        uint64_t rank = index % pages;
        if (hot) {
            rank = draw() % (draw() % 1000 < per_thousand ? hot_pages : pages);
        } else if (zipf) {
            rank = zipf_rank();
        }
        uint64_t page = page_of(rank);
        touch(page, !loop && draw() % 10 == 0);
        digest = digest * 31 + page;
    }
    for (uint64_t page = 0; page < pages; page++) {
        digest = digest * 31 + version[page];
    }
    printf("%" PRIu64 " accesses, digest %016" PRIx64 "\n", accesses, digest);
    return 0;
}
