"""The processes of a run that live on: the relay and the listeners, killed, frozen and restarted."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import socket
import subprocess

from .journal import Journal


class Failure(Exception):
    """A rule of the test does not hold."""


# Holds the ports of this test, which other tests that run beside it would take otherwise.
_held: list[socket.socket] = []


def free_port() -> int:
    """A port below the range from which connections take theirs, for this test until it ends.

    A client that connects to a port of that range while nothing listens there may be given the same
    port as its own, and talk to itself.
    """
    while True:
        port, holder = random.randrange(15_000, 30_000), socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        # Only now, so that no other holder gets the port: programs that listen set it before they bind.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(holder)
        return port


class Program:
    """One process, and what the test did to it."""

    def __init__(self, name: str, command: list[str], journal: Journal, folder: pathlib.Path, environment: dict):
        self.name = name
        self.log = folder / f"{name}.log"
        self.is_frozen = False
        self.process: subprocess.Popen | None = None
        self._command = command
        self._journal = journal
        self._environment = environment
        self._read = 0
        # A listener's mode by its log: `pushed` or `polling`.
        self.mode = ""
        # Messages that a listener that has ended lost to others while it handled them.
        self.lost = 0

    def start(self) -> None:
        self.mode = ""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        self._journal.add(self.name, "started", self.process.pid)

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def is_down(self) -> bool:
        """Whether the test killed it: not where it ended by itself."""
        return self.process is None

    def signal(self, number: signal.Signals) -> None:
        # Not waited for yet, so its id is not reused.
        if self.process is not None and self.process.returncode is None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        if not self.is_alive():
            return
        self._journal.add(self.name, "killed")
        # With its commands, which are of its session, as a service manager does with a unit.
        subprocess.run(["pkill", "-KILL", "-s", str(self.process.pid)], check=False)
        self.process.wait()
        self.process, self.is_frozen = None, False

    def freeze(self) -> None:
        self._journal.add(self.name, "frozen")
        self.is_frozen = True
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.is_frozen:
            # Noted first, so that whatever follows from it stands behind it.
            self._journal.add(self.name, "thawed")
            self.signal(signal.SIGCONT)
            self.is_frozen = False

    def ended(self) -> int | None:
        """Returns the exit code of a process that ended by itself, once."""
        if self.process is None or self.process.poll() is None:
            return None
        code, self.process = self.process.returncode, None
        self._journal.add(self.name, "ended", code)
        return code

    def finish(self, patience: float) -> int:
        """Ends it in order, and returns its exit code."""
        self._journal.add(self.name, "terminated")
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} has not ended {patience:.0f} s after SIGTERM") from None

    def look(self) -> None:
        """Reads a listener's mode, and what it says when it ends, from its log."""
        with open(self.log, "rb") as log:
            log.seek(self._read)
            data = log.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        for line in data.splitlines():
            try:
                event = json.loads(line)
                word = event.get("message", "").split(":")[0]
                mode = word if word in ("pushed", "polling") else self.mode
                self.lost = event.get("lost", 0)
            except (ValueError, AttributeError):
                continue
            if mode != self.mode:
                self.mode = mode
                self._journal.add(self.name, mode)


class Tool:
    """Runs verbs of the command line; no fault is planned for these processes."""

    def __init__(self, binary: str, environment: dict):
        self._binary = binary
        self._environment = environment

    def run(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> str:
        command = [self._binary, *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, env=self._environment
        )
        if done.returncode not in expected:
            raise Failure(f"`{' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def lines(self, *arguments: str) -> list[dict]:
        return [json.loads(line) for line in self.run(*arguments, "-o", "jsonl").splitlines()]
