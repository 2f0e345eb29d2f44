"""Stopping a run cleanly when the system or the user asks for it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_received(hurried: bool = True) -> Iterator[list[int]]:
    """Yields a list that collects each SIGINT, SIGTERM and SIGHUP received, so that the current step can finish.

    Only those that would end the process: nohup has it ignore the SIGHUP of a closed terminal, and a script in which it
    runs beside others the SIGINT of a Ctrl-C. Windows has no SIGHUP.

    hurried: whether after the first signal a SIGINT interrupts at once. Not under torchrun, which passes on to its
    processes the Ctrl-C that they have seen themselves.
    """
    received, known = [], [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

    def receive(number, _):
        received.append(number)
        if hurried and signal.SIGINT in before:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield received
        return
    before = {number: handler for number in known if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
