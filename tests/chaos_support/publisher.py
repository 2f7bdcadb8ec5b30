"""A publisher: puts and notifies with the command line, and is killed and frozen with its process."""

import enum
import random
import signal
import subprocess
import threading
from dataclasses import dataclass

from .journal import Journal
from .plan import body

# Exit codes of `queue put --notify` and `notify`.
DONE, UNREACHABLE, STORED = 0, 3, 8
# A call that takes longer hangs: several times its --timeout, a lock of the database and a freeze.
LONGEST_CALL = 60


class Sabotage(enum.Enum):
    """A fault of the test's own, which it must report."""

    QUIET = "quiet"  # Nothing is notified.
    SELDOM = "seldom"  # Every tenth put is not notified.
    TWICE = "twice"  # Every tenth message is put twice.
    PILLS = "pills"  # Every tenth message cannot be handled, and the test is not told.
    LOST = "lost"  # Every tenth message that is said to be put is not.
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
        self.pause = 0.0
        self.is_frozen = False
        self._chance = random.Random(f"{name} {seed}")
        self._journal = journal
        self._command = command
        self._sabotage = sabotage
        self._process: subprocess.Popen | None = None
        self._is_down = False
        self._publishing = False
        self._closed = False
        self._is_idle = True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    # What the test does to it.

    def publish(self, pause: float) -> None:
        with self._changed:
            self.pause, self._publishing, self._is_idle = pause, True, False
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._publishing = False
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """Whether all that it put is notified."""
        return self._is_idle

    def close(self) -> None:
        with self._changed:
            self._closed, self._publishing = True, False
            if self._process:
                self._process.kill()
            self._changed.notify_all()

    def start(self) -> None:
        self._set(is_down=False, event="started")

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

    def _set(self, is_down: bool, event: str) -> None:
        with self._changed:
            self._is_down = is_down
            self._journal.add(self.name, event)
            self._changed.notify_all()

    # What it does.

    def _live(self) -> None:
        try:
            while self._wait_for_work():
                self._publish_once()
        except Exception as error:  # The test is told, instead of waiting for the thread.
            self.failure = f"{self.name}: {error!r}"

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not self._publishing and not self._closed:
                self._is_idle = True
                self._changed.wait()
            if not self._closed:
                self._changed.wait(self._chance.uniform(0, self.pause))
            return not self._closed

    def _publish_once(self) -> None:
        count = self._chance.choice([1, 1, 1, 2, 5])
        first = sum(len(batch.bodies) for batch in self.batches)
        names = [f"{self.name}/{first + number}" for number in range(count)]
        batch = Batch([body(self._chance, name) for name in names])
        self.batches.append(batch)
        is_tenth = len(self.batches) % 10 == 3
        quiet = self._sabotage is Sabotage.QUIET or (self._sabotage is Sabotage.SELDOM and is_tenth)
        code = self._put(batch.bodies, quiet, is_tenth)
        batch.is_acknowledged = code in (DONE, STORED)
        # A process that was killed cannot know whether it has put, so its successor notifies.
        told = code == DONE or quiet
        while not told and not self._closed:
            told = self._run("notify", self._command["address"], "--messages", str(count)) == DONE
            with self._changed:
                self._changed.wait(self._chance.uniform(0.05, 0.3))

    def _put(self, bodies: list[str], quiet: bool, is_tenth: bool) -> int | None:
        match self._sabotage if is_tenth else None:
            case Sabotage.LOST:
                return DONE
            case Sabotage.TWICE:
                bodies = bodies * 2
            case Sabotage.PILLS:
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
