/* Plays a script of phases over anonymous regions and a file and prints what each phase did to /proc/vmstat.
 *
 * Arguments: CGROUP_PROCS MEMORY_STAT LIMIT_FILE DEVICE[,DEVICE...] PAGES[,PAGES...] PROCESSES TRACE FILE PHASE...
 * Phases as in `pagetide sim script` (see crates/sim/src/script/parse.rs). With 2 PROCESSES each region after the first
 * belongs to a child of its own, which makes its accesses when it is told to. TRACE is a file of 4-byte words,
 * `page * 2 + write`, or `-`. FILE is what the phases that use a file read, or `-`; the first word of its page i is i + 1.
 *
 * It joins its memory cgroup before it allocates, stays on one CPU (slots and charges are per CPU), and reads memory.stat
 * every 200 accesses: decisions of memcg reclaim use counters that are folded only then or every 2 s, and without the read
 * they vary by a factor of 3 from run to run. Beside the counters it prints what the simulator's device is to be like: the
 * elapsed time, and each device's requests, sectors and ticks. Exit codes: 0 done, 1 a page did not hold what was stored,
 * 2 set-up failed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/swap.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, KEYS_MAX = 512, FLUSH_EVERY = 200, REGIONS_MAX = 4, DEVICES_MAX = 4, BORDER = 2 << 20, CALL_PAGES_MAX = 64, FLUSH_PAGES = 40 };

static char names[KEYS_MAX][64];
static long long before[KEYS_MAX], after[KEYS_MAX];
static int stat_fd;
static char *devices[DEVICES_MAX];
static int device_count;
static const char *limit_file;
static uint32_t *trace;
static size_t trace_len;
static int file_fd = -1;
static const char *file_map;
static uint64_t file_pages, file_next;
static char call_buffer[CALL_PAGES_MAX * PAGE] __attribute__((aligned(4096)));
static uint64_t pages, lap = 1, touched, x = 88172645463325252ULL;

/* A run of pages; `ask` and `answer` lead to the child that owns it (0: it is ours). */
static struct region {
	volatile uint64_t *words;
	uint64_t first, pages;
	unsigned char *stored; /* a bit per page: it was written at least once */
	int ask, answer;
} regions[REGIONS_MAX];
static int region_count;

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static size_t read_file(const char *name, char *text, size_t size)
{
	int fd = open(name, O_RDONLY);
	if (fd < 0)
		die(name);
	size_t have = 0;
	for (ssize_t n; (n = read(fd, text + have, size - 1 - have)) > 0;)
		have += (size_t)n;
	text[have] = 0;
	close(fd);
	return have;
}

static void key(int *keys, long long *into, const char *name, long long value)
{
	if (*keys >= KEYS_MAX)
		return;
	snprintf(names[*keys], sizeof names[0], "%s", name);
	into[(*keys)++] = value;
}

/* The device's line in sysfs: requests, sectors and milliseconds of reads and writes. */
static void read_device_stats(int *keys, long long *into)
{
	long long sum[6] = {0};
	for (int d = 0; d < device_count; d++) {
		char name[128], text[512];
		const char *base = strrchr(devices[d], '/');
		snprintf(name, sizeof name, "/sys/block/%s/stat", base ? base + 1 : devices[d]);
		read_file(name, text, sizeof text);
		long long v[8];
		if (sscanf(text, "%lld %lld %lld %lld %lld %lld %lld %lld", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7) != 8)
			die(name);
		long long of[6] = {v[0], v[2], v[3], v[4], v[6], v[7]};
		for (int i = 0; i < 6; i++)
			sum[i] += of[i];
	}
	static const char *const what[6] = {"device_reads", "device_read_sectors", "device_read_ms",
					    "device_writes", "device_write_sectors", "device_write_ms"};
	for (int i = 0; i < 6; i++)
		key(keys, into, what[i], sum[i]);
}

static int read_counters(long long *into)
{
	static char text[1 << 16];
	int fd = open("/proc/sys/vm/stat_refresh", O_WRONLY), keys = 0;
	if (fd >= 0) {
		if (write(fd, "1", 1) < 0)
			die("stat_refresh");
		close(fd);
	}
	read_file("/proc/vmstat", text, sizeof text);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char name[64];
		long long value;
		if (sscanf(line, "%63s %lld", name, &value) != 2)
			die("a line of /proc/vmstat");
		key(&keys, into, name, value);
	}
	read_device_stats(&keys, into);
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	key(&keys, into, "elapsed_ns", now.tv_sec * 1000000000LL + now.tv_nsec);
	return keys;
}

static void flush_stats(void)
{
	static char text[1 << 14];
	if (pread(stat_fd, text, sizeof text, 0) < 0)
		die("memory.stat");
}

static void touch_own(struct region *r, uint64_t page, int write)
{
	volatile uint64_t *word = r->words + page * (PAGE / 8);
	if (write) {
		*word = page + 1;
		word[1] = lap;
		r->stored[page / 8] |= (unsigned char)(1u << page % 8);
	} else if (*word != (r->stored[page / 8] >> page % 8 & 1 ? page + 1 : 0)) {
		fprintf(stderr, "page %llu holds %llu\n", (unsigned long long)page, (unsigned long long)*word);
		exit(1);
	}
}

