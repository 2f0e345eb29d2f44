"""How PyTorch's threads wait for each other: spinning while the cores are free, sleeping while other programs use them.

On two quiet cores a small model trains 1.8 times as fast with threads that spin until the others are done; next to one
other busy program it trains twice as fast with threads that sleep. OpenMP reads its settings only once, when loaded,
while other programs come and go. But GNU OpenMP, which PyTorch's wheels contain, spins for 300,000 rounds only while it
has no more threads than there are cores, and otherwise for 100 (see GOMP_SPINCOUNT in its manual). So while other
programs keep the cores busy, a thread here holds as many idle OpenMP threads as that takes. No result depends on it.
"""

import atexit
import os
import sys
import threading
import time
from pathlib import Path

LOOK_SECONDS = 0.25
BUSY = 0.25  # cores that other programs use; an idle system's housekeeping needs less than half of that
STAT = Path("/proc/stat")
chosen: int | None = None  # the program's number of threads, where it set one: PyTorch tells only the thread that did


def share_the_cores() -> None:
    """Watches the cores for as long as the program runs; call it before torch is imported.

    Does nothing if the user's environment says how OpenMP waits, or if there is no /proc/stat.
    """
    if STAT.is_file() and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(ended,), daemon=True)
        watch.start()
        atexit.register(lambda: (ended.set(), watch.join()))  # no call into torch while Python shuts down


def _watch(ended: threading.Event) -> None:
    before, leave = _usage(), None
    while not ended.wait(LOOK_SECONDS):
        now = _usage()
        wall, others = (after - earlier for after, earlier in zip(now, before))
        before = now
        if "torch" not in sys.modules:
            continue
        import torch

        cores, threads = len(os.sched_getaffinity(0)), chosen or torch.get_num_threads()
        # more threads than cores sleep anyway
        is_crowded = 1 < threads <= cores and threads + others / wall > cores + BUSY
        if is_crowded and leave is None:
            leave = crowd(cores - threads + 2)
        elif leave is not None and not is_crowded:
            leave.set()
            leave = None


def _usage() -> tuple[float, float]:
    """The time in s, and the CPU time in s that other programs have used on the cores available to this one."""
    mine, busy = {f"cpu{number}" for number in os.sched_getaffinity(0)}, 0
    for line in STAT.read_text().splitlines():
        name, *ticks = line.split()
        if name in mine:
            user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])  # all except idle and iowait
            busy += user + nice + system + irq + softirq + steal
    return time.monotonic(), busy / os.sysconf("SC_CLK_TCK") - time.process_time()


def crowd(size: int) -> threading.Event:
    """Starts idle OpenMP threads, `size` including the one that holds them, which last until the event is set."""
    leave, there = threading.Event(), threading.Event()

    def stay() -> None:
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(size)  # for this thread, and for threads started later
        torch.ones(size * 2**16).add_(1)  # large enough to be split among them, which starts them
        torch.set_num_threads(threads)
        there.set()
        leave.wait()

    threading.Thread(target=stay, daemon=True).start()
    there.wait()
    return leave
