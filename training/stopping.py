"""Stopping a run cleanly when the system or the user asks for it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_received(hurried: bool = True) -> Iterator[list[int]]:
    """Yields a list that collects each SIGINT, SIGTERM and SIGHUP received, so that the current step can finish.

    A SIGHUP, of a closed terminal, only where it would end the process: not under nohup, and not on Windows.

    hurried: whether after the first signal a SIGINT interrupts at once. Not under torchrun, which passes on to its
    processes the Ctrl-C that they have seen themselves.
    """
    received = []

    def receive(number, _):
        received.append(number)
        if hurried:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
