"""Reads metrics with the parsers of the format's own people, and prints them as JSON: name and labels to value.

usage: openmetrics.py FILE
"""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as older

text = open(sys.argv[1], encoding="utf-8").read()
samples = {}
for family in openmetrics(text):
    assert family.documentation, f"{family.name} is not explained"
    for sample in family.samples:
        labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name != "run")
        key = sample.name + (f"{{{labels}}}" if labels else "")
        assert key not in samples, f"{key} is told twice"
        samples[key] = sample.value
# node_exporter's collector of text files reads the older form, which has other rules.
read = {(sample.name, tuple(sorted(sample.labels.items()))) for family in older(text) for sample in family.samples}
assert len(read) == len(samples), f"{len(samples)} samples, of which the older form reads {len(read)}"
json.dump(samples, sys.stdout)
