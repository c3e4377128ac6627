// moved: mremap of what is several mappings to the kernel, or was one until some of it was registered.
//
//   moved MIB [signals]
//
// MIB MiB of ballast are rewritten after each case has prepared its pages, so that under a budget well below it they are out. Prints
// "moved: right" (exit status 0) if all was as it is natively; a wrong byte or answer: 1. With "signals" one comes every few microseconds.
#include "storm.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { PAGE = 4096, PAGES = 16, MIDST = 4, PART = 4 };

static uint64_t *ballast;
static uint64_t ballast_pages, version, stamp;

static void push_out(void) {
    version++;
    for (uint64_t page = 0; page < ballast_pages; page++)
        ballast[page * PAGE / 8] = page + version;
    for (uint64_t page = 0; page < ballast_pages; page++)
        EXPECT(ballast[page * PAGE / 8] == page + version);
}

static unsigned char *map(void *at, uint64_t pages, int rights) {
    int fixed = at ? MAP_FIXED : 0;
    void *memory = mmap(at, pages * PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    EXPECT(memory != MAP_FAILED);
    return memory;
}

static void fill(unsigned char *memory, uint64_t first, uint64_t pages) {
    for (uint64_t page = first; page < first + pages; page++)
        *(uint64_t *)(memory + page * PAGE + 8 * page) = stamp + page;
}

static void check(unsigned char *memory, uint64_t pages) {
    for (uint64_t page = 0; page < pages; page++)
        EXPECT(*(uint64_t *)(memory + page * PAGE + 8 * page) == stamp + page);
}

// Pages that are registered by now.
static unsigned char *prepare(void) {
    stamp += 1000;
    unsigned char *memory = map(NULL, 2 * PAGES, PROT_READ | PROT_WRITE) + PAGES / 2 * PAGE;
    EXPECT(munmap(memory - PAGES / 2 * PAGE, PAGES / 2 * PAGE) == 0);
    EXPECT(munmap(memory + PAGES * PAGE, PAGES / 2 * PAGE) == 0);
    fill(memory, 0, PAGES);
    push_out();
    return memory;
}

// A hole is made and filled again: natively that is one mapping as before.
static unsigned char *mended(uint64_t first) {
    unsigned char *memory = prepare();
    EXPECT(munmap(memory + first * PAGE, PART * PAGE) == 0);
    map(memory + first * PAGE, PART, PROT_READ | PROT_WRITE);
    fill(memory, first, PART);
    return memory;
}

static void move(unsigned char *memory) {
    unsigned char *to = map(NULL, PAGES, PROT_NONE);
    EXPECT(mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    check(to, PAGES);
    unsigned char residency[PAGES];
    EXPECT(mincore(memory, PAGES * PAGE, residency) < 0 && errno == ENOMEM);
    push_out();
    check(to, PAGES);
    EXPECT(munmap(to, PAGES * PAGE) == 0);
}

static void grow(unsigned char *memory, int is_fixed) {
    unsigned char *to = is_fixed ? map(NULL, 2 * PAGES, PROT_NONE) : NULL;
    int flags = MREMAP_MAYMOVE | (is_fixed ? MREMAP_FIXED : 0);
    unsigned char *grown = mremap(memory, PAGES * PAGE, 2 * PAGES * PAGE, flags, to);
    EXPECT(grown != MAP_FAILED && (!is_fixed || grown == to));
    check(grown, PAGES);
    for (uint64_t byte = PAGES * PAGE; byte < 2 * PAGES * PAGE; byte++)
        EXPECT(grown[byte] == 0);
    fill(grown, PAGES, PAGES);
    push_out();
    check(grown, 2 * PAGES);
    EXPECT(munmap(grown, 2 * PAGES * PAGE) == 0);
}

// The old place stays mapped, and empty.
static void move_away(unsigned char *memory, int is_fixed) {
    unsigned char *to = is_fixed ? map(NULL, PAGES, PROT_NONE) : NULL;
    int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP | (is_fixed ? MREMAP_FIXED : 0);
    unsigned char *moved = mremap(memory, PAGES * PAGE, PAGES * PAGE, flags, to);
    EXPECT(moved != MAP_FAILED && (!is_fixed || moved == to));
    check(moved, PAGES);
    for (uint64_t byte = 0; byte < PAGES * PAGE; byte++)
        EXPECT(memory[byte] == 0);
    push_out();
    check(moved, PAGES);
    EXPECT(munmap(moved, PAGES * PAGE) == 0 && munmap(memory, PAGES * PAGE) == 0);
}

static void shrink_to(unsigned char *memory) {
    unsigned char *to = map(NULL, PAGES, PROT_NONE);
    EXPECT(mremap(memory, PAGES * PAGE, (PAGES - 1) * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    check(to, PAGES - 1);
    unsigned char residency[1];
    EXPECT(mincore(memory + (PAGES - 1) * PAGE, PAGE, residency) < 0 && errno == ENOMEM);
    EXPECT(munmap(to, PAGES * PAGE) == 0);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        dprintf(2, "usage: moved MIB [signals]\n");
        return 2;
    }
    ballast_pages = strtoull(argv[1], NULL, 10) << 8;
    ballast = (uint64_t *)map(NULL, ballast_pages, PROT_READ | PROT_WRITE);
    if (argc == 3)
        storm_begin();

    for (uint64_t first = 0; first < PAGES; first += MIDST) {
        case_name = "moved with a part that was mapped again";
        move(mended(first));
        case_name = "moved away with a part that was mapped again";
        move_away(mended(first), 0);
        case_name = "moved away to a place with a part that was mapped again";
        move_away(mended(first), 1);
        case_name = "shrunk to a place with a part that was mapped again";
        shrink_to(mended(first));
        case_name = "grown with a part that was mapped again";
        grow(mended(first), 0);
        case_name = "grown to a place with a part that was mapped again";
        grow(mended(first), 1);
        // In place there is no room.
        case_name = "grown where something stands in the way";
        unsigned char *memory = mended(first);
        unsigned char *wall = map(memory + PAGES * PAGE, 1, PROT_NONE);
        EXPECT(mremap(memory, PAGES * PAGE, 2 * PAGES * PAGE, 0) == MAP_FAILED && errno == ENOMEM);
        check(memory, PAGES);
        grow(memory, 0);
        EXPECT(munmap(wall, PAGE) == 0);
    }
    case_name = "what is not mapped";
    unsigned char *memory = prepare();
    unsigned char *to = map(NULL, PAGES, PROT_READ);
    EXPECT(munmap(memory, PAGE) == 0);
    EXPECT(mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED && errno == EFAULT);
    EXPECT(mremap(memory, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    EXPECT(munmap(memory, PAGES * PAGE) == 0 && munmap(to, PAGES * PAGE) == 0);

    // Several mappings natively: Linux moves them at once since 6.17, and never lets them grow.
    case_name = "several mappings";
    unsigned char *two = map(NULL, 2 * PAGES, PROT_READ | PROT_WRITE);
    to = map(NULL, 2, PROT_NONE);
    EXPECT(mprotect(two + PAGE, PAGE, PROT_READ) == 0);
    if (mremap(two, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to) {
        memory = prepare();
        EXPECT(mprotect(memory + MIDST * PAGE, PART * PAGE, PROT_READ) == 0);
        EXPECT(mremap(memory, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
        to = map(NULL, PAGES, PROT_NONE);
        EXPECT(mremap(memory, PAGES * PAGE, (PAGES - 1) * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED && errno == EFAULT);
        move(memory);
        memory = prepare();
        EXPECT(madvise(memory + MIDST * PAGE, PART * PAGE, MADV_DONTFORK) == 0);
        move(memory);
        memory = prepare();
        case_name = "moved away with pages of a file before the others";
        memory = prepare();
        int file = memfd_create("moved", 0);
        EXPECT(file >= 0 && ftruncate(file, PART * PAGE) == 0);
        EXPECT(mmap(memory, PART * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == memory);
        fill(memory, 0, PART);
        move_away(memory, 1);
        case_name = "moved away over itself, or out of all addresses";
        memory = prepare();
        EXPECT(mprotect(memory, PAGES / 2 * PAGE, PROT_READ) == 0);
        int keep = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
        void *places[] = {memory + PAGES / 2 * PAGE, memory - PAGES / 2 * PAGE, (void *)(((uintptr_t)1 << 47) - PAGES / 2 * PAGE)};
        for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
            EXPECT(mremap(memory, PAGES * PAGE, PAGES * PAGE, keep, places[i]) == MAP_FAILED && errno == EINVAL);
            check(memory, PAGES);
        }
        EXPECT(mremap(memory, 0, 0, keep, places[0]) == MAP_FAILED && errno == EINVAL);
        EXPECT(munmap(memory, PAGES * PAGE) == 0);
        case_name = "moved with a hole";
        memory = prepare();
        EXPECT(munmap(memory + MIDST * PAGE, PART * PAGE) == 0);
        to = map(NULL, PAGES, PROT_NONE);
        EXPECT(syscall(SYS_mremap, memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == (long)to);
        check(to, MIDST);
    }
    dprintf(1, "moved: right\n");
    return 0;
}
