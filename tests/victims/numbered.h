// Private memory in which the first word of each page says which page it is, in its upper half, and is never zero.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE_WORDS = 512 };

static uint64_t *map(size_t pages) {
    uint64_t *words = mmap(NULL, pages * PAGE_WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    for (size_t page = 0; page < pages; page++) {
        words[page * PAGE_WORDS] = (uint64_t)page << 32 | 1;
    }
    return words;
}
