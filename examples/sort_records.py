"""A job that holds all its records in memory: make them, sort them run by run, merge the runs, hash the result.

Prints one line, the SHA-256 of the sorted records. It knows nothing of pagetide.
"""

import hashlib
import heapq
import io
import random
import sys

RECORDS_PER_RUN = 20_000
RECORD_BYTES = 160


def sorted_run(seed: int) -> bytes:
    """One run of records, sorted, as one block of lines."""
    rng = random.Random(seed)
    records = []
    for _ in range(RECORDS_PER_RUN):
        key = rng.getrandbits(64)
        records.append(b"%016x %s\n" % (key, rng.randbytes((RECORD_BYTES - 18) // 2).hex().encode()))
    records.sort()
    return b"".join(records)


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    runs = [sorted_run(seed) for seed in range(megabytes * 1_000_000 // (RECORDS_PER_RUN * RECORD_BYTES))]
    digest = hashlib.sha256()
    for record in heapq.merge(*(io.BytesIO(run) for run in runs)):
        digest.update(record)
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
