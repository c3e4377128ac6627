"""A dict of random keys: filled, its keys sorted, each looked up in that order. Prints one digest."""
import random
import sys

count = int(sys.argv[1])
number = random.Random(1).getrandbits
table = {number(60): index for index in range(count)}
digest = 0
for key in sorted(table):
    digest = (digest * 31 + table[key]) % 1000000007
print(len(table), digest)
