// pagerank: ranks of a random graph by pulling, with two threads or more.
//
//   pagerank LOG2_VERTICES EDGES_PER_VERTEX ROUNDS THREADS
//
// Every vertex has the same number of incoming edges, from vertices drawn at random. The edges are read in order, the ranks of
// their sources at random. Each rank is summed by one thread in the order of its edges, so that the result does not
// depend on the threads. Prints one digest.
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 64 };

static uint64_t vertices, degree, rounds, threads;
static uint32_t *edges, *outgoing;
static double *rank, *share;
static pthread_barrier_t gate;

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static void divide(uint64_t begin, uint64_t end) {
    for (uint64_t vertex = begin; vertex < end; vertex++) {
        share[vertex] = rank[vertex] / (outgoing[vertex] ? outgoing[vertex] : 1);
    }
}

static void pull(uint64_t begin, uint64_t end) {
    for (uint64_t vertex = begin; vertex < end; vertex++) {
        const uint32_t *sources = edges + vertex * degree;
        double sum = 0;
        for (uint64_t edge = 0; edge < degree; edge++) {
            sum += share[sources[edge]];
        }
        rank[vertex] = 0.15 + 0.85 * sum;
    }
}

static void *work(void *argument) {
    uint64_t index = (uint64_t)(uintptr_t)argument;
    uint64_t begin = vertices * index / threads, end = vertices * (index + 1) / threads;
    for (uint64_t round = 0; round < rounds; round++) {
        divide(begin, end);
        pthread_barrier_wait(&gate);
        pull(begin, end);
        pthread_barrier_wait(&gate);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: pagerank LOG2_VERTICES EDGES_PER_VERTEX ROUNDS THREADS\n");
        return 2;
    }
    vertices = 1ull << strtoul(argv[1], NULL, 10);
    degree = strtoull(argv[2], NULL, 10);
    rounds = strtoull(argv[3], NULL, 10);
    threads = strtoull(argv[4], NULL, 10);
    if (threads == 0 || threads > THREADS_MAX) {
        fprintf(stderr, "pagerank: THREADS 1..%d\n", THREADS_MAX);
        return 2;
    }
    edges = malloc(vertices * degree * sizeof *edges);
    outgoing = calloc(vertices, sizeof *outgoing);
    rank = malloc(vertices * sizeof *rank);
    share = malloc(vertices * sizeof *share);
    if (!edges || !outgoing || !rank || !share) {
        perror("pagerank: memory");
        return 1;
    }
    uint64_t state = 88172645463325252u;
    for (uint64_t edge = 0; edge < vertices * degree; edge++) {
        edges[edge] = (uint32_t)(next_random(&state) & (vertices - 1));
        outgoing[edges[edge]]++;
    }
    for (uint64_t vertex = 0; vertex < vertices; vertex++) {
        rank[vertex] = 1;
    }
    pthread_t ids[THREADS_MAX];
    pthread_barrier_init(&gate, NULL, (unsigned)threads);
    for (uint64_t index = 0; index < threads; index++) {
        pthread_create(&ids[index], NULL, work, (void *)(uintptr_t)index);
    }
    uint64_t digest = 0;
    for (uint64_t index = 0; index < threads; index++) {
        pthread_join(ids[index], NULL);
    }
    for (uint64_t vertex = 0; vertex < vertices; vertex++) {
        uint64_t bits;
        memcpy(&bits, &rank[vertex], sizeof bits);
        digest = digest * 31 + bits;
    }
    printf("%016" PRIx64 "\n", digest);
    return 0;
}
