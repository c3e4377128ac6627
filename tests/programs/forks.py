"""Fills memory, forks workers when part of it is out, and lets parent and children check every byte.

Prints one line per process and round with a digest; a wrong byte shows in the digests and ends the program with 1."""
import hashlib
import multiprocessing
import sys

mib = int(sys.argv[1])
block_bytes = 1 << 18
blocks = [bytearray(hashlib.shake_128(b"block %d" % i).digest(block_bytes)) for i in range(mib * 4)]
plain = [f"item {i * 7919}" for i in range(mib * 1000)]


def digest_of(part):
    total = hashlib.sha256()
    for block in part:
        total.update(block)
    total.update("".join(plain[::11]).encode())
    return total.hexdigest()


def child(index, queue):
    before = digest_of(blocks)
    for block in blocks[index::4]:
        block[index * 100] ^= 0xFF
        block[-1] ^= 0x0F
    changed = digest_of(blocks)
    for block in blocks[index::4]:
        block[index * 100] ^= 0xFF
        block[-1] ^= 0x0F
    queue.put((index, before, changed, digest_of(blocks)))


def main():
    context = multiprocessing.get_context("fork")
    expected = digest_of(blocks)
    for round_index in range(2):
        queue = context.Queue()
        workers = [context.Process(target=child, args=(index, queue)) for index in range(2)]
        for worker in workers:
            worker.start()
        own = digest_of(blocks)
        answers = sorted(queue.get() for _ in workers)
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0, f"worker ended with {worker.exitcode}"
        for index, before, changed, after in answers:
            print(round_index, index, before, changed, after)
            assert before == after == own == expected != changed, "WRONG bytes"
        for block in blocks[::5]:
            block[7] = (block[7] + round_index + 1) & 0xFF
        expected = digest_of(blocks)
    print("parent", expected)


main()
