"""Stop a training between two steps when the user or the system asks for it."""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Within its `with` block, Ctrl-C, SIGTERM and SIGHUP set `signal`; a second one ends the process.

    While `at_once` is True they also raise KeyboardInterrupt: nothing is under way that has to be saved.

    A signal that the process was started to ignore (`nohup`) is left alone. Two signals within a second are one: a
    terminal that is closed, for example, sends several.

    Python runs signal handlers between two lines of its main thread, which may compile for a minute. So a thread reads
    the signals' numbers from a socket, to which Python writes them at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at_once = True

    def __enter__(self) -> "StopRequest":
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._heed) for number in heeded}
        self._fd = signal.set_wakeup_fd(self._writer.fileno())
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._writer.close()  # which ends the thread
        self._thread.join()
        self._reader.close()

    def _heed(self, number: int, *_: object) -> None:
        if self.at_once:
            raise KeyboardInterrupt(number)  # the thread may not have read it yet

    def _watch(self) -> None:
        first = 0.0
        while numbers := self._reader.recv(1):
            number, now = numbers[0], time.monotonic()
            if self.signal is not None:
                if now - first > 1:
                    os._exit(128 + number)
                continue
            self.signal, first = number, now
            if self.at_once:
                continue
            with suppress(OSError):  # the terminal is closed
                print("\nstopping after the steps under way; once more ends at once", file=sys.stderr, flush=True)
