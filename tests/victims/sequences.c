// What the kernel reads and writes of restartable sequences each time that a thread runs again, in memory that is paged: the thread's area, said
// by syscall(3) before anything was paged, and a descriptor among much static data. To be run where the C library says nothing of its
// own (glibc.pthread.rseq=0).
#include "expect.h"
#include <linux/rseq.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { PAGE = 4096, PUSHERS = 3, MUCH = 48 * 256, FAR = 7919, SIGNATURE = 0x53053053, WORDS = 1 << 18 };

// The loader writes these.
static void *data[WORDS] = {[0 ... WORDS - 1] = data};
static const uint32_t abort_at[] = {SIGNATURE, 0};
__attribute__((section("__rseq_cs"))) static struct rseq_cs descriptor = {
    .start_ip = (uintptr_t)data, .post_commit_offset = 1, .abort_ip = (uintptr_t)(abort_at + 1)};

static void *map(size_t pages) {
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    return memory;
}

static void *push_out(void *arg) {
    volatile unsigned char *memory = map(MUCH);
    for (uint64_t i = 0;; i++) {
        memory[i * FAR % MUCH * PAGE]++;
    }
    return arg;
}

int main(void) {
    char *memory = map(16);
    for (int i = 0; i < PUSHERS; i++) {
        pthread_t pusher;
        EXPECT(pthread_create(&pusher, NULL, push_out, NULL) == 0);
    }
    struct rseq *area = (struct rseq *)(memory + 5 * PAGE);
    area->cpu_id = (uint32_t)RSEQ_CPU_ID_UNINITIALIZED;
    EXPECT(syscall(SYS_rseq, area, sizeof *area, 0, SIGNATURE) == 0);
    volatile uint64_t *begun = (volatile uint64_t *)&area->rseq_cs;
    for (uint64_t i = 0; i < 4000000000; i++) {
        *begun = (uintptr_t)&descriptor;
    }
    EXPECT(area->cpu_id != (uint32_t)RSEQ_CPU_ID_UNINITIALIZED);
    for (size_t i = 0; i < WORDS; i++) {
        EXPECT(data[i] == data);
    }
    dprintf(1, "right\n");
    _exit(0);
}
