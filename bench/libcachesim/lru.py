"""lru.py TRACE PAGES RUNS: libCacheSim's LRU over a whole oracleGeneral trace of 4096-byte objects.

Prints a line for each run: nanoseconds of the call that processes the trace, and misses.
"""

import sys
import time

import libcachesim

PAGE = 4096


def main() -> None:
    trace, pages, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for _ in range(runs):
        reader = libcachesim.TraceReader(trace, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        requests = reader.get_num_of_req()
        reader.reset()
        cache = libcachesim.LRU(pages * PAGE)
        begun = time.perf_counter_ns()
        miss_ratio, _ = cache.process_trace(reader)
        print(time.perf_counter_ns() - begun, round(miss_ratio * requests), flush=True)


main()
