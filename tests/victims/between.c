// between: two processes read and write each other's memory, which is out (process_vm_readv, process_vm_writev).
//
//   between MIB
//
// Each fills MIB MiB of its own, and then reads the other's and writes into it, both at once. Prints "between: right" (exit status 0) if
// every byte was right; a wrong byte or answer: 1.
#include "expect.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { PAGE = 4096, WORDS = PAGE / 8, CHUNK = 300 * PAGE };

static uint64_t *memory;
static uint64_t pages;

static uint64_t word(uint64_t page, uint64_t side) { return (page + 1) * 0x9E3779B97F4A7C15u ^ side; }

static void fill(uint64_t side) {
    for (uint64_t page = 0; page < pages; page++)
        for (unsigned i = 0; i < WORDS; i += 64)
            memory[page * WORDS + i] = word(page, side);
}

// Both are where they are.
static void meet(int to, int from) {
    char byte = 0;
    EXPECT(write(to, &byte, 1) == 1 && read(from, &byte, 1) == 1);
}

static void work(pid_t other, uint64_t side, int to, int from) {
    unsigned char *buffer = malloc(CHUNK);
    EXPECT(buffer);
    fill(side);
    meet(to, from);
    for (uint64_t at = 0; at + CHUNK <= pages * PAGE; at += CHUNK - 17 * PAGE) {
        // Neither begins with a page, and one side is in two parts.
        struct iovec near = {buffer + 8, CHUNK - 8};
        struct iovec far[2] = {{(char *)memory + at + 8, PAGE}, {(char *)memory + at + 8 + PAGE, CHUNK - PAGE - 8}};
        EXPECT(process_vm_readv(other, &near, 1, far, 2, 0) == CHUNK - 8);
        for (uint64_t page = 1; page < CHUNK / PAGE; page++)
            EXPECT(*(uint64_t *)(buffer + page * PAGE) == word(at / PAGE + page, side ^ 1));
    }
    meet(to, from);
    // The other's odd pages.
    for (uint64_t page = 1; page < pages; page += 2) {
        uint64_t value = word(page, side + 10);
        struct iovec near = {&value, 8}, far = {memory + page * WORDS, 8};
        EXPECT(process_vm_writev(other, &near, 1, &far, 1, 0) == 8);
    }
    meet(to, from);
    for (uint64_t page = 0; page < pages; page++)
        EXPECT(memory[page * WORDS] == (page % 2 ? word(page, (side ^ 1) + 10) : word(page, side)));
    // What is not there, or may not be written, is as natively.
    void *gone = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec near = {buffer, PAGE}, far = {gone, PAGE};
    EXPECT(process_vm_writev(getpid(), &near, 1, &far, 1, 0) == -1 && errno == EFAULT);
    near.iov_base = gone;
    far.iov_base = memory;
    EXPECT(process_vm_readv(other, &near, 1, &far, 1, 0) == -1 && errno == EFAULT);
    near.iov_base = buffer;
    far.iov_base = NULL;
    EXPECT(process_vm_readv(other, &near, 1, &far, 1, 0) == -1 && errno == EFAULT);
    EXPECT(process_vm_readv(INT32_MAX, &near, 1, &far, 1, 0) == -1 && errno == ESRCH);
    EXPECT(process_vm_readv(other, &near, 1, &far, 1, 1) == -1 && errno == EINVAL);
    meet(to, from);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        dprintf(2, "usage: between MIB\n");
        return 2;
    }
    pages = strtoull(argv[1], NULL, 10) << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    int up[2], down[2];
    EXPECT(pipe(up) == 0 && pipe(down) == 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t parent = getpid(), child = fork();
    EXPECT(child >= 0);
    case_name = child ? "parent" : "child";
    if (child == 0) {
        work(parent, 1, up[1], down[0]);
        _exit(0);
    }
    work(child, 0, down[1], up[0]);
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    dprintf(1, "between: right\n");
    return 0;
}
