/*
 * What a program touches, page by page: a plugin for qemu's user mode emulation that writes an access trace (PTTRACE1, wide records: see
 * crates/trace/src/binary.rs) for `pagetide sim replay`.
 *
 *   ACCESSES_OUT=FILE [ACCESSES_LATELY=1024] qemu-x86_64 -plugin ./accesses.so PROGRAM ARGUMENTS
 *
 * A page that was written down among the last ACCESSES_LATELY records is not written down again: in any memory that a replay is
 * about it is still there, and its age comes out no more than so many records wrong. Memory that is given back (munmap, and madvise
 * with DONTNEED or FREE) is a discard. What the kernel itself touches is not seen. All threads are one task.
 *
 * The emulator's functions are declared here, because Debian has no package with their header.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t);
extern void qemu_plugin_register_vcpu_mem_cb(struct instruction *, void (*)(unsigned, uint32_t, uint64_t, void *), int flags,
                                             int directions, void *);
extern int qemu_plugin_mem_is_store(uint32_t);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t,
                                                                     uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;

enum { NO_REGISTERS = 0, LOADS_AND_STORES = 3 };
enum { READ = 0, WRITE = 1, DISCARD = 2, PAGE_SHIFT = 14 };
/* 48 bits of addresses: 2^18 tables of 2^18 pages. */
enum { TABLE = 1 << 18, BLOCK = 65536 };

static FILE *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* When each page was written down last, in records; 0: never, or given back since. */
static uint64_t *tables[TABLE];
static uint64_t records, lately = 1024;
static uint64_t waiting[BLOCK];
static uint32_t waiting_len;
static __thread uint64_t latest = UINT64_MAX;

static void flush(void)
{
	if (waiting_len == 0)
		return;
	fwrite(&waiting_len, sizeof waiting_len, 1, out);
	fwrite(waiting, sizeof *waiting, waiting_len, out);
	waiting_len = 0;
}

/* With the lock. */
static void put(uint64_t page, uint64_t kind)
{
	records++;
	waiting[waiting_len++] = page << PAGE_SHIFT | kind;
	if (waiting_len == BLOCK)
		flush();
}

static void on_access(unsigned cpu, uint32_t info, uint64_t address, void *unused)
{
	uint64_t page = address >> 12, **table = &tables[page / TABLE % TABLE];
	if (page == latest)
		return;
	latest = page;
	pthread_mutex_lock(&lock);
	if (!*table)
		*table = calloc(TABLE, sizeof **table);
	uint64_t *at = *table + page % TABLE;
	if (*at == 0 || records - *at >= lately) {
		put(page, qemu_plugin_mem_is_store(info) ? WRITE : READ);
		*at = records;
	}
	pthread_mutex_unlock(&lock);
}

static void on_call(plugin_id id, unsigned cpu, int64_t number, uint64_t address, uint64_t length, uint64_t advice, uint64_t a4,
                    uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
	int gives_back = number == SYS_munmap || number == SYS_madvise && (advice == MADV_DONTNEED || advice == MADV_FREE);
	if (!gives_back)
		return;
	pthread_mutex_lock(&lock);
	for (uint64_t page = address >> 12, end = (address + length + 4095) >> 12; page < end; page++) {
		uint64_t *table = tables[page / TABLE % TABLE];
		if (!table) {
			page |= TABLE - 1;
		} else if (table[page % TABLE]) {
			table[page % TABLE] = 0;
			put(page, DISCARD);
		}
	}
	pthread_mutex_unlock(&lock);
	latest = UINT64_MAX;
}

static void on_translation(plugin_id id, struct block *block)
{
	for (size_t i = 0, n = qemu_plugin_tb_n_insns(block); i < n; i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), on_access, NO_REGISTERS, LOADS_AND_STORES, 0);
}

static void on_exit_of_all(plugin_id id, void *unused)
{
	uint32_t end = 0;
	/* For good: nothing comes after the end. */
	pthread_mutex_lock(&lock);
	flush();
	fwrite(&end, sizeof end, 1, out);
	fwrite(&records, sizeof records, 1, out);
	if (fclose(out) != 0)
		perror("accesses: the trace");
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	struct __attribute__((packed)) {
		char magic[8];
		uint8_t page_shift, kind;
		uint16_t tasks;
		uint32_t regions;
		uint64_t seed, reduced_above_pages;
	} header = {"PTTRACE1", 12, 1, 1, 0, 0, 0};
	const char *path = getenv("ACCESSES_OUT"), *window = getenv("ACCESSES_LATELY");
	out = path ? fopen(path, "wx") : NULL;
	if (!out) {
		perror("accesses: ACCESSES_OUT has to name a new file");
		return 1;
	}
	if (window)
		lately = strtoull(window, NULL, 10);
	fwrite(&header, sizeof header, 1, out);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	qemu_plugin_register_vcpu_syscall_cb(id, on_call);
	qemu_plugin_register_atexit_cb(id, on_exit_of_all, NULL);
	return 0;
}
