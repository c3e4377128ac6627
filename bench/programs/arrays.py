"""numpy over whole arrays: argsort, gather in that order, cumulative sum. Prints three numbers."""
import sys

import numpy

count = int(sys.argv[1])
values = numpy.random.default_rng(1).random(count)
order = numpy.argsort(values, kind="quicksort")
gathered = values[order]
total = numpy.cumsum(gathered)
print(int(order[count // 2]), float(gathered[count // 3]), float(total[-1]))
