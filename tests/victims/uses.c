// uses: uses memory in an order, and checks what it finds.
//
//   uses loop MIB ROUNDS     goes through MIB MiB in order, ROUNDS times
//   uses hot MIB USES        uses pages of MIB MiB at random: nine of ten uses go to the first quarter
//   uses random MIB USES     uses pages of MIB MiB at random
//
// Prints "ok" if every byte was right (exit status 0; a wrong byte: 1).
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static uint64_t *memory;

static uint64_t word_of(uint64_t page) {
    return (page + 1) * 0x9E3779B97F4A7C15u;
}

static void use(uint64_t page) {
    if (((volatile uint64_t *)memory)[page * (PAGE / 8)] != word_of(page)) {
        fprintf(stderr, "uses: WRONG page %" PRIu64 "\n", page);
        exit(1);
    }
}

static uint64_t below(uint64_t pages) {
    static uint64_t state = 0x2545F4914F6CDD1Du;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % pages;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        return 2;
    }
    uint64_t pages = strtoull(argv[2], NULL, 10) << 8, count = strtoull(argv[3], NULL, 10);
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return 2;
    }
    for (uint64_t page = 0; page < pages; page++) {
        for (unsigned i = 0; i < PAGE / 8; i += 32) {
            memory[page * (PAGE / 8) + i] = word_of(page) ^ ((uint64_t)i << 40);
        }
    }
    if (strcmp(argv[1], "loop") == 0) {
        for (uint64_t round = 0; round < count; round++) {
            for (uint64_t page = 0; page < pages; page++) {
                use(page);
            }
        }
    } else {
        uint64_t hot = strcmp(argv[1], "hot") == 0 ? pages / 4 : pages;
        for (uint64_t i = 0; i < count; i++) {
            use(below(i % 10 == 0 ? pages : hot));
        }
    }
    puts("ok");
    return 0;
}