/* The child's life: a word says what to touch, a byte answers. */
static void serve(struct region *r, int ask, int answer)
{
	for (uint64_t word; read(ask, &word, sizeof word) == (ssize_t)sizeof word;) {
		touch_own(r, word >> 1, (int)(word & 1));
		if (write(answer, "", 1) != 1)
			exit(2);
	}
	_exit(0);
}

static void touch(uint64_t page, int write_it)
{
	struct region *r = regions;
	while (page >= r->first + r->pages)
		r++;
	page -= r->first;
	if (r->ask) {
		uint64_t word = page << 1 | (uint64_t)write_it;
		char byte;
		if (write(r->ask, &word, sizeof word) != (ssize_t)sizeof word || read(r->answer, &byte, 1) != 1) {
			fprintf(stderr, "a child is gone\n");
			exit(1);
		}
	} else {
		touch_own(r, page, write_it);
	}
	if (++touched % FLUSH_EVERY == 0)
		flush_stats();
}

static void check_file(uint64_t page, const char *content)
{
	uint64_t word;
	memcpy(&word, content, sizeof word);
	if (word != page + 1) {
		fprintf(stderr, "page %llu of the file holds %llu\n", (unsigned long long)page, (unsigned long long)word);
		exit(1);
	}
	if (++touched % FLUSH_EVERY == 0)
		flush_stats();
}

/* A call that reads up to n pages of the file. One access, as far as memory.stat goes. */
static void call(uint64_t page, uint64_t n)
{
	if (n > file_pages - page)
		n = file_pages - page;
	if (pread(file_fd, call_buffer, n * PAGE, (off_t)(page * PAGE)) != (ssize_t)(n * PAGE))
		die("pread");
	check_file(page, call_buffer);
}

static void load(uint64_t page)
{
	check_file(page, file_map + page * PAGE);
}

/* Reclaim clears accessed bits without a flush, and the CPU does not set them again as long as it knows the translation: how
 * many hot pages look unused then depends on how fast the machine is. More pages than a flush takes singly are protected, so
 * all goes; they are the zero page, which nobody is charged for. */
