// patched: writes a jump to a hook of its own over the beginning of functions that change memory, as UCX does, and calls the original by
// its number from there.
//
//   patched MIB
//
// Fills MIB MiB before and after. Prints "patched: right" (exit status 0) if each hook was called once for each call, and did what it
// does natively.
#include "expect.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { PAGE = 4096 };

static volatile unsigned calls;

// How deep it is called from itself: once is what is meant.
static void enter(void) { EXPECT(++calls == 1); }

static long by_number(long number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) {
    enter();
    return syscall(number, a, b, c, d, e, f);
}

#define HOOK(name) \
    static long hook_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) { \
        return by_number(SYS_##name, a, b, c, d, e, f); \
    }
HOOK(mmap)
HOOK(munmap)
HOOK(mremap)
HOOK(madvise)
HOOK(mlock)
HOOK(mlock2)
HOOK(mlockall)
HOOK(shmat)
HOOK(vmsplice)
HOOK(setsockopt)

// mov r11, hook; jmp r11
static void patch(void *function, void *hook) {
    unsigned char jump[13] = {0x49, 0xbb};
    memcpy(jump + 2, &hook, 8);
    jump[10] = 0x41;
    jump[11] = 0xff;
    jump[12] = 0xe3;
    void *page = (void *)((uintptr_t)function & ~(uintptr_t)(PAGE - 1));
    EXPECT(mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    memcpy(function, jump, sizeof jump);
    EXPECT(mprotect(page, 2 * PAGE, PROT_READ | PROT_EXEC) == 0);
}

#define CALLED(condition) \
    do { \
        calls = 0; \
        EXPECT(condition); \
        EXPECT(calls == 1); \
    } while (0)

static void fill(uint64_t *memory, uint64_t pages, uint64_t stamp) {
    for (uint64_t page = 0; page < pages; page++)
        memory[page * PAGE / 8] = page + stamp;
    for (uint64_t page = 0; page < pages; page++)
        EXPECT(memory[page * PAGE / 8] == page + stamp);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        dprintf(2, "usage: patched MIB\n");
        return 2;
    }
    uint64_t pages = strtoull(argv[1], NULL, 10) << 8;
    uint64_t *ballast = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(ballast != MAP_FAILED);
    fill(ballast, pages, 1);
    int segment = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600), pair[2], ends[2];
    EXPECT(segment >= 0 && pipe(pair) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    void *functions[][2] = {
        {mmap, hook_mmap},   {munmap, hook_munmap}, {mremap, hook_mremap},     {madvise, hook_madvise}, {mlock, hook_mlock},
        {mlock2, hook_mlock2}, {mlockall, hook_mlockall}, {shmat, hook_shmat}, {vmsplice, hook_vmsplice}, {setsockopt, hook_setsockopt},
    };
    for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
        patch(functions[i][0], functions[i][1]);
    unsigned char *memory;
    CALLED((memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
    memory[0] = memory[PAGE] = 7;
    CALLED(madvise(memory, PAGE, MADV_DONTNEED) == 0);
    EXPECT(memory[0] == 0 && memory[PAGE] == 7);
    CALLED((memory = mremap(memory, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED);
    EXPECT(memory[0] == 0 && memory[PAGE] == 7 && memory[7 * PAGE] == 0);
    CALLED(mlock(memory, PAGE) == 0);
    CALLED(mlock2(memory, PAGE, MLOCK_ONFAULT) == 0);
    CALLED(mlockall(0) == -1 && errno == EINVAL);
    struct iovec piece = {memory + PAGE, 1};
    CALLED(vmsplice(pair[1], &piece, 1, 0) == 1);
    unsigned char byte = 0;
    EXPECT(read(pair[0], &byte, 1) == 1 && byte == 7);
    int size = 8192;
    CALLED(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    void *shared;
    CALLED((shared = shmat(segment, NULL, 0)) != MAP_FAILED);
    EXPECT(shmdt(shared) == 0 && shmctl(segment, IPC_RMID, NULL) == 0);
    CALLED(munmap(memory, 8 * PAGE) == 0);
    fill(ballast, pages, 2);
    dprintf(1, "patched: right\n");
    return 0;
}
