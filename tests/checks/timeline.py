"""Reads a timeline with Perfetto's own messages, and prints as JSON how many slices of each kind it has, and the last value of each
line of numbers of the run.

usage: timeline.py FILE
"""

import collections
import json
import sys

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, Trace, TrackEvent

trace = Trace()
# Fails where the file ends inside of a packet.
trace.ParseFromString(open(sys.argv[1], "rb").read())
lines = {}
numbers = {}
slices = collections.Counter()
open_on = {}
ended_on = collections.defaultdict(int)
first = None
for packet in trace.packet:
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid and track.uuid not in lines, f"line {track.uuid} is told twice"
        assert not track.parent_uuid or track.parent_uuid in lines, f"line {track.uuid} lies under none"
        lines[track.uuid] = track
    if packet.HasField("clock_snapshot"):
        first = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}[3]
    if not packet.HasField("track_event"):
        continue
    event = packet.track_event
    assert packet.trusted_packet_sequence_id == 1 and packet.timestamp_clock_id == 3
    line = lines[event.track_uuid]
    if event.type == TrackEvent.TYPE_COUNTER:
        assert line.counter.unit in (CounterDescriptor.UNIT_COUNT, CounterDescriptor.UNIT_SIZE_BYTES)
        assert packet.timestamp >= first
        if not lines[line.parent_uuid].parent_uuid and line.parent_uuid == 1:
            numbers[line.name] = event.counter_value
    elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
        assert event.track_uuid not in open_on and ended_on[event.track_uuid] <= packet.timestamp, "slices overlap"
        open_on[event.track_uuid] = packet.timestamp
        slices[event.name.split()[0]] += 1
    else:
        assert event.type == TrackEvent.TYPE_SLICE_END and open_on.pop(event.track_uuid) <= packet.timestamp
        ended_on[event.track_uuid] = packet.timestamp
threads = [line.thread for line in lines.values() if line.HasField("thread")]
assert all(thread.pid and thread.tid for thread in threads), "a thread without numbers"
json.dump({"slices": slices, "threads": {thread.tid: thread.thread_name for thread in threads}, "numbers": numbers, "lines": len(lines)}, sys.stdout)
