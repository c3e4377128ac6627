// interposed: brings memory functions of its own, which look at a table in managed memory, as those of a sanitizer look at their
// shadow. Everything loaded after it would take them from it.
//
//   interposed MIB
//
// Fills MIB MiB, counts its calls in a table of as much, and checks both. Prints "ok" (exit status 0; a wrong byte: 1).
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static volatile uint32_t *table;
static size_t table_pages;
static volatile uint64_t calls;

static void count(void) {
    static uint64_t state = 0x2545F4914F6CDD1Du;
    if (table) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        calls++;
        __atomic_fetch_add(&table[(state >> 20) % table_pages * (PAGE / 4)], 1, __ATOMIC_RELAXED);
    }
}

__attribute__((optimize("no-tree-loop-distribute-patterns"))) void *memmove(void *to, const void *from, size_t n) {
    volatile unsigned char *d = to;
    const volatile unsigned char *s = from;
    count();
    if ((uintptr_t)to - (uintptr_t)from >= n) {
        for (size_t i = 0; i < n; i++) {
            d[i] = s[i];
        }
    } else {
        for (size_t i = n; i-- > 0;) {
            d[i] = s[i];
        }
    }
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n) {
    return memmove(to, from, n);
}

void *memset(void *to, int byte, size_t n) {
    volatile unsigned char *d = to;
    count();
    for (size_t i = 0; i < n; i++) {
        d[i] = (unsigned char)byte;
    }
    return to;
}

int memcmp(const void *one, const void *other, size_t n) {
    const volatile unsigned char *a = one, *b = other;
    count();
    for (size_t i = 0; i < n; i++) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}

int bcmp(const void *one, const void *other, size_t n) {
    return memcmp(one, other, n);
}

static void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        exit(2);
    }
    return memory;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    table_pages = strtoull(argv[1], NULL, 10) << 8;
    size_t bytes = table_pages * PAGE;
    unsigned char *memory = map(bytes);
    table = map(bytes);
    for (size_t page = 0; page < table_pages; page++) {
        memset(memory + page * PAGE, (int)(page % 251), PAGE);
    }
    for (size_t page = 0; page + 1 < table_pages; page += 2) {
        memcpy(memory + page * PAGE, memory + (page + 1) * PAGE, PAGE);
    }
    uint64_t counted = 0, seen = calls;
    for (size_t page = 0; page < table_pages; page++) {
        size_t from = page % 2 == 0 && page + 1 < table_pages ? page + 1 : page;
        if (memory[page * PAGE + page % PAGE] != from % 251) {
            fprintf(stderr, "interposed: WRONG page %zu\n", page);
            return 1;
        }
        counted += table[page * (PAGE / 4)];
    }
    // Whoever else takes these functions from us, as the C library's own parts, is counted in both.
    if (counted != seen || calls != seen) {
        fprintf(stderr, "interposed: %llu calls, %llu counted\n", (unsigned long long)seen, (unsigned long long)counted);
        return 1;
    }
    puts("ok");
    return 0;
}
