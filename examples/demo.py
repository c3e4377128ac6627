"""Shows what pagetide does, on this machine, in about a minute: the same program natively and in a quarter of its memory.

Usage: demo.py PATH_OF_PAGETIDE. Fails if the result differs or the budget was exceeded.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = [sys.executable, str(Path(__file__).with_name("sort_records.py"))]
MIB = 1 << 20
# The figure that GUARANTEES.md gives for the peak over the budget.
PEAK_ALLOWANCE = 1.02
PEAK_ALLOWANCE_BYTES = 8 * MIB


def timed(command: list[str]) -> tuple[str, float, int]:
    """Output, seconds and peak resident bytes of a command and what it waited for."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"demo: {' '.join(command)} ended with {process.returncode}")
    return output.strip(), seconds, usage.ru_maxrss * 1024


def row(name: str, *cells: str) -> None:
    print(f"  {name:<22}" + "".join(f"{cell:>22}" for cell in cells))


def main() -> int:
    pagetide = sys.argv[1]
    print("1. natively: python3 examples/sort_records.py", flush=True)
    native_result, native_seconds, native_peak = timed(JOB)
    budget = native_peak // 4 // MIB * MIB
    print(f"2. in a quarter of its memory: pagetide run --memory {budget // MIB}M -- python3 ...\n", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        stats_path = Path(directory, "stats.json")
        command = [pagetide, "run", "--memory", f"{budget // MIB}M", "--stats", str(stats_path), "--"]
        result, seconds, _ = timed(command + JOB)
        stats = json.loads(stats_path.read_text())
    vmstat = stats["vmstat"]
    peak = stats["peak_resident_bytes"]
    row("", "native", "pagetide")
    row("result (sha256)", native_result[:16], result[:16])
    row("peak memory", f"{native_peak / MIB:.0f} MiB", f"{peak / MIB:.0f} MiB")
    row("budget", "-", f"{budget / MIB:.0f} MiB")
    row("time", f"{native_seconds:.1f} s", f"{seconds:.1f} s ({seconds / native_seconds:.2f}x)")
    row("written to swap", "-", f"{vmstat['pswpout'] * 4096 / MIB:.0f} MiB")
    row("read from swap", "-", f"{vmstat['pswpin'] * 4096 / MIB:.0f} MiB")
    row("faults that read", "-", f"{vmstat['pgmajfault']}")
    row("fault latency p50", "-", f"{stats['fault_latency_ns']['p50'] / 1000:.1f} us")
    row("fault latency p99", "-", f"{stats['fault_latency_ns']['p99'] / 1000:.1f} us")
    print()
    failures = []
    if result != native_result:
        failures.append("the results differ")
    if peak > budget * PEAK_ALLOWANCE + PEAK_ALLOWANCE_BYTES:
        failures.append(f"the peak of {peak} bytes exceeds the budget of {budget} bytes")
    if vmstat["pswpout"] == 0:
        failures.append("nothing was paged out, so nothing was shown")
    for failure in failures:
        print(f"demo: FAILED: {failure}")
    if not failures:
        print("demo: same result, within the budget")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
