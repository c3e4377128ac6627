// leaderless: processes whose first thread has ended, and whose last thread ends past the C library.
//
//   leaderless MIB
//
// The first thread ends. Another one fills MIB MiB, forks children that check the copy and end by the plain system call, alone or
// beside a thread that outlives their first, and checks its own memory. Prints "ok" (exit status 0; a wrong byte or status: 1).
#include "expect.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, CHILDREN = 3, STATUS = 7 };

static uint64_t *memory;
static size_t pages;

static void rewrite(uint64_t salt) {
    for (size_t i = 0; i < pages; i++) {
        memory[i * WORDS] = i ^ salt;
    }
}

static void check(uint64_t salt) {
    for (size_t i = 0; i < pages; i++) {
        EXPECT(memory[i * WORDS] == (i ^ salt));
    }
}

static void end_thread(int status) {
    for (;;) {
        syscall(SYS_exit, status);
    }
}

static void *outlive(void *unused) {
    (void)unused;
    usleep(50000);
    check(STATUS);
    end_thread(STATUS);
    return NULL;
}

static void *work(void *unused) {
    (void)unused;
    usleep(50000);
    for (int i = 0; i < CHILDREN; i++) {
        rewrite(STATUS);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            check(STATUS);
            pthread_t thread;
            if (i == 1) {
                EXPECT(pthread_create(&thread, NULL, outlive, NULL) == 0);
            }
            end_thread(STATUS);
        }
        int status = 0;
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == STATUS);
        check(STATUS);
    }
    puts("ok");
    exit(0);
}

int main(int argc, char **argv) {
    pages = (size_t)atol(argc > 1 ? argv[1] : "16") << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, work, NULL) == 0);
    pthread_exit(NULL);
}
