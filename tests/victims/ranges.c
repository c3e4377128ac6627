// ranges: maps, unmaps, moves, grows, shrinks, drops, protects, locks and rewrites random ranges, while a model keeps what
// every byte must be.
//
//   ranges MIB OPERATIONS SEED [--corrupt | --packs | --without=LETTERS]
//
// The model of a page is two stamps and a byte range: bytes [from, to) follow from `inner`, the others from `outer`;
// stamp 0 means zero. Up to about MIB MiB are mapped at a time, in many mappings. Same seed, same operations: the
// program prints a digest of all contents along the way and at the end, equal in every run. A wrong byte ends it
// with 1. --corrupt changes one byte behind the model's back (the canary of its test). --packs: what is written
// compresses. --without leaves kinds of operations out, to narrow a failure down: m map, u unmap, p unmap a part, z resize,
// v move, d move without unmapping, w write, c check, n drop (MADV_DONTNEED), a advise, r protect, l lock, o map over, b break, f fork.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MAPPINGS_MAX = 256, MAPPING_PAGES_MAX = 4096 };

struct model {
    uint32_t outer, inner;
    uint16_t from, to;
};

struct mapping {
    unsigned char *base;
    struct model *model; // one per page
    uint64_t pages;
    int is_one; // nothing has split it into several areas of the kernel: mremap takes it whole
};

static struct mapping mappings[MAPPINGS_MAX];
static unsigned mapping_count;
static uint64_t mapped_pages, pages_max, operation, rng, digest = 14695981039346656037u;
static uint32_t next_stamp = 1;
static unsigned equal_words = 1; // so many in a row

static uint64_t next_random(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    return rng ^= rng << 17;
}

static uint64_t below(uint64_t limit) {
    return next_random() % limit;
}

static void fail(const char *what) {
    fprintf(stderr, "ranges: operation %" PRIu64 ": %s: %s\n", operation, what, strerror(errno));
    exit(2);
}

static unsigned char byte_of(uint32_t stamp, unsigned offset) {
    if (stamp == 0) {
        return 0;
    }
    uint64_t x = (uint64_t)stamp * 0x9E3779B97F4A7C15u + (offset / 8 / equal_words) * 0xD1B54A32D192ED03u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return (unsigned char)(x >> ((offset & 7) * 8));
}

// Which stamp a wrong page's content follows from: an older or newer one of the same page, another page's, or none (0).
static uint32_t stamp_of(const volatile unsigned char *bytes) {
    for (uint32_t stamp = 1; stamp < next_stamp; stamp++) {
        unsigned same = 0;
        while (same < 16 && bytes[same] == byte_of(stamp, same)) {
            same++;
        }
        if (same == 16) {
            return stamp;
        }
    }
    return 0;
}

static void check_page(const struct mapping *m, uint64_t page) {
    const volatile unsigned char *bytes = m->base + page * PAGE;
    const struct model *model = &m->model[page];
    for (unsigned i = 0; i < PAGE; i++) {
        unsigned char expected = byte_of(i >= model->from && i < model->to ? model->inner : model->outer, i);
        unsigned char found = bytes[i];
        if (found != expected) {
            fprintf(stderr, "ranges: WRONG byte %u of page %" PRIu64 " of the mapping at %p (%" PRIu64 " pages), operation %" PRIu64
                            ": %02x, expected %02x, now %02x (model %" PRIu32 " %" PRIu32 " %u..%u; content of stamp %" PRIu32 ", next %" PRIu32 ")\n",
                    i, page, (void *)m->base, m->pages, operation, found, expected, bytes[i], model->outer, model->inner, model->from, model->to, stamp_of(bytes), next_stamp);
            exit(1);
        }
        digest = (digest ^ found) * 1099511628211u;
    }
}

static void check_range(const struct mapping *m, uint64_t first, uint64_t count) {
    for (uint64_t page = first; page < first + count; page++) {
        check_page(m, page);
    }
}

static void write_page(struct mapping *m, uint64_t page) {
    uint32_t stamp = next_stamp++;
    for (unsigned i = 0; i < PAGE; i++) {
        m->base[page * PAGE + i] = byte_of(stamp, i);
    }
    m->model[page] = (struct model){.outer = stamp};
}

