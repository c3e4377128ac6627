// pinned: threads read a file past the page cache into buffers that are paged out: the kernel pins a read's pages one by one before it
// begins, and none of them can leave until it ends.
//
//   pinned FILE THREADS ROUNDS
//
// Each thread has a buffer of 1 MiB. Makes FILE, of 8 MiB, with known bytes. Prints "pinned: right" (exit status 0) if all were read as
// they are, or "pinned: no direct reads" where the file system has none.
#include "expect.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { CHUNK = 1 << 20, CHUNKS = 8, WORDS = CHUNK / 8 };

static int file;
static unsigned rounds;

static uint64_t word(uint64_t index) { return index * 0x9e3779b97f4a7c15u + 1; }

static void *reads(void *argument) {
    uint64_t *buffer = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(buffer != MAP_FAILED);
    for (unsigned round = 0; round < rounds; round++) {
        uint64_t chunk = ((uintptr_t)argument + round) % CHUNKS;
        EXPECT(pread(file, buffer, CHUNK, (off_t)chunk * CHUNK) == CHUNK);
        for (uint64_t i = 0; i < WORDS; i++)
            EXPECT(buffer[i] == word(chunk * WORDS + i));
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        dprintf(2, "usage: pinned FILE THREADS ROUNDS\n");
        return 2;
    }
    unsigned thread_count = (unsigned)atoi(argv[2]);
    rounds = (unsigned)atoi(argv[3]);
    int made = open(argv[1], O_CREAT | O_TRUNC | O_WRONLY, 0600);
    EXPECT(made >= 0);
    static uint64_t words[WORDS];
    for (uint64_t chunk = 0; chunk < CHUNKS; chunk++) {
        for (uint64_t i = 0; i < WORDS; i++)
            words[i] = word(chunk * WORDS + i);
        EXPECT(write(made, words, CHUNK) == CHUNK);
    }
    EXPECT(fsync(made) == 0 && close(made) == 0);
    file = open(argv[1], O_RDONLY | O_DIRECT);
    if (file < 0 && errno == EINVAL) {
        dprintf(1, "pinned: no direct reads\n");
        return 0;
    }
    EXPECT(file >= 0);
    pthread_t *threads = calloc(thread_count, sizeof *threads);
    for (uintptr_t i = 0; i < thread_count; i++)
        EXPECT(pthread_create(&threads[i], NULL, reads, (void *)i) == 0);
    for (unsigned i = 0; i < thread_count; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    dprintf(1, "pinned: right\n");
    return 0;
}
