// hashjoin: two relations joined as databases join what is large: both cut into partitions by a hash of the key, then each
// partition built into a small table and probed.
//
//   hashjoin BUILD_ROWS PARTITIONS THREADS
//
// The probed relation has twice as many rows. Each thread cuts its share of a relation into streams of its own, one a partition,
// all growing at once, and then joins whole partitions in turn. Prints matches and sums.
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 16, PARTITIONS_MAX = 1024 };

struct row {
    uint64_t key;
    uint64_t value;
};

struct relation {
    struct row *rows;
    uint64_t count;
    struct row *cut;
    // Where each thread's stream of a partition begins in `cut`; one more for the end.
    uint64_t begin[PARTITIONS_MAX * THREADS_MAX + 1];
};

static uint64_t partitions, threads;
static struct relation build, probe;
static uint64_t matches[THREADS_MAX], sums[THREADS_MAX];
static pthread_barrier_t gate;

static uint64_t hash(uint64_t key) {
    key ^= key >> 31;
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 29;
}

static void *memory(uint64_t bytes) {
    void *answer = malloc(bytes);
    if (!answer) {
        perror("hashjoin: memory");
        exit(1);
    }
    return answer;
}

static void make(struct relation *relation, uint64_t count, uint64_t keys, uint64_t seed) {
    relation->count = count;
    relation->rows = memory(count * sizeof(struct row));
    relation->cut = memory(count * sizeof(struct row));
    for (uint64_t index = 0; index < count; index++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        relation->rows[index] = (struct row){seed % keys, seed};
    }
}

static void cut(struct relation *relation, uint64_t self) {
    uint64_t begin = relation->count * self / threads, end = relation->count * (self + 1) / threads;
    for (uint64_t index = begin; index < end; index++) {
        relation->begin[hash(relation->rows[index].key) % partitions * threads + self + 1]++;
    }
    pthread_barrier_wait(&gate);
    if (self == 0) {
        for (uint64_t stream = 0; stream < partitions * threads; stream++) {
            relation->begin[stream + 1] += relation->begin[stream];
        }
    }
    pthread_barrier_wait(&gate);
    uint64_t next[PARTITIONS_MAX];
    for (uint64_t part = 0; part < partitions; part++) {
        next[part] = relation->begin[part * threads + self];
    }
    for (uint64_t index = begin; index < end; index++) {
        relation->cut[next[hash(relation->rows[index].key) % partitions]++] = relation->rows[index];
    }
    pthread_barrier_wait(&gate);
}

static void join(uint64_t part, uint64_t self) {
    uint64_t first = build.begin[part * threads], last = build.begin[(part + 1) * threads], slots = 16;
    while (slots < 2 * (last - first)) {
        slots *= 2;
    }
    struct row *table = memory(slots * sizeof *table);
    memset(table, 0xff, slots * sizeof *table);
    for (uint64_t index = first; index < last; index++) {
        uint64_t slot = hash(build.cut[index].key) / partitions & (slots - 1);
        while (table[slot].key != UINT64_MAX) {
            slot = (slot + 1) & (slots - 1);
        }
        table[slot] = build.cut[index];
    }
    for (uint64_t index = probe.begin[part * threads]; index < probe.begin[(part + 1) * threads]; index++) {
        uint64_t key = probe.cut[index].key, slot = hash(key) / partitions & (slots - 1);
        for (; table[slot].key != UINT64_MAX; slot = (slot + 1) & (slots - 1)) {
            if (table[slot].key == key) {
                matches[self]++;
                sums[self] += table[slot].value ^ probe.cut[index].value;
            }
        }
    }
    free(table);
}

static void *work(void *argument) {
    uint64_t self = (uint64_t)(uintptr_t)argument;
    cut(&build, self);
    cut(&probe, self);
    for (uint64_t part = self; part < partitions; part += threads) {
        join(part, self);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: hashjoin BUILD_ROWS PARTITIONS THREADS\n");
        return 2;
    }
    uint64_t rows = strtoull(argv[1], NULL, 10);
    partitions = strtoull(argv[2], NULL, 10);
    threads = strtoull(argv[3], NULL, 10);
    if (rows == 0 || partitions == 0 || partitions > PARTITIONS_MAX || threads == 0 || threads > THREADS_MAX) {
        fprintf(stderr, "hashjoin: PARTITIONS 1..%d, THREADS 1..%d\n", PARTITIONS_MAX, THREADS_MAX);
        return 2;
    }
    make(&build, rows, rows, 88172645463325252u);
    make(&probe, 2 * rows, rows, 2463534242u);
    pthread_t ids[THREADS_MAX];
    pthread_barrier_init(&gate, NULL, (unsigned)threads);
    for (uint64_t index = 0; index < threads; index++) {
        pthread_create(&ids[index], NULL, work, (void *)(uintptr_t)index);
    }
    uint64_t found = 0, sum = 0;
    for (uint64_t index = 0; index < threads; index++) {
        pthread_join(ids[index], NULL);
        found += matches[index];
        sum += sums[index];
    }
    printf("%" PRIu64 " matches, sum %016" PRIx64 "\n", found, sum);
    return 0;
}
