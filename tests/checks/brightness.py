"""Prints how bright the pictures are, 0 to 255 each, and how many colours they have.

usage: brightness.py PNG
"""

import json
import struct
import sys
import zlib

data = open(sys.argv[1], "rb").read()
at, packed = 8, b""
while at < len(data):
    (length,) = struct.unpack(">I", data[at : at + 4])
    kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
    if kind == b"IHDR":
        width, height, depth, colour = struct.unpack(">IIBB", body[:10])
    if kind == b"IDAT":
        packed += body
    at += 12 + length
assert depth == 8 and colour in (2, 6), f"{depth} bits, form {colour}"
bytes_each = 3 if colour == 2 else 4
raw, row_bytes = zlib.decompress(packed), width * bytes_each
before, total, colours = bytearray(row_bytes), 0, set()
for row in range(height):
    start = row * (row_bytes + 1)
    form, line = raw[start], bytearray(raw[start + 1 : start + 1 + row_bytes])
    for i in range(row_bytes):
        left = line[i - bytes_each] if i >= bytes_each else 0
        up, corner = before[i], before[i - bytes_each] if i >= bytes_each else 0
        if form == 1:
            add = left
        elif form == 2:
            add = up
        elif form == 3:
            add = (left + up) // 2
        elif form == 4:
            add = min((abs(left + up - corner - way), order, way) for order, way in enumerate((left, up, corner)))[2]
        else:
            add = 0
        line[i] = (line[i] + add) & 255
    before = line
    total += sum(sum(line[channel::bytes_each]) for channel in range(3))
    colours.update(bytes(line[i : i + 3]) for i in range(0, row_bytes, bytes_each))
json.dump({"mean": total // (3 * width * height), "colours": len(colours), "width": width}, sys.stdout)
