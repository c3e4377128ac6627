// code MIB: MIB of memory that may be written and executed, as in a Lisp's heap or a JIT's: each page holds a function that returns the
// page's number. They are called in order, in random order, by a forked child, after they were changed, and while some of them may not be
// written.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static unsigned char *code;
static uint32_t pages;

// At the end of its page: the next byte to be executed is in another one.
static void write_function(uint32_t page, uint32_t value) {
#ifdef __x86_64__
    unsigned char bytes[6] = {0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(bytes + 1, &value, sizeof value);
#else
    uint32_t bytes[3] = {0x52800000 | (value & 0xffff) << 5, 0x72a00000 | (value >> 16) << 5, 0xd65f03c0};
#endif
    unsigned char *at = code + (uint64_t)page * PAGE + PAGE - sizeof bytes;
    memcpy(at, bytes, sizeof bytes);
    __builtin___clear_cache((char *)at, (char *)at + sizeof bytes);
}

static uint32_t call(uint32_t page) {
#ifdef __x86_64__
    enum { BYTES = 6 };
#else
    enum { BYTES = 12 };
#endif
    uint32_t (*function)(void);
    unsigned char *at = code + (uint64_t)page * PAGE + PAGE - BYTES;
    memcpy(&function, &at, sizeof function);
    return function();
}

static void expect(uint32_t page, uint32_t value, const char *when) {
    uint32_t found = call(page);
    if (found != value) {
        fprintf(stderr, "code: WRONG %s: page %u returns %u, not %u\n", when, page, found, value);
        exit(1);
    }
}

static void expect_all(uint32_t plus, const char *when) {
    for (uint32_t page = 0; page < pages; page++) {
        expect(page, page + plus, when);
    }
}

static void protect(uint32_t first, uint32_t count, int protection) {
    if (mprotect(code + (uint64_t)first * PAGE, (uint64_t)count * PAGE, protection) != 0) {
        perror("code: mprotect");
        exit(2);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: code MIB\n");
        return 2;
    }
    pages = (uint32_t)atoi(argv[1]) * 256;
    code = mmap(NULL, (uint64_t)pages * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) {
        perror("code: mmap");
        return 2;
    }
    for (uint32_t page = 0; page < pages; page++) {
        write_function(page, page);
    }
    expect_all(0, "in order");
    uint64_t random = 1;
    for (uint32_t call = 0; call < pages; call++) {
        random = random * 6364136223846793005 + 1442695040888963407;
        expect((uint32_t)(random >> 33) % pages, (uint32_t)(random >> 33) % pages, "in random order");
    }
    // What a JIT does that never has both rights at once, here with a sixteenth.
    uint32_t few = pages / 16;
    protect(0, few, PROT_READ | PROT_EXEC);
    expect_all(0, "while some may not be written");
    protect(0, few, PROT_READ | PROT_WRITE);
    for (uint32_t page = few; page < pages; page++) {
        write_function(page, page + 1);
    }
    for (uint32_t page = 0; page < few; page++) {
        write_function(page, page + 1);
    }
    protect(0, few, PROT_READ | PROT_WRITE | PROT_EXEC);
    expect_all(1, "after a change");
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        perror("code: fork");
        return 2;
    }
    for (uint32_t page = 0; child == 0 && page < pages; page++) {
        write_function(page, page + 2);
    }
    expect_all(child == 0 ? 2 : 1, "after a fork");
    int status = 0;
    if (child == 0) {
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "code: the child ended with status %#x\n", (unsigned)status);
        return 1;
    }
    expect_all(1, "at the end");
    printf("%u functions\n", pages);
    return 0;
}