static void write_part(struct mapping *m, uint64_t page) {
    struct model *model = &m->model[page];
    if (model->from < model->to) {
        check_page(m, page);
        write_page(m, page);
    }
    model->inner = next_stamp++;
    model->from = (uint16_t)below(PAGE - 1);
    model->to = (uint16_t)(model->from + 1 + below(PAGE - model->from - 1));
    for (unsigned i = model->from; i < model->to; i++) {
        m->base[page * PAGE + i] = byte_of(model->inner, i);
    }
}

static void forget(struct mapping *m, uint64_t first, uint64_t count) {
    memset(&m->model[first], 0, count * sizeof *m->model);
}

static struct mapping *add(unsigned char *base, uint64_t pages) {
    struct mapping *m = &mappings[mapping_count++];
    *m = (struct mapping){.base = base, .pages = pages, .is_one = 1};
    m->model = calloc(pages, sizeof *m->model);
    if (!m->model) {
        fail("model");
    }
    mapped_pages += pages;
    return m;
}

static void remove_mapping(struct mapping *m) {
    mapped_pages -= m->pages;
    free(m->model);
    *m = mappings[--mapping_count];
}

static struct mapping *any(void) {
    return mapping_count ? &mappings[below(mapping_count)] : NULL;
}

// A random range of a mapping: often short, sometimes all.
static void any_range(const struct mapping *m, uint64_t *first, uint64_t *count) {
    *first = below(m->pages);
    uint64_t rest = m->pages - *first, most = below(4) ? (rest < 64 ? rest : 64) : rest;
    *count = 1 + below(most);
}

static int has_room(uint64_t pages) {
    return mapping_count + 2 < MAPPINGS_MAX && mapped_pages + pages <= pages_max;
}

static void op_map(void) {
    uint64_t pages = 1 + below(below(4) ? 256 : MAPPING_PAGES_MAX);
    if (!has_room(pages)) {
        return;
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (below(8) ? 0 : MAP_NORESERVE) | (below(16) ? 0 : MAP_POPULATE);
    unsigned char *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED) {
        fail("mmap");
    }
    struct mapping *m = add(base, pages);
    uint64_t first, count;
    any_range(m, &first, &count);
    for (uint64_t page = first; page < first + count; page++) {
        write_page(m, page);
    }
}

static void op_unmap_all(struct mapping *m) {
    check_range(m, 0, m->pages < 16 ? m->pages : 16);
    if (munmap(m->base, m->pages * PAGE)) {
        fail("munmap");
    }
    remove_mapping(m);
}

// Unmaps a part; what is left above becomes a mapping of its own.
static void op_unmap_part(struct mapping *m) {
    uint64_t first, count;
    any_range(m, &first, &count);
    if (count == m->pages || mapping_count + 2 >= MAPPINGS_MAX) {
        op_unmap_all(m);
        return;
    }
    if (munmap(m->base + first * PAGE, count * PAGE)) {
        fail("munmap part");
    }
    uint64_t above = m->pages - first - count;
    if (above) {
        struct mapping *upper = add(m->base + (first + count) * PAGE, above);
        memcpy(upper->model, m->model + first + count, above * sizeof *m->model);
        upper->is_one = m->is_one;
        mapped_pages -= above;
    }
    mapped_pages -= count;
    m->pages = first;
    if (first == 0) {
        free(m->model);
        *m = mappings[--mapping_count];
    }
}

static void resize_model(struct mapping *m, uint64_t pages) {
    m->model = realloc(m->model, pages * sizeof *m->model);
    if (!m->model) {
        fail("model");
    }
    if (pages > m->pages) {
        memset(m->model + m->pages, 0, (pages - m->pages) * sizeof *m->model);
    }
    mapped_pages += pages - m->pages;
    m->pages = pages;
}

static void op_resize(struct mapping *m) {
    uint64_t pages = below(2) ? 1 + below(m->pages) : m->pages + 1 + below(512);
    if (!m->is_one || (pages > m->pages && !has_room(pages - m->pages))) {
        return;
    }
    unsigned char *base = mremap(m->base, m->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) {
        fail("mremap");
    }
    m->base = base;
    resize_model(m, pages);
}

