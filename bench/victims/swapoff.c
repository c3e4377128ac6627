// swapoff: memory to be brought back while it is used, or not.
//
//   swapoff MIB idle|busy
//
// Fills MIB MiB with words that do not compress, and prints "ready". From SIGUSR1 on it counts ("busy": random pages, each checked and
// rewritten); at SIGTERM it prints the accesses a second since, checks every page ("idle", too), and ends with 0 if all were right.
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = 512 };

static uint64_t *memory;
static uint32_t *versions;
static uint64_t pages;
static volatile sig_atomic_t has_begun, is_over;

static void on_begin(int number) {
    (void)number;
    has_begun = 1;
}

static void on_end(int number) {
    (void)number;
    is_over = 1;
}

static uint64_t mixed(uint64_t word) {
    word ^= word >> 33;
    word *= 0xff51afd7ed558ccdu;
    word ^= word >> 33;
    word *= 0xc4ceb9fe1a85ec53u;
    return word ^ word >> 33;
}

static void fill(uint64_t page) {
    for (unsigned word = 0; word < WORDS; word++) {
        memory[page * WORDS + word] = mixed(page * WORDS + word + ((uint64_t)versions[page] << 40) + 1);
    }
}

static void check(uint64_t page) {
    for (unsigned word = 0; word < WORDS; word += WORDS - 1) {
        if (memory[page * WORDS + word] != mixed(page * WORDS + word + ((uint64_t)versions[page] << 40) + 1)) {
            fprintf(stderr, "swapoff: WRONG page %" PRIu64 " word %u\n", page, word);
            _exit(1);
        }
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: swapoff MIB idle|busy\n");
        return 2;
    }
    int is_busy = strcmp(argv[2], "busy") == 0;
    pages = strtoull(argv[1], NULL, 10) * 256;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    versions = calloc(pages, sizeof *versions);
    if (memory == MAP_FAILED || versions == NULL) {
        perror("swapoff");
        return 2;
    }
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    signal(SIGUSR1, on_begin);
    signal(SIGTERM, on_end);
    for (uint64_t page = 0; page < pages; page++) {
        fill(page);
    }
    printf("ready\n");
    fflush(stdout);
    uint64_t random = 1, accesses = 0, begin = 0;
    while (!is_over) {
        if (!has_begun || !is_busy) {
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
            continue;
        }
        begin = begin ? begin : now_ns();
        random = mixed(random + 0x9e3779b97f4a7c15u);
        uint64_t page = random % pages;
        check(page);
        versions[page]++;
        fill(page);
        accesses++;
    }
    uint64_t ns = now_ns() - begin;
    printf("accesses_per_s %" PRIu64 "\n", is_busy ? accesses * 1000000000u / (ns ? ns : 1) : 0);
    for (uint64_t page = 0; page < pages; page++) {
        check(page);
    }
    return 0;
}
