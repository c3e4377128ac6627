// sanitized: for a compiler's sanitizers: allocates, checks, and returns from main, where they look for leaks.
//
//   sanitized MIB
//
// Fills MIB MiB of the heap in blocks, twice, and checks them. Prints "ok" (exit status 0; a wrong byte: 1).
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_WORDS = 8192 };

int main(int argc, char **argv) {
    size_t blocks = (size_t)atol(argc > 1 ? argv[1] : "16") << 4;
    uint64_t **block = calloc(blocks, sizeof *block);
    for (size_t round = 0; round < 2; round++) {
        for (size_t i = 0; i < blocks; i++) {
            uint64_t *words = malloc(BLOCK_WORDS * sizeof *words);
            for (size_t j = 0; j < BLOCK_WORDS; j++) {
                words[j] = i * 31 + j + round;
            }
            free(block[i]);
            block[i] = words;
        }
        for (size_t i = 0; i < blocks; i++) {
            for (size_t j = 0; j < BLOCK_WORDS; j++) {
                if (block[i][j] != i * 31 + j + round) {
                    fprintf(stderr, "block %zu, word %zu\n", i, j);
                    return 1;
                }
            }
        }
    }
    for (size_t i = 0; i < blocks; i++) {
        free(block[i]);
    }
    free(block);
    puts("ok");
    return 0;
}