static void flush_translations(void)
{
	static char *pages_of_zero;
	if (!pages_of_zero) {
		pages_of_zero = mmap(NULL, FLUSH_PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (pages_of_zero == MAP_FAILED || madvise(pages_of_zero, FLUSH_PAGES * PAGE, MADV_NOHUGEPAGE) != 0)
			die("mmap");
	}
	for (int i = 0; i < FLUSH_PAGES; i++)
		(void)*(volatile char *)(pages_of_zero + i * PAGE);
	if (mprotect(pages_of_zero, FLUSH_PAGES * PAGE, PROT_NONE) != 0 ||
	    mprotect(pages_of_zero, FLUSH_PAGES * PAGE, PROT_READ) != 0)
		die("mprotect");
}

static uint64_t next_random(void)
{
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

/* Page i of every region, for all i. */
static void play_in_turns(int write_it)
{
	for (uint64_t i = 0; i < pages; i++)
		for (int r = 0; r < region_count; r++)
			if (i < regions[r].pages)
				touch(regions[r].first + i, write_it);
}

static void play(const char *phase)
{
	uint64_t n = strtoull(phase + 1, NULL, 10);
	lap++;
	switch (phase[0]) {
	case 'w':
		for (uint64_t p = 0; p < pages; p++)
			touch(p, 1);
		break;
	case 'r':
		for (uint64_t p = 0; p < pages; p++)
			touch(p, 0);
		break;
	case 'b':
		for (uint64_t p = pages; p-- > 0;)
			touch(p, 0);
		break;
	case 's':
		for (uint64_t p = 0; p < pages; p += n ? n : 2)
			touch(p, 0);
		break;
	case 'x':
	case 'X':
		play_in_turns(phase[0] == 'X');
		break;
	case 'R':
	case 'W':
		for (uint64_t i = 0; i < n; i++)
			touch(next_random() % pages, phase[0] == 'W');
		break;
	case 'f':
		for (uint64_t p = 0; p < file_pages; p += n ? n : 1)
			call(p, n ? n : 1);
		break;
	case 'F':
		for (uint64_t i = 0; i < n; i++)
			call(next_random() % file_pages, 1);
		break;
	case 'm':
		for (uint64_t p = 0; p < file_pages; p++)
			load(p);
		break;
	case 'M':
		for (uint64_t i = 0; i < n; i++)
			load(next_random() % file_pages);
		break;
	case 'a':
		for (uint64_t i = 0; i < n; i++) {
			touch(next_random() % pages, 0);
			call(file_next, 1);
			file_next = (file_next + 1) % file_pages;
		}
		break;
	case 'A':
		for (uint64_t i = 0; i < n; i++) {
			touch(next_random() % pages, 0);
			call(next_random() % file_pages, 1);
		}
		break;
	case 't':
		for (size_t i = 0; i < trace_len; i++) {
			touch(trace[i] >> 1, (int)(trace[i] & 1));
			flush_translations();
		}
		break;
	case 'o':
		if ((int)n >= device_count || swapoff(devices[n]) != 0)
			die("swapoff");
		break;
	case 'L': {
		FILE *f = fopen(limit_file, "w");
		if (!f || fprintf(f, "%llu", (unsigned long long)n * PAGE) < 0 || fclose(f) != 0)
			die("the memory limit");
		break;
	}
	default:
		fprintf(stderr, "unknown phase %s\n", phase);
		exit(2);
	}
}

/* At a 2 MiB border: readahead windows are clipped there. */
static void map_region(struct region *r)
{
	size_t bytes = r->pages * PAGE;
	char *map = mmap(NULL, bytes + BORDER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	r->stored = calloc(r->pages / 8 + 1, 1);
	if (map == MAP_FAILED || !r->stored)
		die("mmap");
	char *start = (char *)(((uintptr_t)map + BORDER - 1) & ~(uintptr_t)(BORDER - 1));
	if (start > map)
		munmap(map, (size_t)(start - map));
	munmap(start + bytes, (size_t)(map + BORDER - start));
	if (madvise(start, bytes, MADV_NOHUGEPAGE) != 0)
		die("madvise");
	r->words = (volatile uint64_t *)start;
}

static void give_to_child(struct region *r)
{
	int ask[2], answer[2];
	if (pipe(ask) != 0 || pipe(answer) != 0)
		die("pipe");
	pid_t parent = getpid(), child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		/* If the parent dies the child goes, too: it holds pages on the swap devices. */
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
			_exit(2);
		close(ask[1]);
		close(answer[0]);
		map_region(r);
		serve(r, ask[0], answer[1]);
	}
	close(ask[0]);
	close(answer[1]);
	r->ask = ask[1];
	r->answer = answer[0];
}

static void make_regions(char *sizes, int processes)
{
	for (char *size = strtok(sizes, ","); size && region_count < REGIONS_MAX; size = strtok(NULL, ",")) {
		struct region *r = &regions[region_count++];
		r->first = pages;
		r->pages = strtoull(size, NULL, 10);
		pages += r->pages;
	}
	/* Children first: they are not to inherit our region. */
	for (int i = 1; i < region_count && processes > 1; i++)
		give_to_child(&regions[i]);
	for (int i = 0; i < region_count; i++)
		if (!regions[i].ask)
			map_region(&regions[i]);
}

/* Not from the heap: the trace is to be in the page cache of the group that made it, not in ours. */
static void open_trace(const char *name)
{
	if (strcmp(name, "-") == 0)
		return;
	int fd = open(name, O_RDONLY);
	off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	if (bytes < 0)
		die(name);
	trace_len = (size_t)bytes / sizeof *trace;
	if (trace_len == 0)
		return;
	trace = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (trace == MAP_FAILED || mlock(trace, (size_t)bytes) != 0)
		die(name);
}

/* At a 2 MiB border, as the regions. */
static void open_file(const char *name)
{
	if (strcmp(name, "-") == 0)
		return;
	file_fd = open(name, O_RDONLY);
	off_t bytes = file_fd < 0 ? -1 : lseek(file_fd, 0, SEEK_END);
	if (bytes < PAGE)
		die(name);
	file_pages = (uint64_t)bytes / PAGE;
	char *map = mmap(NULL, (size_t)bytes + BORDER, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		die("mmap");
	map = (char *)(((uintptr_t)map + BORDER - 1) & ~(uintptr_t)(BORDER - 1));
	file_map = mmap(map, (size_t)bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file_fd, 0);
	if (file_map == MAP_FAILED)
		die("mmap of the file");
}

int main(int argc, char **argv)
{
	if (argc < 10)
		return 2;
	/* If the harness is killed, its swap devices must come off: nobody may keep pages on them. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		die("prctl");
	open_trace(argv[7]);
	FILE *procs = fopen(argv[1], "w");
	if (!procs || fprintf(procs, "%d", getpid()) < 0 || fclose(procs) != 0)
		die(argv[1]);
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(0, &cpu);
	if (sched_setaffinity(0, sizeof cpu, &cpu) != 0)
		die("sched_setaffinity");
	/* Other programs on our CPU would let writes end later than they do on an idle machine. */
	if (setpriority(PRIO_PROCESS, 0, -20) != 0)
		die("setpriority");
	stat_fd = open(argv[2], O_RDONLY);
	if (stat_fd < 0)
		die(argv[2]);
	limit_file = argv[3];
	for (char *d = strtok(argv[4], ","); d && device_count < DEVICES_MAX; d = strtok(NULL, ","))
		devices[device_count++] = d;
	open_file(argv[8]);
	make_regions(argv[5], atoi(argv[6]));
	for (int i = 9; i < argc; i++) {
		flush_stats();
		read_counters(before);
		play(argv[i]);
		int keys = read_counters(after);
		printf("phase %s\n", argv[i]);
		for (int k = 0; k < keys; k++)
			if (after[k] != before[k])
				printf("%s %lld\n", names[k], after[k] - before[k]);
		fflush(stdout);
	}
	return 0;
}
