"""What must hold of the messages, judged by the journal."""

import collections
import json

from .journal import Entry, Journal
from .plan import LONGEST_FREEZE, MAX_DEQUEUE_COUNT
from .programs import Failure
from .publisher import UNREACHABLE, Batch

# A fault before a message was started may explain what became of it for this long, in seconds: a
# freeze ends, and what was got before it is handled after it.
MARGIN = LONGEST_FREEZE + 2
# SQLite waits for 5 s for the lock of a process that was frozen with it, and the command line starts
# and ends besides.
LOCKED = LONGEST_FREEZE + 5
FAULTS = ("killed", "frozen", "thawed", "starved")


class Verdict:
    """Keeps books on each message by its name."""

    def __init__(self, journal: Journal):
        self._journal = journal
        self._bodies: dict[str, str] = {}
        self._acknowledged: set[str] = set()
        self._starts: dict[str, list[Entry]] = collections.defaultdict(list)
        self._ends: dict[str, list[Entry]] = collections.defaultdict(list)
        self._failures: collections.Counter[str] = collections.Counter()
        self._faults: list[Entry] = []
        self._settled: set[str] = set()
        self.poisoned: collections.Counter[str] = collections.Counter()
        self.explained_duplicates = 0

    def expect(self, batches: list[Batch]) -> None:
        for batch in batches:
            for body in batch.bodies:
                name = body.split(" ")[0]
                self._bodies[name] = body
                if batch.is_acknowledged:
                    self._acknowledged.add(name)

    def read(self) -> None:
        for entry in self._journal.read():
            name = entry.detail.split(" ")[0]
            if entry.event == "start":
                self._starts[name].append(entry)
            elif entry.event == "done":
                self._ends[name].append(entry)
            elif entry.event == "failed":
                self._failures[name] += 1
            elif entry.event in FAULTS:
                self._faults.append(entry)
            elif entry.event == "queue" and name == str(UNREACHABLE) and not self.was_locked_before(entry.time):
                raise Failure(f"the database was locked for {entry.actor} although no process was frozen")

    def counts(self) -> tuple[int, int]:
        """Returns how many messages were acknowledged, and how many of them are through."""
        return len(self._acknowledged), len(self._acknowledged & self._through())

    def outstanding(self) -> list[str]:
        return sorted(self._acknowledged - self._through())

    def _through(self) -> set[str]:
        return self._ends.keys() | self.poisoned.keys()

    def found_poisoned(self, message: dict) -> None:
        """Judges a message of the poison queue."""
        envelope = json.loads(message["body"])
        name, kind, _ = envelope["body"].split(" ")
        self.poisoned[name] += 1
        if self._bodies.get(name, envelope["body"]) != envelope["body"] or kind != "pill":
            raise Failure(f"`{name}` is in the poison queue, and was not meant to: {envelope}")
        if not self._failures[name] or envelope["dequeue_count"] < MAX_DEQUEUE_COUNT:
            raise Failure(f"`{name}` went to the poison queue before its tries: {envelope}")

    def check_duplicates(self) -> None:
        """Fails where a message was handled twice although nothing that was done explains it."""
        for name, ends in self._ends.items():
            if len(ends) < 2 or name in self._settled:
                continue
            self._settled.add(name)
            if not self._is_explained(name):
                history = "\n".join(map(str, self._starts[name] + ends))
                raise Failure(f"`{name}` was handled {len(ends)} times, and no fault explains it:\n{history}")
            self.explained_duplicates += len(ends) - 1

    def _is_explained(self, name: str) -> bool:
        """Whether a listener that had the message was killed or frozen meanwhile, or any process
        frozen: it may have held the lock of the database, so that nothing was renewed or deleted."""
        starts = self._starts[name]
        listeners = {entry.actor for entry in starts}
        since, until = starts[0].time - MARGIN, starts[-1].time
        return any(
            since <= entry.time <= until
            and (entry.actor in listeners or entry.event in ("frozen", "thawed", "starved"))
            and entry.actor != "relay"
            for entry in self._faults
        )

    def was_locked_before(self, time: float) -> bool:
        """Whether a process that may have held the lock of the database was frozen shortly before."""
        return any(
            entry.event in ("frozen", "thawed", "starved") and entry.actor != "relay" and entry.time >= time - LOCKED
            for entry in self._faults
        )

    def history(self, names: list[str]) -> list[Entry]:
        wanted = set(names)
        return [
            entry
            for entry in self._journal.entries
            if wanted & {word.split(":")[0] for word in entry.detail.split(" ")}
        ]


def is_left_by_the_dead(message: dict) -> bool:
    """Whether a message was got by a listener before: where that died with it, and the relay with the
    timer for it, only the sentinel finds it."""
    return message["dequeue_count"] > 0
