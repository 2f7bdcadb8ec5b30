"""The journal of a run: what the test does and what the handlers do, in one order.

One file, to which the test and every handler append single lines:

    SECONDS ACTOR EVENT DETAIL...

so that "was a listener killed while this message was handled" is decided by the order of lines.
"""

import os
import pathlib
import threading
import time
from typing import NamedTuple


class Entry(NamedTuple):
    time: float
    actor: str
    event: str
    detail: str

    def __str__(self) -> str:
        return f"{self.time:10.2f}  {self.actor:<12} {self.event:<10} {self.detail}"


def now() -> float:
    """Seconds by the clock of /proc/uptime, which a shell can read, too."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Journal:
    """Safe to be used from several threads."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.entries: list[Entry] = []
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._read = 0
        self._latest = 0.0
        self._lock = threading.Lock()

    def add(self, actor: str, event: str, *detail: object) -> None:
        words = " ".join(map(str, detail)).replace("\n", " ")
        os.write(self._file, f"{now():.2f} {actor} {event} {words}\n".encode())

    def read(self) -> list[Entry]:
        """Returns the entries that came since the last call."""
        with self._lock:
            data = os.pread(self._file, 1 << 24, self._read)
            data = data[: data.rfind(b"\n") + 1]
            self._read += len(data)
            new = []
            for line in data.decode(errors="replace").splitlines():
                seconds, actor, event, detail = (line.split(" ", 3) + [""] * 3)[:4]
                # A handler without a clock writes 0.
                self._latest = float(seconds) or self._latest
                new.append(Entry(self._latest, actor, event, detail))
            self.entries += new
            return new
