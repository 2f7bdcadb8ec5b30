#!/usr/bin/env python3
"""Kills and freezes real processes, and checks that no wake-up and no message is lost.

    tests/chaos.py [BINARY] [--seed N] [--seconds S | --rounds N] [--keep] [--settle S] [--sabotage KIND]

One relay without a sentinel, a queue in SQLite, 4 listeners in a group and 3 publishers. In each
round processes are killed (SIGKILL) and frozen (SIGSTOP) for up to 10 s, as the seed says, while
messages are put and for some time after. Then all processes run, nothing more is put, and within
--settle seconds (60) the following must hold:

  * Each acknowledged message was handled, or is in the poison queue if it always fails.
  * The queue is empty, and the poison queue holds nothing else.
  * Each listener has a stream again. One more message is then handled within 10 s.
  * No process ended by itself. No message was handled twice unless a fault explains it.

No process polls meanwhile. The sentinel is off. The listeners' own polling would hide a lost wake-up
while they have no stream, so --poll slows it down to once in ten minutes. The seed fixes the faults
and their times, but not the scheduling of the processes: a seed that failed may pass the next time.

One case is excused, in rounds that kill both the relay and listeners: a listener was killed with a
message, and the relay with the timer for it, so that only the sentinel finds the message
(docs/reliability.md). Such a message is counted, and notified by the test in the sentinel's place.
"""

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback

# Nothing is left beside the sources.
sys.dont_write_bytecode = True

import clear_up
from chaos_support import plan
from chaos_support.fleet import Fleet
from chaos_support.journal import now
from chaos_support.plan import BOTH
from chaos_support.programs import Failure
from chaos_support.publisher import Batch, Sabotage

# How long a message that is put into the silence may take, in seconds.
PROBE = 10
# A message whose listener and timer were killed together is notified after this, in seconds.
EXCUSED_AFTER = 2 * plan.VISIBILITY_TIMEOUT + 5
# The largest file, in bytes: a log that runs wild ends its process instead of filling the disk.
LARGEST_FILE = 256 << 20


def arguments() -> argparse.Namespace:
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser = argparse.ArgumentParser(description="Kills and freezes real processes.")
    parser.add_argument("binary", nargs="?", default=f"{target}/debug/reveille")
    parser.add_argument("--seed", type=int, default=1, help="what is done, and when [1]")
    parser.add_argument("--seconds", type=float, default=60, help="rounds begin for this long [60]")
    parser.add_argument("--rounds", type=int, help="the number of rounds, in place of --seconds")
    parser.add_argument("--settle", type=float, default=60, help="seconds until all must be handled [60]")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the run")
    kinds = [kind.value for kind in Sabotage]
    parser.add_argument("--sabotage", choices=kinds, help="a fault of the test's own: it must fail")
    return parser.parse_args()


