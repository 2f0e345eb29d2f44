"""Ending a run in good order when the system or the user asks for it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_received() -> Iterator[list[int]]:
    """Yields the SIGINT and SIGTERM received so far, so that the step under way can be finished.

    After the first, a SIGINT interrupts at once.
    """
    received = []

    def receive(number, _):
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():  # no other may handle signals
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
