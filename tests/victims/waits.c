// waits MIB: threads that wait in calls from before memory is short find their memory when the calls end.
//
// Each waits in a call that names a page of its own, which nobody touches until the call is over. MIB MiB are filled and read over and
// over meanwhile. A call that was interrupted when paging began goes on by restart_syscall, which names no memory.
#include "expect.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>

enum { PAGE = 4096, ROUNDS = 4 };

static int pipes[4][2];

static void *fresh_page(void) {
    // Alone in its neighbourhood: what lies around is never used.
    char *memory = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    memset(memory, 1, 64 * PAGE);
    return memory + 32 * PAGE;
}

static void *polls(void *without_limit) {
    struct pollfd *polled = fresh_page();
    *polled = (struct pollfd){.fd = pipes[without_limit == NULL][0], .events = POLLIN};
    int ready = poll(polled, 1, without_limit ? -1 : 100000);
    EXPECT(ready == 1 && polled->revents == POLLIN);
    return NULL;
}

static void *selects(void *unused) {
    (void)unused;
    fd_set *set = fresh_page();
    FD_ZERO(set);
    FD_SET(pipes[2][0], set);
    EXPECT(select(pipes[2][0] + 1, set, NULL, NULL, NULL) == 1 && FD_ISSET(pipes[2][0], set));
    return NULL;
}

static uint32_t *word;

static void *sleeps(void *unused) {
    (void)unused;
    struct timespec *limit = fresh_page();
    *limit = (struct timespec){.tv_sec = 100};
    EXPECT(syscall(SYS_futex, word, FUTEX_WAIT, 7, limit, NULL, 0) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    size_t pages = (size_t)atoi(argv[1]) * 256;
    for (size_t index = 0; index < 4; index++)
        EXPECT(pipe(pipes[index]) == 0);
    word = fresh_page();
    *word = 7;
    pthread_t threads[4];
    EXPECT(pthread_create(&threads[0], NULL, polls, "without limit") == 0);
    EXPECT(pthread_create(&threads[1], NULL, polls, NULL) == 0);
    EXPECT(pthread_create(&threads[2], NULL, selects, NULL) == 0);
    EXPECT(pthread_create(&threads[3], NULL, sleeps, NULL) == 0);
    usleep(200000);
    uint64_t *filled = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(filled != MAP_FAILED);
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t page = 0; page < pages; page++) {
            EXPECT(filled[page * 512] == (round ? round - 1 + page : 0));
            filled[page * 512] = round + page;
        }
    for (size_t index = 0; index < 3; index++)
        EXPECT(write(pipes[index][1], "", 1) == 1);
    while (syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0) == 0)
        usleep(1000);
    for (size_t index = 0; index < 4; index++)
        EXPECT(pthread_join(threads[index], NULL) == 0);
    puts("all have waited");
    return 0;
}
