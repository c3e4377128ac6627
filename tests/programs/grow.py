"""Fills memory 1 MiB at a time, then reads all of it three times: python3 grow.py MIB."""
import sys

kept = []
for _ in range(int(sys.argv[1])):
    kept.append(bytearray(bytes(range(1, 256)) * 4112))
total = 0
for _ in range(3):
    for block in kept:
        total += sum(block[::4096])
print(total)
