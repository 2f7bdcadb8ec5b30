"""A publisher: puts and notifies with the command line, and is killed and frozen with its process."""

from __future__ import annotations

import enum
import random
import signal
import subprocess
import threading
from dataclasses import dataclass

from .journal import Journal, now
from .plan import body

# Exit codes of `queue put --notify` and `notify`.
DONE, UNREACHABLE, STORED = 0, 3, 8
# A call that takes longer hangs: several times its --timeout, a lock of the database and a freeze.
LONGEST_CALL = 60


class Sabotage(enum.Enum):
    """A fault of the test's own, which it must report."""

    QUIET = "quiet"  # Nothing is notified.
    SINGLE = "single"  # A put is not notified if it is its publisher's only one in a round.
    TWICE = "twice"  # Every fifth message is put twice.
    PILLS = "pills"  # Every fifth message cannot be handled, and the test is not told.
    LOST = "lost"  # Every fifth message that is said to be put is not.
    EXIT = "exit"  # A listener is told to end behind the test's back.


@dataclass
class Batch:
    """What one call put, or did not."""

    bodies: list[str]
    is_acknowledged: bool = False


class Publisher:
    """A thread that runs one process after the other. Used from two threads, under its lock."""

    def __init__(self, name: str, seed: int, journal: Journal, command: dict, sabotage: Sabotage | None):
        self.name = name
        self.batches: list[Batch] = []
        self.failure: str | None = None
        self.is_frozen = False
        self._chance = random.Random(f"{name} {seed}")
        self._journal = journal
        self._command = command
        self._sabotage = sabotage
        self._process: subprocess.Popen | None = None
        self._is_down = False
        self._pause, self._puts = 0.0, 0
        self._is_single = False
        self._closed = False
        self._is_idle = True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    # Called by the test's thread.

    def publish(self, pause: float, puts: int) -> None:
        """Has it put so many times, after a pause each, until it is told to stop."""
        with self._changed:
            self._pause, self._puts, self._is_idle = pause, puts, False
            self._is_single = puts == 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._puts = 0
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """Whether all that it put is notified."""
        return self._is_idle

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._process:
                self._process.kill()
            self._changed.notify_all()

    def start(self) -> None:
        with self._changed:
            self._journal.add(self.name, "started")
            self._is_down = False
            self._changed.notify_all()

    def kill(self) -> None:
        with self._changed:
            self._journal.add(self.name, "killed")
            self._is_down, self.is_frozen = True, False
            if self._process:
                self._process.kill()

    def freeze(self) -> None:
        with self._changed:
            self._journal.add(self.name, "frozen")
            self.is_frozen = True
            if self._process:
                self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        with self._changed:
            if self.is_frozen:
                self._journal.add(self.name, "thawed")
                self.is_frozen = False
                if self._process:
                    self._process.send_signal(signal.SIGCONT)
                self._changed.notify_all()

    def is_alive(self) -> bool:
        return not self._is_down

    def is_down(self) -> bool:
        return self._is_down

    # Runs on its own thread.

    def _live(self) -> None:
        try:
            while self._wait_for_work():
                self._publish_once()
        except Exception as error:  # Handed to the test, which would wait for this thread for ever.
            self.failure = f"{self.name}: {error!r}"

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not self._closed:
                if not self._puts:
                    self._is_idle = True
                    self._changed.wait()
                    continue
                self._puts -= 1
                self._rest(self._chance.uniform(0, self._pause))
                return True
            return False

    def _rest(self, seconds: float) -> None:
        """Under the lock, which is free meanwhile."""
        until = now() + seconds
        while now() < until and not self._closed:
            self._changed.wait(until - now())

    def _publish_once(self) -> None:
        count = self._chance.choice([1, 1, 1, 2, 5])
        first = sum(len(batch.bodies) for batch in self.batches)
        names = [f"{self.name}/{first + number}" for number in range(count)]
        batch = Batch([body(self._chance, name) for name in names])
        self.batches.append(batch)
        is_fifth = len(self.batches) % 5 == 2
        quiet = self._sabotage is Sabotage.QUIET or (self._sabotage is Sabotage.SINGLE and self._is_single)
        code = self._put(batch.bodies, quiet, is_fifth)
        batch.is_acknowledged = code in (DONE, STORED)
        # A process that was killed may have put without notifying: the next one notifies.
        told = code == DONE or quiet
        while not told and not self._closed:
            told = self._run("notify", self._command["address"], "--messages", str(count)) == DONE
            with self._changed:
                self._rest(0 if told else self._chance.uniform(0.05, 0.3))

    def _put(self, bodies: list[str], quiet: bool, is_fifth: bool) -> int | None:
        sabotage = self._sabotage if is_fifth else None
        if sabotage is Sabotage.LOST:
            return DONE
        if sabotage is Sabotage.TWICE:
            bodies = bodies * 2
        if sabotage is Sabotage.PILLS:
            bodies = [text.replace("plain", "pill") for text in bodies]
        notify = [] if quiet else ["--notify"]
        return self._run("queue", "put", self._command["url"], *bodies, *notify)

    def _run(self, *arguments: str) -> int | None:
        """Returns the exit code; `None` where the process was killed."""
        with self._changed:
            while (self._is_down or self.is_frozen) and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            with open(self._command["log"], "ab") as log:
                self._process = subprocess.Popen(
                    [self._command["binary"], *arguments, *self._command["options"]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._command["environment"],
                )
        code = self._process.wait(LONGEST_CALL)
        with self._changed:
            self._process = None
        words = [word.replace(" ", ":") for word in arguments if word.startswith(self.name)]
        self._journal.add(self.name, arguments[0], code, *words)
        if code == -signal.SIGKILL:
            return None
        if code not in (DONE, UNREACHABLE) and (code, arguments[0]) != (STORED, "queue"):
            raise RuntimeError(f"`{' '.join(arguments[:2])}` ended with {code}")
        return code
