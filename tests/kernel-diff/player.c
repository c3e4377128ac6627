/* Plays a script of phases over one anonymous region and prints what each phase did to /proc/vmstat.
 *
 * Arguments: CGROUP_PROCS MEMORY_STAT LIMIT_FILE SWAP_DEVICE PAGES PHASE...
 * Phases: w r b s RN WN as in `pagetide sim script`; o = swapoff of SWAP_DEVICE; M<pages> = new memory limit.
 *
 * It joins its memory cgroup before it allocates, stays on one CPU (slots and charges are per CPU), and reads memory.stat
 * every 200 accesses: decisions of memcg reclaim use counters that are folded only then or every 2 s, and without the read
 * they vary by a factor of 3 from run to run. Exit codes: 0 done, 1 a page did not hold what was stored, 2 set-up failed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <unistd.h>

enum { PAGE = 4096, KEYS_MAX = 512, FLUSH_EVERY = 200 };

static char names[KEYS_MAX][64];
static long long before[KEYS_MAX], after[KEYS_MAX];
static int stat_fd;
static volatile uint64_t *region;
static uint64_t pages, lap = 1, touched, x = 88172645463325252ULL;
static char *stored; /* 1: the page was written at least once */

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static int read_vmstat(long long *into)
{
	static char text[1 << 16];
	int fd = open("/proc/sys/vm/stat_refresh", O_WRONLY), keys = 0;
	if (fd >= 0) {
		if (write(fd, "1", 1) < 0)
			die("stat_refresh");
		close(fd);
	}
	fd = open("/proc/vmstat", O_RDONLY);
	if (fd < 0)
		die("/proc/vmstat");
	size_t have = 0;
	for (ssize_t n; (n = read(fd, text + have, sizeof text - 1 - have)) > 0;)
		have += (size_t)n;
	text[have] = 0;
	close(fd);
	for (char *line = strtok(text, "\n"); line && keys < KEYS_MAX; line = strtok(NULL, "\n"), keys++)
		if (sscanf(line, "%63s %lld", names[keys], &into[keys]) != 2)
			die("a line of /proc/vmstat");
	return keys;
}

static void flush_stats(void)
{
	static char text[1 << 14];
	if (pread(stat_fd, text, sizeof text, 0) < 0)
		die("memory.stat");
}

static void touch(uint64_t page, int write)
{
	volatile uint64_t *word = region + page * (PAGE / 8);
	if (write) {
		*word = page + 1;
		word[1] = lap;
		stored[page] = 1;
	} else if (*word != (stored[page] ? page + 1 : 0)) {
		fprintf(stderr, "page %llu holds %llu\n", (unsigned long long)page, (unsigned long long)*word);
		exit(1);
	}
	if (++touched % FLUSH_EVERY == 0)
		flush_stats();
}

static uint64_t next_random(void)
{
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

static void play(const char *phase, const char *limit_file, const char *device)
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
		for (uint64_t p = 0; p < pages; p += 2)
			touch(p, 0);
		break;
	case 'R':
	case 'W':
		for (uint64_t i = 0; i < n; i++)
			touch(next_random() % pages, phase[0] == 'W');
		break;
	case 'o':
		if (swapoff(device) != 0)
			die("swapoff");
		break;
	case 'M': {
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

int main(int argc, char **argv)
{
	if (argc < 7)
		return 2;
	/* If the harness is killed, its swap devices must come off: nobody may keep pages on them. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		die("prctl");
	FILE *procs = fopen(argv[1], "w");
	if (!procs || fprintf(procs, "%d", getpid()) < 0 || fclose(procs) != 0)
		die(argv[1]);
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(0, &cpu);
	if (sched_setaffinity(0, sizeof cpu, &cpu) != 0)
		die("sched_setaffinity");
	stat_fd = open(argv[2], O_RDONLY);
	if (stat_fd < 0)
		die(argv[2]);
	pages = strtoull(argv[5], NULL, 10);
	stored = calloc(pages, 1);
	/* At a 2 MiB border: readahead windows are clipped there. */
	size_t bytes = pages * PAGE, border = 2u << 20;
	char *map = mmap(NULL, bytes + border, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED || !stored)
		die("mmap");
	char *start = (char *)(((uintptr_t)map + border - 1) & ~(uintptr_t)(border - 1));
	if (start > map)
		munmap(map, (size_t)(start - map));
	munmap(start + bytes, (size_t)(map + border - start));
	if (madvise(start, bytes, MADV_NOHUGEPAGE) != 0)
		die("madvise");
	region = (volatile uint64_t *)start;
	for (int i = 6; i < argc; i++) {
		flush_stats();
		read_vmstat(before);
		play(argv[i], argv[3], argv[4]);
		int keys = read_vmstat(after);
		printf("phase %s\n", argv[i]);
		for (int k = 0; k < keys; k++)
			if (after[k] != before[k])
				printf("%s %lld\n", names[k], after[k] - before[k]);
	}
	return 0;
}