// Moves the whole mapping onto a place reserved for it, over what was there.
static void op_move(struct mapping *m) {
    if (!m->is_one) {
        return;
    }
    unsigned char *place = mmap(NULL, m->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) {
        fail("reserve");
    }
    memset(place, 0xA5, below(2) ? (size_t)PAGE : m->pages * PAGE);
    if (mremap(m->base, m->pages * PAGE, m->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place) {
        fail("mremap fixed");
    }
    m->base = place;
    check_page(m, below(m->pages));
}

// Moves the pages away and leaves the old range mapped, empty.
static void op_move_dontunmap(struct mapping *m) {
    if (!m->is_one || !has_room(m->pages)) {
        return;
    }
    unsigned char *old = m->base;
    unsigned char *base = mremap(old, m->pages * PAGE, m->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (base == MAP_FAILED) {
        fail("mremap dontunmap");
    }
    m->base = base;
    struct mapping *empty = add(old, m->pages);
    check_page(empty, below(empty->pages));
    write_page(empty, below(empty->pages));
}

static void op_write(struct mapping *m) {
    uint64_t first, count;
    any_range(m, &first, &count);
    for (uint64_t page = first; page < first + count; page++) {
        if (below(4)) {
            write_page(m, page);
        } else {
            write_part(m, page);
        }
    }
}

static void op_check(struct mapping *m) {
    uint64_t first, count;
    any_range(m, &first, &count);
    check_range(m, first, count);
}

static void op_drop(struct mapping *m) {
    uint64_t first, count;
    any_range(m, &first, &count);
    if (madvise(m->base + first * PAGE, count * PAGE, MADV_DONTNEED)) {
        fail("madvise dontneed");
    }
    forget(m, first, count);
    if (below(2)) {
        check_page(m, first + below(count));
    }
    if (below(2)) {
        write_page(m, first + below(count));
    }
}

// Advice that changes no content.
static void op_advise(struct mapping *m) {
    static const int hints[] = {MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL, MADV_HUGEPAGE, MADV_NOHUGEPAGE};
    uint64_t first, count, hint = below(sizeof hints / sizeof *hints);
    any_range(m, &first, &count);
    m->is_one &= hint < 3;
    if (madvise(m->base + first * PAGE, count * PAGE, hints[hint]) && errno != EINVAL) {
        fail("madvise hint");
    }
}

static void op_protect(struct mapping *m) {
    uint64_t first, count;
    any_range(m, &first, &count);
    int prot = below(2) ? PROT_READ : PROT_NONE;
    if (mprotect(m->base + first * PAGE, count * PAGE, prot)) {
        fail("mprotect");
    }
    if (prot == PROT_READ) {
        check_range(m, first, count < 16 ? count : 16);
    }
    if (mprotect(m->base, m->pages * PAGE, PROT_READ | PROT_WRITE)) {
        fail("mprotect back");
    }
    check_page(m, first);
}

static void op_lock(struct mapping *m) {
    uint64_t first, count;
    any_range(m, &first, &count);
    count = count < 128 ? count : 128;
    if (mlock(m->base + first * PAGE, count * PAGE)) {
        if (errno == ENOMEM || errno == EPERM || errno == EAGAIN) {
            return;
        }
        fail("mlock");
    }
    check_range(m, first, count < 8 ? count : 8);
    write_page(m, first);
    if (munlock(m->base + first * PAGE, count * PAGE)) {
        fail("munlock");
    }
}

// Maps fresh memory over a part: it must read as zero.
static void op_map_over(struct mapping *m) {
    uint64_t first, count;
    any_range(m, &first, &count);
    if (mmap(m->base + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        fail("mmap fixed");
    }
    m->is_one = 0;
    forget(m, first, count);
    check_page(m, first + below(count));
}

static uint64_t heap_pages;
static uint32_t *heap_stamps;
static unsigned char *heap_base;

static void check_heap_page(uint64_t page) {
    for (unsigned i = 0; i < PAGE; i += 61) {
        if (heap_base[page * PAGE + i] != byte_of(heap_stamps[page], i)) {
            fprintf(stderr, "ranges: WRONG heap page %" PRIu64 ", operation %" PRIu64 "\n", page, operation);
            exit(1);
        }
    }
}

// Grows and shrinks the program break; pages above an old break come back as zero.
static void op_brk(struct mapping *unused) {
    (void)unused;
    enum { HEAP_PAGES_MAX = 4096 };
    if (!heap_base) {
        heap_stamps = mmap(NULL, HEAP_PAGES_MAX * sizeof *heap_stamps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        unsigned char *now = sbrk(0);
        heap_base = (unsigned char *)(((uintptr_t)now + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
        if (brk(heap_base)) {
            fail("brk");
        }
    }
    if (sbrk(0) != heap_base + heap_pages * PAGE) {
        return; // the allocator moved the break: the heap is no longer ours
    }
    uint64_t pages = below(HEAP_PAGES_MAX);
    for (uint64_t page = 0; page < heap_pages; page += 1 + below(64)) {
        check_heap_page(page);
    }
    if (brk(heap_base + pages * PAGE)) {
        fail("brk");
    }
    for (uint64_t page = heap_pages; page < pages; page++) {
        heap_stamps[page] = 0;
        check_heap_page(page);
        if (below(4)) {
            heap_stamps[page] = next_stamp++;
            for (unsigned i = 0; i < PAGE; i++) {
                heap_base[page * PAGE + i] = byte_of(heap_stamps[page], i);
            }
        }
    }
    heap_pages = pages;
}

// A child checks some of everything, changes some of its own copy, and ends; the parent must not see the changes.
static void op_fork(struct mapping *unused) {
    (void)unused;
    pid_t child = fork();
    if (child < 0) {
        fail("fork");
    }
    if (child == 0) {
        for (unsigned i = 0; i < 32 && mapping_count; i++) {
            struct mapping *m = any();
            uint64_t page = below(m->pages);
            check_page(m, page);
            write_page(m, page);
            check_page(m, page);
        }
        _exit(0);
    }
    for (unsigned i = 0; i < 8 && mapping_count; i++) {
        struct mapping *m = any();
        write_page(m, below(m->pages));
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "ranges: WRONG: child ended with status %x, operation %" PRIu64 "\n", status, operation);
        exit(1);
    }
}

static const struct {
    char letter;
    unsigned weight; // of 400
    void (*run)(struct mapping *);
} operations[] = {
    {'m', 56, NULL},    {'u', 12, op_unmap_all},       {'p', 16, op_unmap_part}, {'z', 20, op_resize},
    {'v', 12, op_move}, {'d', 8, op_move_dontunmap},   {'w', 108, op_write},     {'c', 88, op_check},
    {'n', 24, op_drop}, {'a', 16, op_advise},          {'r', 12, op_protect},    {'l', 8, op_lock},
    {'o', 8, op_map_over}, {'b', 11, op_brk},          {'f', 1, op_fork},
};

static const char *left_out = "";

static void step(void) {
    uint64_t choice = below(400);
    struct mapping *m = any();
    for (unsigned i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (choice < operations[i].weight) {
            if (!m || !operations[i].run) {
                op_map();
            } else if (!strchr(left_out, operations[i].letter)) {
                operations[i].run(m);
            }
            return;
        }
        choice -= operations[i].weight;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: ranges MIB OPERATIONS SEED [--corrupt | --packs | --without=LETTERS]\n");
        return 2;
    }
    pages_max = strtoull(argv[1], NULL, 10) * 256;
    uint64_t operation_count = strtoull(argv[2], NULL, 10);
    rng = strtoull(argv[3], NULL, 10) * 0x9E3779B97F4A7C15u | 1;
    int corrupt = argc > 4 && strcmp(argv[4], "--corrupt") == 0;
    if (argc > 4 && strcmp(argv[4], "--packs") == 0) {
        equal_words = 16;
    }
    if (argc > 4 && strncmp(argv[4], "--without=", 10) == 0) {
        left_out = argv[4] + 10;
    }
    // The first mappings fill three quarters of the room, so that the rest of the run is about paged-out pages.
    while (mapped_pages < pages_max * 3 / 4 && mapping_count < MAPPINGS_MAX / 2) {
        uint64_t pages = pages_max / 64;
        unsigned char *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) {
            fail("mmap");
        }
        struct mapping *m = add(base, pages);
        for (uint64_t page = 0; page < pages; page++) {
            write_page(m, page);
        }
    }
    for (operation = 1; operation <= operation_count; operation++) {
        step();
        if (operation % (operation_count / 8 + 1) == 0) {
            printf("%" PRIu64 " %016" PRIx64 "\n", operation, digest);
        }
    }
    if (corrupt) {
        mappings[0].base[5] ^= 4;
    }
    for (unsigned i = 0; i < mapping_count; i++) {
        check_range(&mappings[i], 0, mappings[i].pages);
    }
    printf("end %016" PRIx64 " %u mappings %" PRIu64 " pages\n", digest, mapping_count, mapped_pages);
    return 0;
}
