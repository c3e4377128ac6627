// What a core file says of a process that pages and ends by a signal: where the program was, and what it was about. core DIRECTORY: the cores
// come there.
#include "expect.h"
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/procfs.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { PAGE = 4096, PAGES = 24 * 256 };
static const uint64_t KNOWN = 0x7061676574696465;

extern char crash_here[];

static void crash(void) {
    __asm__ volatile("mov %0, %%r12\ncrash_here: movl $1, 0" : : "r"(KNOWN) : "r12", "memory");
}

static void fill(void) {
    volatile uint64_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    for (size_t round = 0; round < 2; round++) {
        for (size_t page = 0; page < PAGES; page++) {
            EXPECT(memory[page * (PAGE / sizeof *memory)] == page * round);
            memory[page * (PAGE / sizeof *memory)] = page;
        }
    }
}

// A child that ends so, and its core, which is the only one here.
static const Elf64_Ehdr *core_of(void (*end)(void), int signal) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        fill();
        end();
        _exit(1);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == signal && WCOREDUMP(status));
    DIR *here = opendir(".");
    EXPECT(here != NULL);
    struct dirent *entry;
    while ((entry = readdir(here)) != NULL && strncmp(entry->d_name, "core", 4) != 0) {
    }
    EXPECT(entry != NULL);
    int file = open(entry->d_name, O_RDONLY);
    struct stat stat;
    EXPECT(file >= 0 && fstat(file, &stat) == 0 && unlink(entry->d_name) == 0);
    const void *core = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, file, 0);
    EXPECT(core != MAP_FAILED && close(file) == 0 && closedir(here) == 0);
    return core;
}

static const Elf64_Phdr *segment(const Elf64_Ehdr *core, unsigned index) {
    return (const Elf64_Phdr *)((const char *)core + core->e_phoff) + index;
}

// The registers of the thread that the signal has ended: the first one's.
static const struct user_regs_struct *registers(const Elf64_Ehdr *core) {
    for (unsigned i = 0; i < core->e_phnum; i++) {
        if (segment(core, i)->p_type == PT_NOTE) {
            const Elf64_Nhdr *note = (const void *)((const char *)core + segment(core, i)->p_offset);
            EXPECT(note->n_type == NT_PRSTATUS);
            const struct elf_prstatus *status = (const void *)((const char *)(note + 1) + (note->n_namesz + 3) / 4 * 4);
            return (const struct user_regs_struct *)&status->pr_reg;
        }
    }
    EXPECT(!"a core has notes");
    return NULL;
}

// What the core has at an address, and how much.
static const uint64_t *content(const Elf64_Ehdr *core, uint64_t at, size_t *words) {
    for (unsigned i = 0; i < core->e_phnum; i++) {
        const Elf64_Phdr *part = segment(core, i);
        if (part->p_type == PT_LOAD && part->p_vaddr <= at && at < part->p_vaddr + part->p_filesz) {
            *words = (part->p_vaddr + part->p_filesz - at) / sizeof(uint64_t);
            return (const void *)((const char *)core + part->p_offset + (at - part->p_vaddr));
        }
    }
    EXPECT(!"the core has the thread's stack");
    return NULL;
}

int main(int argc, char **argv) {
    struct rlimit all;
    EXPECT(argc == 2 && chdir(argv[1]) == 0 && getrlimit(RLIMIT_CORE, &all) == 0);
    all.rlim_cur = all.rlim_max;
    EXPECT(setrlimit(RLIMIT_CORE, &all) == 0);
    fill();

    const struct user_regs_struct *crashed = registers(core_of(crash, SIGSEGV));
    EXPECT(crashed->rip == (uintptr_t)crash_here && crashed->r12 == KNOWN);

    // The call may be made for the program, on a stack of the pager's: who unwinds needs that.
    const Elf64_Ehdr *core = core_of(abort, SIGABRT);
    size_t words;
    const uint64_t *stack = content(core, registers(core)->rsp & ~7ULL, &words);
    size_t nonzero = 0;
    for (size_t i = 0; i < words && i < PAGE; i++) {
        nonzero += stack[i] != 0;
    }
    EXPECT(nonzero >= 8);
    dprintf(1, "right\n");
    _exit(0);
}
