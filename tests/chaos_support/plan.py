"""What is to happen in a round, drawn from the seed alone."""

import random
from typing import NamedTuple

LISTENERS = 4
PUBLISHERS = 3

# A message of a listener that died is seen again after this, in seconds.
VISIBILITY_TIMEOUT = 5
MAX_DEQUEUE_COUNT = 4

# Puts of one publisher in a round, so that the run stays small however fast the machine is.
MOST_PUTS = 200

# The mean time between two faults, in seconds. A fault whose target is down already does nothing.
MEAN_PAUSE = 0.6
# The longest freeze, in seconds.
LONGEST_FREEZE = 10
# The relay ends a connection that has not answered a PING for 10 s. After a shorter freeze a listener
# still has its stream, and may be killed: see below.
STREAM_SURVIVES = 7

# Where a listener is killed with a message, and the relay with the timer for it, only the sentinel
# finds the message, and that is off. So a round kills either the relay or listeners, and nothing is
# excused. A round of the third kind kills both, and such a message is excused.
RELAY, LISTENER, BOTH = "relay", "listeners", "both"


class Fault(NamedTuple):
    """After `at` seconds `target` is killed or frozen, and `span` seconds later restarted or thawed."""

    at: float
    target: str
    kind: str
    span: float

    def __str__(self) -> str:
        verb = "kill" if self.kind == "kill" else "freeze"
        return f"{self.at:5.1f} s: {verb} {self.target} for {self.span:.1f} s"


class Round(NamedTuple):
    kind: str
    # Seconds for which the round lasts at least, and for which messages are put. Faults go on after the
    # last put, as the next notification would hide a lost wake-up.
    faults_for: float
    traffic_for: float
    # Which publishers put, the longest pause before each put in seconds, and how many puts there are.
    publishers: list[int]
    pause: float
    puts: int
    # Whether each freeze lasts as long as planned, and is not cut short when no more faults begin.
    sees_freezes_out: bool
    faults: list[Fault]


def plan(seed: int, number: int) -> Round:
    chance = random.Random(f"plan {seed} {number}")
    kind = [RELAY, LISTENER, BOTH][(seed + number) % 3]
    publishers = list(range(PUBLISHERS))
    if chance.random() < 0.6:
        # A single put, then silence: the next notification would hide a lost wake-up.
        faults_for = traffic_for = chance.uniform(2, 5)
        # Each restart and each reconnect checks the queue, and so may hide one as well: in half of the
        # rounds the faults end early.
        pause, puts, last_fault = faults_for * 0.9, 1, faults_for * chance.choice([0.4, 1])
        publishers = chance.sample(publishers, chance.choice([1, 1, PUBLISHERS]))
    else:
        faults_for = last_fault = chance.uniform(4, 8)
        traffic_for = faults_for * chance.uniform(0.3, 0.9)
        pause, puts = chance.choice([0.1, 0.4, 1.5]), MOST_PUTS
    # A frozen process may hold the lock of the database, and so explains nearly each message that is
    # handled twice. Where there are only kills, its own listener must have been killed.
    freezes = chance.choice([0.0, 0.5, 0.8])
    faults, at = [], 0.0
    while True:
        at += chance.expovariate(1 / MEAN_PAUSE)
        if at > last_fault:
            break
        faults.append(fault(chance, kind, freezes, at))
    sees_freezes_out = chance.random() < 0.5
    return Round(kind, faults_for, traffic_for, publishers, pause, puts, sees_freezes_out, faults)


def fault(chance: random.Random, kind: str, freezes: float, at: float) -> Fault:
    weights = {RELAY: [4, 3 if freezes else 0, 3], LISTENER: [0, 7, 3], BOTH: [3, 5, 2]}
    actor = chance.choices(["relay", "listener", "publisher"], weights[kind])[0]
    if actor == "relay":
        name = actor
    else:
        name = f"{actor}-{chance.randrange(LISTENERS if actor == 'listener' else PUBLISHERS)}"
    if chance.random() >= freezes and not (actor == "listener" and kind == RELAY):
        return Fault(at, name, "kill", chance.choice([0, 0.3, chance.uniform(0, 4)]))
    longest = STREAM_SURVIVES if (actor, kind) == ("listener", LISTENER) else LONGEST_FREEZE
    return Fault(at, name, "freeze", chance.choice([0.3, chance.uniform(0.5, longest), longest]))


def body(chance: random.Random, name: str) -> str:
    """Returns what `handle.sh` reads: some messages are slow, some fail once, few always."""
    kind = chance.choices(["plain", "once", "pill"], [90, 8, 1])[0]
    pause = chance.choices([0, 0.2, chance.uniform(1, 4)], [75, 15, 10])[0]
    return f"{name} {kind} {pause and round(pause, 2)}"


def listener_options(chance: random.Random) -> list[str]:
    """How much one listener takes on at a time: different sizes share a group."""
    return ["--max-tasks", str(chance.randint(1, 4)), "--concurrency", str(chance.randint(1, 3))]
