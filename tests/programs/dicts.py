"""COUNT [DIGITS]: builds large dicts and lists (with notes of DIGITS digits), sorts, and dumps JSON to standard output. Same bytes in
every run.

Most passes go in the order of building: at a quarter of its memory a program that jumps about in all of it waits for the
disk for minutes, under the kernel's swap as well."""
import json
import sys

count = int(sys.argv[1])
digits = int(sys.argv[2]) if len(sys.argv) > 2 else 0
state = 88172645463325252


def number():
    global state
    state ^= (state << 13) & 0xFFFFFFFFFFFFFFFF
    state ^= state >> 7
    state ^= (state << 17) & 0xFFFFFFFFFFFFFFFF
    return state


people = {f"key-{number():016x}": {"id": i, "score": number() % 1000003} for i in range(count)}
if digits:
    for person in people.values():
        person["note"] = f"{person['score']:0{digits}}"
names = list(people)
ranking = sorted(((person["score"], name) for name, person in people.items() if person["id"] % 8 == 0))
groups = {}
for score, name in ranking:
    groups.setdefault(score % 97, []).append(name)
for name in names[::3]:
    del people[name]
for person in people.values():
    person["score"] = person["score"] * 31 % 1000003
encoder = json.JSONEncoder(sort_keys=True)
for key in sorted(groups):
    sys.stdout.write(encoder.encode({str(key): groups[key]}) + "\n")
for name, person in people.items():
    sys.stdout.write(encoder.encode({name: person}) + "\n")
