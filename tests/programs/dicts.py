"""Builds large dicts and lists, sorts them, and dumps them as JSON to standard output. Same bytes in every run."""
import json
import sys

count = int(sys.argv[1])
state = 88172645463325252


def number():
    global state
    state ^= (state << 13) & 0xFFFFFFFFFFFFFFFF
    state ^= state >> 7
    state ^= (state << 17) & 0xFFFFFFFFFFFFFFFF
    return state


people = {f"key-{number():016x}": {"id": i, "score": number() % 1000003} for i in range(count)}
ranking = sorted(people.items(), key=lambda item: (item[1]["score"], item[0]))
groups = {}
for name, person in ranking:
    groups.setdefault(person["score"] % 97, []).append(name)
for name in list(people)[::3]:
    del people[name]
encoder = json.JSONEncoder(sort_keys=True)
for part in (dict(ranking[::7]), {str(key): value[::5] for key, value in groups.items()}, people):
    for chunk in encoder.iterencode(part):
        sys.stdout.write(chunk)
    sys.stdout.write("\n")
