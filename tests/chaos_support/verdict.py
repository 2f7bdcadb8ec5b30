"""Judges by the journal what happened to each message."""

import collections
import json

from .journal import Entry, Journal
from .plan import LONGEST_FREEZE, MAX_DEQUEUE_COUNT
from .programs import Failure
from .publisher import UNREACHABLE, Batch

# A fault that ended so many seconds before a message was started may still explain that it is handled
# twice: it was got before the freeze, and started after it.
MARGIN = LONGEST_FREEZE + 2
# SQLite waits for 5 s for the lock of a process that was frozen with it, and the command line starts
# and ends besides.
LOCKED = LONGEST_FREEZE + 5
FAULTS = ("killed", "frozen", "thawed", "starved")


class Verdict:
    """The state of each message, by its name."""

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
        """Fails where a message was handled twice and no fault explains it."""
        for name, ends in self._ends.items():
            if len(ends) < 2 or name in self._settled:
                continue
            self._settled.add(name)
            if not self._is_explained(name):
                history = "\n".join(map(str, self._starts[name] + ends))
                raise Failure(f"`{name}` was handled {len(ends)} times, and no fault explains it:\n{history}")
            self.explained_duplicates += len(ends) - 1

    def _is_explained(self, name: str) -> bool:
        """Whether a listener that had the message was killed or frozen meanwhile, or any process was
        frozen, which may have held the lock of the database and so kept renewals and deletes waiting."""
        starts = self._starts[name]
        listeners = {entry.actor for entry in starts}
        since, until = starts[0].time - MARGIN, starts[-1].time
        return any(
            since <= entry.time <= until
            and (entry.actor in listeners or entry.event in ("frozen", "thawed", "starved"))
            and entry.actor != "relay"
            for entry in self._faults
        )

    def may_be_excused(self, message: dict, since: float) -> bool:
        """Whether a message may wait for the sentinel, which is off: the listener that had it was
        killed, and the relay did not keep the timer for it.

        A message that no listener has got yet is never excused."""
        killed = [entry for entry in self._faults if entry.event == "killed" and entry.time >= since]
        listeners = [entry for entry in killed if entry.actor.startswith("listener")]
        relay = [entry for entry in self._faults if entry.actor == "relay" and entry.time >= since]
        if not message["dequeue_count"] or not listeners or not relay:
            return False
        starts = self._starts[message["body"].split(" ")[0]]
        # A listener may have died between the get and the start of the command.
        return not starts or any(
            entry.actor == starts[-1].actor and entry.time >= starts[-1].time for entry in listeners
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