class Chaos:
    """One run."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        self.options = options
        self.sabotage = Sabotage(options.sabotage) if options.sabotage else None
        binary = os.path.abspath(options.binary)
        self.fleet = Fleet(binary, folder, options.seed, self.sabotage)
        self.excused = 0
        # When the present round began.
        self.began = 0.0
        self.rounds = 0
        self.probes: list[Batch] = []

    def run(self) -> None:
        fleet = self.fleet
        fleet.start()
        began = now()
        self.settle("the start")
        while self.is_round_due(now() - began):
            self.round(plan.plan(self.options.seed, self.rounds))
            self.rounds += 1
        fleet.finish()

    def is_round_due(self, passed: float) -> bool:
        if self.options.rounds:
            return self.rounds < self.options.rounds
        return self.rounds == 0 or passed < self.options.seconds

    def round(self, plan: plan.Round) -> None:
        fleet, faults = self.fleet, list(plan.faults)
        self.began = began = now()
        fleet.journal.add("test", "round", self.rounds, plan.kind)
        for number in plan.publishers:
            fleet.publishers[number].publish(plan.pause, plan.puts)
        is_traffic_over, is_strict = False, plan.kind != BOTH
        while now() - began < plan.faults_for or plan.sees_freezes_out and fleet.has_pending():
            while faults and faults[0].at <= now() - began:
                fleet.begin(faults.pop(0), is_strict)
            if not is_traffic_over and now() - began >= plan.traffic_for:
                is_traffic_over = True
                for publisher in fleet.publishers:
                    publisher.stop()
            fleet.tick()
        if self.sabotage is Sabotage.EXIT:
            fleet.listeners[0].process.terminate()
        for publisher in fleet.publishers:
            publisher.stop()
        fleet.undo_all()
        self.settle(f"round {self.rounds}", may_excuse=not is_strict)
        for number in range(2):
            self.probe(f"probe/{self.rounds}-{number}")
        fleet.verdict.check_duplicates()

    def settle(self, what: str, may_excuse: bool = False) -> None:
        """Waits until all messages are handled, by listeners that do not poll."""
        fleet, began = self.fleet, now()
        fleet.journal.add("test", "quiet", what)
        asked, left = began, ["?"]
        while left:
            fleet.tick()
            if now() - asked < 0.5:
                continue
            asked = now()
            left = self.left()
            if left and now() - began > self.options.settle:
                raise Failure(f"{self.options.settle:.0f} s after {what}: {'; '.join(left)}")
            if left and may_excuse and now() - began > EXCUSED_AFTER:
                may_excuse = not self.excuse()
        fleet.journal.add("test", "settled", f"{now() - began:.1f} s after {what}")

    def left(self) -> list[str]:
        """Returns what is still missing, in words."""
        fleet, left = self.fleet, []
        batches = [batch for publisher in fleet.publishers for batch in publisher.batches]
        fleet.verdict.expect([*batches, *self.probes])
        fleet.drain_poison()
        left += [f"{publisher.name} has not notified" for publisher in fleet.publishers if not publisher.is_idle()]
        left += [f"{listener.name} is {listener.mode}" for listener in fleet.listeners if listener.mode != "pushed"]
        outstanding = fleet.verdict.outstanding()
        if outstanding:
            left.append(f"{len(outstanding)} messages are not handled, as {', '.join(outstanding[:5])}")
        depth = fleet.depth()
        if depth:
            left.append(f"{depth} messages are in the queue")
        return left

    def excuse(self) -> bool:
        """Notifies in the sentinel's place of messages that only the sentinel can find."""
        fleet = self.fleet
        if not fleet.are_pushed() or not all(publisher.is_idle() for publisher in fleet.publishers):
            return False
        messages = fleet.tool.lines("queue", "peek", fleet.url, "--max", "1000")
        # A hidden message is being handled, or its wake-up is still to come.
        if not messages or len(messages) < fleet.depth():
            return False
        if not all(fleet.verdict.may_be_excused(message, self.began) for message in messages):
            return False
        names = [message["body"].split(" ")[0] for message in messages]
        fleet.journal.add("test", "excused", *names)
        self.excused += len(names)
        fleet.tool.run("notify", fleet.address, "--messages", str(len(names)))
        return True

    def probe(self, name: str) -> None:
        """Puts one message into the silence."""
        fleet, began = self.fleet, now()
        batch = Batch([f"{name} plain 0"], is_acknowledged=True)
        notify = [] if self.sabotage is Sabotage.QUIET else ["--notify"]
        fleet.tool.run("queue", "put", fleet.url, *batch.bodies, *notify)
        self.probes.append(batch)
        fleet.verdict.expect([batch])
        while fleet.verdict.outstanding():
            fleet.tick()
            if now() - began > PROBE:
                raise Failure(f"`{name}` was not handled within {PROBE} s, although nothing was disturbed")

    def summary(self) -> str:
        acknowledged, through = self.fleet.verdict.counts()
        faults = [entry.event for entry in self.fleet.journal.entries if entry.actor != "test"]
        return (
            f"chaos: seed {self.options.seed}, {self.rounds} rounds, {faults.count('killed')} kills, "
            f"{faults.count('frozen')} freezes: {through} of {acknowledged} messages through, "
            f"{sum(self.fleet.verdict.poisoned.values())} poisoned as meant, "
            f"{self.fleet.verdict.explained_duplicates} handled again after a fault, {self.excused} excused"
        )

    def report(self, folder: pathlib.Path) -> None:
        """Prints what is known of a failure."""
        fleet = self.fleet
        fleet.verdict.read()
        names = fleet.verdict.outstanding()[:20]
        print(f"--- the plan of round {self.rounds}")
        print(*plan.plan(self.options.seed, self.rounds).faults, sep="\n")
        print("--- the journal, its last 400 entries")
        print(*fleet.journal.entries[-400:], sep="\n")
        print(f"--- not handled: {' '.join(names)}")
        print(*fleet.verdict.history(names), sep="\n")
        for question in (["queue", "peek", fleet.url, "--max", "50"], ["listeners"], ["queues"]):
            print(f"--- {question[0]} {question[1] if len(question) > 1 else ''}")
            try:
                print(fleet.tool.run(*question, expected=tuple(range(256))))
            except subprocess.TimeoutExpired:
                print("no answer")
        for log in sorted(folder.glob("*.log")):
            if log != fleet.journal.path:
                print(f"--- the end of {log.name}")
                print(*log.read_text(errors="replace").splitlines()[-60:], sep="\n")


def run(options: argparse.Namespace, folder: pathlib.Path) -> bool:
    chaos = None
    try:
        chaos = Chaos(options, folder)
        chaos.run()
        print(chaos.summary())
        return True
    except Exception as error:
        words = str(error) if isinstance(error, Failure) else traceback.format_exc()
        print(f"chaos: seed {options.seed} FAILED: {words}")
        if chaos:
            print(chaos.summary())
            chaos.report(folder)
            print(f"chaos: seed {options.seed} FAILED: {words}")
        return False
    finally:
        if chaos:
            chaos.fleet.kill()


def main() -> int:
    options = arguments()
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"reveille-chaos-{options.seed}."))
    # Clears up where this process is killed.
    script = pathlib.Path(__file__).parent / "clear_up.py"
    watcher = subprocess.Popen([sys.executable, script, folder, str(os.getpid())], stdin=subprocess.DEVNULL)
    try:
        return 0 if run(options, folder) else 1
    finally:
        watcher.kill()
        watcher.wait()
        # The commands of a killed listener end with it.
        clear_up.kill_all(str(folder))
        if options.keep:
            print(f"chaos: {folder} is kept")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
