// crowd: threads that map, fill, move, cut, drop and unmap memory all at once, and fork, so that addresses pass from one to another while
// much is under way. Each has memory of its own and knows what every page of it must hold.
//
//   crowd SEED THREADS OPERATIONS MIB
//
// Each thread makes so many operations on memory of MIB MiB in all. Prints "crowd: right" (exit status 0), or what is wrong: 1.
#include "expect.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096, PIECES = 24, PAGES_MAX = 400 };

struct piece {
    unsigned char *memory; // NULL: none
    uint64_t pages;
    uint32_t stamps[2 * PAGES_MAX]; // what each page was filled with; 0: it is empty
};

struct member {
    struct piece pieces[PIECES];
    uint64_t random, pages;
    uint32_t stamp;
};

static uint64_t operations, pages_max;

static uint64_t below(struct member *of, uint64_t limit) {
    of->random ^= of->random << 13;
    of->random ^= of->random >> 7;
    of->random ^= of->random << 17;
    return of->random % limit;
}

static void *map(uint64_t pages) {
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    return memory;
}

static volatile uint64_t *word(struct piece *of, uint64_t page) {
    return (volatile uint64_t *)(of->memory + page * PAGE + page % 64 * 8);
}

static void fill(struct member *by, struct piece *piece, uint64_t from, uint64_t to) {
    for (uint64_t page = from; page < to; page++) {
        piece->stamps[page] = ++by->stamp;
        *word(piece, page) = piece->stamps[page];
    }
}

static void check(struct piece *piece, uint64_t from, uint64_t to) {
    for (uint64_t page = from; page < to; page++)
        EXPECT(*word(piece, page) == piece->stamps[page]);
}

static void check_all(struct member *of) {
    for (struct piece *piece = of->pieces; piece < of->pieces + PIECES; piece++)
        if (piece->memory)
            check(piece, 0, piece->pages);
}

static void end(struct member *of, struct piece *piece) {
    EXPECT(munmap(piece->memory, piece->pages * PAGE) == 0);
    of->pages -= piece->pages;
    piece->memory = NULL;
}

static void begin(struct member *of, struct piece *piece) {
    uint64_t pages = 1 + below(of, PAGES_MAX);
    if (of->pages + pages > pages_max)
        return;
    piece->memory = map(pages);
    piece->pages = pages;
    memset(piece->stamps, 0, sizeof piece->stamps);
    of->pages += pages;
    fill(of, piece, 0, pages / 2);
}

// To where there is room, over something that was mapped for it, or with its old place kept and used.
static void move(struct member *of, struct piece *piece) {
    uint64_t bytes = piece->pages * PAGE;
    unsigned char *old = piece->memory, *moved;
    switch (below(of, 3)) {
    case 0:
        moved = mremap(old, bytes, bytes + PAGE, MREMAP_MAYMOVE);
        piece->stamps[piece->pages++] = 0;
        of->pages++;
        break;
    case 1:
        moved = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, map(piece->pages));
        break;
    default:
        moved = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        for (uint64_t page = 0; page < piece->pages; page++)
            EXPECT(*(volatile uint64_t *)(old + page * PAGE) == 0);
        EXPECT(munmap(old, bytes) == 0);
    }
    EXPECT(moved != MAP_FAILED);
    piece->memory = moved;
}

static void fork_and_check(struct member *of) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        check_all(of);
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

static void *belongs(void *argument) {
    struct member *self = argument;
    for (uint64_t done = 0; done < operations; done++) {
        struct piece *piece = &self->pieces[below(self, PIECES)];
        if (!piece->memory) {
            begin(self, piece);
            continue;
        }
        uint64_t from = below(self, piece->pages), to = from + 1 + below(self, piece->pages - from);
        switch (below(self, 32)) {
        case 0 ... 7:
            fill(self, piece, from, to);
            break;
        case 8 ... 15:
            check(piece, from, to);
            break;
        case 16 ... 22:
            if (piece->pages + 1 < 2 * PAGES_MAX)
                move(self, piece);
            break;
        case 23 ... 25:
            EXPECT(madvise(piece->memory + from * PAGE, (to - from) * PAGE, MADV_DONTNEED) == 0);
            memset(piece->stamps + from, 0, (to - from) * sizeof *piece->stamps);
            break;
        case 26 ... 27:
            if (from > 0) {
                EXPECT(munmap(piece->memory + from * PAGE, (piece->pages - from) * PAGE) == 0);
                self->pages -= piece->pages - from;
                piece->pages = from;
            }
            break;
        case 28:
            if (below(self, 8) == 0)
                fork_and_check(self);
            break;
        default:
            end(self, piece);
        }
    }
    check_all(self);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        dprintf(2, "usage: crowd SEED THREADS OPERATIONS MIB\n");
        return 2;
    }
    uint64_t seed = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    operations = strtoull(argv[3], NULL, 10);
    pages_max = strtoull(argv[4], NULL, 10) * 256 / count;
    struct member *members = calloc(count, sizeof *members);
    pthread_t *threads = calloc(count, sizeof *threads);
    EXPECT(members && threads);
    for (uint64_t i = 0; i < count; i++) {
        members[i].random = (seed + 1) * 0x9E3779B97F4A7C15u ^ (i + 1) * 0xBF58476D1CE4E5B9u;
        EXPECT(pthread_create(&threads[i], NULL, belongs, &members[i]) == 0);
    }
    for (uint64_t i = 0; i < count; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    dprintf(1, "crowd: right\n");
    return 0;
}
