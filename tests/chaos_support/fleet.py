"""A relay, its listeners and its publishers in one folder, and the faults of a round."""

from __future__ import annotations

import os
import pathlib
import random
import time

from . import plan
from .journal import Journal, now
from .plan import Fault
from .programs import Failure, Program, Tool, free_port
from .publisher import UNREACHABLE, Publisher, Sabotage
from .verdict import Verdict

HANDLER = pathlib.Path(__file__).parent / "handle.sh"
# The interval of the test's own checks, in seconds; and a delay of one that shows that the machine did
# not let the other processes run either.
TICK, STARVED = 0.05, 2.0
# The exit code of a listener that ended a command, in place of 0.
TERMINATED = 143

class Fleet:
    def __init__(self, binary: str, folder: pathlib.Path, seed: int, sabotage: Sabotage | None):
        self.journal = Journal(folder / "journal.log")
        self.verdict = Verdict(self.journal)
        self.url = f"sqlite:{folder}/jobs.db?queue=jobs"
        port = free_port()
        self.relay_url = f"http://127.0.0.1:{port}"
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("REVEILLE_")}
        # Every process has the folder in its environment, by which clear_up.py finds it.
        environment = inherited | {"CHAOS_JOURNAL": str(self.journal.path), "REVEILLE_RELAY": self.relay_url}
        self.tool = Tool(binary, environment)
        self.address = self.tool.run("queue", "address", self.url).strip()
        for url in (self.url, self.url + "-poison"):
            self.tool.run("queue", "create", url)
        serve = f"serve --listen 127.0.0.1:{port} --admin-listen off --sentinel 0s --log json"
        store = f"sqlite:{folder}/relay.db"
        self.relay = Program("relay", [binary, *serve.split(), "--store", store], self.journal, folder, environment)
        chance = random.Random(f"listeners {seed}")
        self.listeners = [self._listener(binary, folder, chance, n, environment) for n in range(plan.LISTENERS)]
        command = {
            "binary": binary,
            "url": self.url,
            "address": self.address,
            "log": folder / "publishers.log",
            "options": ["--timeout", "2s"],
            "environment": environment,
        }
        names = [f"publisher-{number}" for number in range(plan.PUBLISHERS)]
        self.publishers = [Publisher(name, seed, self.journal, command, sabotage) for name in names]
        self.named = {actor.name: actor for actor in [self.relay, *self.listeners, *self.publishers]}
        # When whom is to be restarted or thawed.
        self._pending: list[tuple[float, str]] = []
        self._last_tick = now()

    def _listener(self, binary: str, folder: pathlib.Path, chance: random.Random, number: int, environment: dict):
        name = f"listener-{number}"
        # Without a stream a listener polls, and so finds a message whose wake-up was lost. Here its
        # pauses grow to ten minutes, so that the message stays.
        options = f"--visibility-timeout {plan.VISIBILITY_TIMEOUT}s --poll 10m -o json"
        options += f" --max-dequeue-count {plan.MAX_DEQUEUE_COUNT}"
        options = [*options.split(), *plan.listener_options(chance)]
        command = [binary, "listen", self.url, *options, "--", str(HANDLER)]
        return Program(name, command, self.journal, folder, environment | {"REVEILLE_LISTENER_ID": name})

    @property
    def programs(self) -> list[Program]:
        return [self.relay, *self.listeners]

    def start(self) -> None:
        for program in self.programs:
            program.start()

    def begin(self, fault: Fault, is_strict: bool) -> None:
        """Kills or freezes the target, unless it is down or frozen already.

        A listener that has no stream may hold a message that the relay knows nothing of. It is not
        killed where nothing is excused (`is_strict`)."""
        actor = self.named[fault.target]
        is_kill = fault.kind == "kill"
        if not actor.is_alive() or actor.is_frozen and not is_kill:
            return
        if is_strict and is_kill and actor in self.listeners and actor.mode != "pushed":
            return
        if fault.kind == "kill":
            actor.kill()
        else:
            actor.freeze()
        self._pending.append((now() + fault.span, fault.target))

    def tick(self) -> None:
        """Restarts and thaws what is due, checks for processes that ended, and reads the journal."""
        time.sleep(TICK)
        if now() - self._last_tick > STARVED:
            self.journal.add("test", "starved", f"{now() - self._last_tick:.1f}")
        self._last_tick = now()
        for due in [due for due in self._pending if due[0] <= now()]:
            self._pending.remove(due)
            self._undo(due[1])
        for listener in self.listeners:
            listener.look()
        self.verdict.read()
        self._supervise()
        for publisher in self.publishers:
            if publisher.failure:
                raise Failure(publisher.failure)

    def has_pending(self) -> bool:
        return bool(self._pending)

    def undo_all(self) -> None:
        self._pending.clear()
        for name in self.named:
            self._undo(name)

    def _undo(self, name: str) -> None:
        actor = self.named[name]
        if actor.is_frozen:
            actor.thaw()
        elif actor.is_down():
            actor.start()

    def _supervise(self) -> None:
        for program in self.programs:
            code = program.ended()
            if code is None:
                continue
            is_locked_out = code == UNREACHABLE and self.verdict.was_locked_before(now())
            if program is self.relay or not is_locked_out:
                raise Failure(f"{program.name} ended by itself with {code}")
            program.start()

    def are_pushed(self) -> bool:
        """Whether all listeners have a stream, and so do not poll."""
        return all(listener.mode == "pushed" for listener in self.listeners)

    def depth(self) -> int:
        return self.tool.lines("queue", "depth", self.url)[0]["depth"]

    def drain_poison(self) -> None:
        get = ["queue", "get", self.url + "-poison", "--delete", "--max", "100"]
        messages = self.tool.lines(*get)
        # Includes what the handlers noted of these messages.
        self.verdict.read()
        for message in messages:
            self.verdict.found_poisoned(message)

    def finish(self) -> None:
        """Ends everything in order."""
        for publisher in self.publishers:
            publisher.close()
        for program in [*self.listeners, self.relay]:
            code = program.finish(20)
            program.look()
            # A command that was told to end because its message was lost may end in the shutdown.
            if code and (code, program.lost > 0) != (TERMINATED, True):
                raise Failure(f"{program.name} ended with {code} after SIGTERM")

    def kill(self) -> None:
        for actor in self.named.values():
            if isinstance(actor, Publisher):
                actor.close()
            else:
                actor.kill()
