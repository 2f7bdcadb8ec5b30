"""Kills two machines that hand messages over to each other, and checks that no message is lost.

    courier_kills.py EXAMPLE [--seed N] [--kills N]

Each machine is a process of examples/store_and_forward.rs: it has a queue file, a ledger in the same
file, and an application that sends numbered messages in transactions and receives in transactions.
Between the machines stands a proxy for each direction that cuts streams, and delays, repeats and
swaps their frames. A machine is killed with SIGKILL at a random moment. At the end the faults stop;
then both ledgers must have each committed message once, in order, and no message may be left in a
table.
"""

import argparse
import os
import queue
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from pathlib import Path

# Nothing is left beside the sources.
sys.dont_write_bytecode = True

import grpc

from chaos_support.programs import free_port

PATH = "/reveille.v1.Courier/HandOver"

# No progress for this long after the faults is a failure. The messages of a dead machine's transactions
# are removed within 10 s after their time-out.
STALLED = 60
# The longest time between two kills.
LONGEST_RUN = 0.6


class Proxy:
    """Forwards the streams of one direction, with faults while `faulty` is set."""

    def __init__(self, target, seed):
        self.target = target
        self.random = random.Random(seed)
        self.faulty = True
        self.counts = dict.fromkeys(("streams", "cut", "delayed", "repeated", "swapped"), 0)
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        handler = grpc.stream_stream_rpc_method_handler(self.hand_over)
        service = grpc.method_handlers_generic_handler("reveille.v1.Courier", {"HandOver": handler})
        self.server.add_generic_rpc_handlers((service,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def hand_over(self, requests, context):
        self.counts["streams"] += 1
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.target, options) as channel:
            cut = threading.Event()
            call = channel.stream_stream(PATH)(self.disturb(requests, cut))
            context.add_callback(call.cancel)
            try:
                for answer in self.disturb(call, cut):
                    yield answer
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            finally:
                call.cancel()
            if cut.is_set():
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the proxy")

    def disturb(self, frames, cut):
        """Passes frames on; some late, twice, or after the next one."""
        arrived = queue.Queue()

        def read():
            try:
                for frame in frames:
                    arrived.put((frame, None))
                arrived.put((None, None))
            except Exception as error:  # the stream has failed
                arrived.put((None, error))

        threading.Thread(target=read, daemon=True).start()
        held = None
        while not cut.is_set():
            try:
                frame, error = arrived.get(timeout=0.05)
            except queue.Empty:
                if held is not None:
                    yield held
                    held = None
                continue
            if frame is None:
                if held is not None:
                    yield held
                if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
                    raise error
                return
            chance = self.random.random() if self.faulty else 1
            if chance < 0.01:
                self.counts["cut"] += 1
                cut.set()
                return
            if chance < 0.03 and held is None:
                self.counts["swapped"] += 1
                held = frame
                continue
            if chance < 0.08:
                self.counts["delayed"] += 1
                time.sleep(self.random.random() * 0.1)
            yield frame
            if chance > 0.97 and chance < 1:
                self.counts["repeated"] += 1
                yield frame
            if held is not None:
                yield held
                held = None


class Machine:
    """One machine's directory and process."""

    def __init__(self, program, home, port, messages):
        self.program = program
        self.home = home
        self.port = port
        self.messages = messages
        self.peer = None
        self.process = None
        home.mkdir()

    def start(self):
        self.process = subprocess.Popen(
            [self.program, self.home, f"127.0.0.1:{self.port}", f"127.0.0.1:{self.peer}", str(self.messages)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=dict(os.environ, RUST_LOG="error"),
        )

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.stdin.close()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def rows(self, sql):
        connection = sqlite3.connect(self.home / "queues.db", timeout=20)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def numbers(self, sql):
        return [row[0] for row in self.rows(sql)]


def kill_machines(machines, kills, rng):
    """Kills and restarts. A machine sends and receives some tens of milliseconds after its start."""
    for _ in range(kills):
        machine = rng.choice(machines)
        time.sleep(rng.random() * LONGEST_RUN)
        expect(machine.process.poll() is None, "a machine has ended by itself")
        machine.kill()
        machine.start()


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def received(machines):
    return sum(machine.rows("SELECT count(*) FROM received_orders")[0][0] for machine in machines)


def settle(machines):
    """Waits until each machine has received all messages of the other one."""
    expected = sum(machine.messages for machine in machines)
    last, since = -1, time.monotonic()
    while True:
        count = received(machines)
        if count >= expected:
            return
        if count != last:
            last, since = count, time.monotonic()
        expect(time.monotonic() - since < STALLED, f"stalled: {count} of {expected} received")
        time.sleep(0.1)


def check(sender, receiver):
    sent = sender.numbers("SELECT number FROM sent_orders ORDER BY number")
    received = receiver.numbers("SELECT number FROM received_orders ORDER BY place")
    expect(sent == list(range(1, sender.messages + 1)), "the ledger of the sender has gaps")
    missing = set(sent) - set(received)
    expect(not missing, f"lost: {sorted(missing)[:10]}")
    expect(len(set(received)) == len(received), "doubled messages")
    expect(received == sorted(received), "messages out of order")
    for machine in (sender, receiver):
        expect(machine.rows("PRAGMA integrity_check") == [("ok",)], "the file is damaged")
        for table in ("inbound", "dead_letters", "messages"):
            left = machine.rows(f"SELECT count(*) FROM {table}")[0][0]
            expect(left == 0, f"{left} rows left in {table}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("example")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    home = Path(tempfile.mkdtemp(prefix="courier-kills-"))
    machines, proxies = [], []
    failed = True
    try:
        # As many as are sent in the time of the kills.
        messages = 500 + 20 * arguments.kills
        for name in ("a", "b"):
            machines.append(Machine(arguments.example, home / name, free_port(), messages))
        for index, machine in enumerate(machines):
            other = machines[1 - index]
            proxies.append(Proxy(f"127.0.0.1:{other.port}", arguments.seed + index))
            machine.peer = proxies[index].port
        for machine in machines:
            machine.start()
        kill_machines(machines, arguments.kills, rng)
        expect(received(machines) < sum(machine.messages for machine in machines), "the last kills met no work")
        for proxy in proxies:
            proxy.faulty = False
        settle(machines)
        for machine in machines:
            expect(machine.stop() == 0, "a machine did not end in order")
        check(*machines)
        check(*reversed(machines))
        for kind in proxies[0].counts:
            count = sum(proxy.counts[kind] for proxy in proxies)
            print(f"{kind}: {count}", end="  ")
            # One frame in a hundred is cut: about four in 40 kills. The other kinds are frequent.
            enough = 50 if kind == "cut" else 25
            expect(count > 0 or arguments.kills < enough, f"the proxies counted none as {kind}")
        print(f"\n{arguments.kills} kills")
        failed = False
    except AssertionError as error:
        print(f"seed {arguments.seed}: {error}; the files are in {home}")
    finally:
        for machine in machines:
            if machine.process and machine.process.poll() is None:
                machine.kill()
        for proxy in proxies:
            proxy.server.stop(None)
        if not failed:
            shutil.rmtree(home, ignore_errors=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
