// readers: a process that looks at another one from outside, as debuggers, crash reporters and profilers do.
//
//   readers traced|sight MIB
//
// The child fills MIB of memory and sleeps. Its parent attaches to each of its threads, none of which may refuse that (traced); or it
// looks at what is the child's stack for who takes it to be all between the stack pointer and the end of the mapping (sight). Then the child
// looks at every page itself. Prints "ok". Who waits for ever is ended by SIGALRM.
#include "expect.h"
#include "numbered.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { THREADS = 64, SECONDS = 40, STACK_BYTES = 9 << 20 };

static uint64_t *words;
static size_t pages;

static int is_right(uint64_t word, size_t page) { return word == ((uint64_t)page << 32 | 1); }

static void child(int ready, int go) {
    words = map(pages);
    EXPECT(write(ready, &words, sizeof words) == sizeof words);
    // In signal mode this call is made on the stack of a handler.
    fd_set set;
    FD_ZERO(&set);
    FD_SET(go, &set);
    EXPECT(select(go + 1, &set, NULL, NULL, NULL) == 1);
    for (size_t page = 0; page < pages; page++) {
        EXPECT(is_right(words[page * PAGE_WORDS], page));
    }
    _exit(0);
}

static unsigned attach(pid_t pid, pid_t *to) {
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/task", pid);
    DIR *list = opendir(name);
    EXPECT(list);
    unsigned count = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        pid_t tid = atoi(entry->d_name);
        if (tid > 0) {
            EXPECT(count < THREADS && ptrace(PTRACE_ATTACH, tid, NULL, NULL) == 0);
            EXPECT(waitpid(tid, NULL, __WALL) == tid);
            to[count++] = tid;
        }
    }
    closedir(list);
    return count;
}

// In a system call that sleeps.
static unsigned long stack_pointer(pid_t pid) {
    char name[64], line[256];
    snprintf(name, sizeof name, "/proc/%d/syscall", pid);
    for (;;) {
        FILE *file = fopen(name, "r");
        EXPECT(file && fgets(line, sizeof line, file));
        fclose(file);
        unsigned long at;
        if (sscanf(line, "%*d %*s %*s %*s %*s %*s %*s %lx", &at) == 1) {
            return at;
        }
        usleep(1000);
    }
}

static void look(pid_t pid) {
    char name[64], line[512];
    unsigned long at = stack_pointer(pid), start, end, bytes = 0;
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "r");
    EXPECT(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= at && at < end) {
            bytes = end - at;
        }
    }
    fclose(maps);
    EXPECT(bytes > 0 && bytes < STACK_BYTES);
}

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    case_name = argv[1];
    pages = strtoul(argv[2], NULL, 0) << 8;
    alarm(SECONDS);
    int ready[2], go[2], status;
    EXPECT(pipe(ready) == 0 && pipe(go) == 0);
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
        close(go[1]);
        child(ready[1], go[0]);
    }
    EXPECT(read(ready[0], &words, sizeof words) == sizeof words);
    if (strcmp(argv[1], "sight") == 0) {
        look(pid);
    } else {
        pid_t threads[THREADS];
        unsigned count = attach(pid, threads);
        EXPECT(count > 0);
        while (count > 0) {
            EXPECT(ptrace(PTRACE_DETACH, threads[--count], NULL, NULL) == 0);
        }
    }
    EXPECT(write(go[1], "g", 1) == 1);
    EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("ok");
}
