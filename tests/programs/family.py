"""Fills memory so that no two pages are alike, forks a child that writes to a third of it and one that only sleeps, and writes to
another third itself. On SIGTERM every process checks every page of its own, the children first; then the parent says "ok".

On SIGUSR1 the child that writes becomes another program and the other one ends, and the parent goes on."""
import os
import signal
import sys

PAGE = 4096
mib = int(sys.argv[1])
pages = mib * 256
memory = bytearray(pages * PAGE)
awaited = {signal.SIGTERM, signal.SIGUSR1}


def number_of(page, writer):
    return ((page << 8 | writer) * 0x9E3779B97F4A7C15 & (1 << 64) - 1).to_bytes(8, "little") * (PAGE // 8)


def write(part, writer):
    for page in part:
        memory[page * PAGE : (page + 1) * PAGE] = number_of(page, writer)


def check(part, writer):
    for page in range(pages):
        expected = number_of(page, writer if page in part else 0)
        if memory[page * PAGE : (page + 1) * PAGE] != expected:
            print(f"WRONG bytes: page {page}, process {writer}", flush=True)
            os._exit(1)


def child(part, writer):
    write(part, writer)
    os.write(ready, b".")
    if signal.sigwait(awaited) == signal.SIGTERM:
        check(part, writer)
    elif part:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        os.execvp("sleep", ["sleep", "1000"])
    os._exit(0)


def main():
    write(range(pages), 0)
    children = []
    for writer, part in [(1, range(pages // 3)), (2, range(0))]:
        pid = os.fork()
        if pid == 0:
            child(part, writer)
        children.append(pid)
        os.read(told, 1)
    own = range(pages // 3, 2 * pages // 3)
    write(own, 3)
    print("steered", flush=True)
    while True:
        sign = signal.sigwait(awaited)
        for pid in children:
            os.kill(pid, sign)
        if sign == signal.SIGTERM:
            break
    for pid in children:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status not in [0, -signal.SIGTERM]:
            sys.exit(f"a child ended with {status}")
    check(own, 3)
    print("ok", flush=True)


signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
told, ready = os.pipe()
main()
