"""What the scripts share: the stubs, a channel, and a table of calls that must be refused."""

import atexit
import sys
import threading
from pathlib import Path

import grpc

from reveille.v1 import admin_pb2, admin_pb2_grpc, flags_pb2, flags_pb2_grpc, relay_pb2, relay_pb2_grpc

PATIENCE = 30


class Relay:
    """The relay's services over one channel, as any gRPC client sees them."""

    def __init__(self, address, ca=None, certificate=None, key=None):
        if ca is None:
            self.channel = grpc.insecure_channel(address)
        else:
            files = [Path(path).read_bytes() for path in (ca, key, certificate)]
            self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*files))
        # grpcio waits for a lock of a thread that is gone where a stream is still open at the end.
        atexit.register(self.channel.close)
        self.relay = relay_pb2_grpc.RelayStub(self.channel)
        self.flags = flags_pb2_grpc.FlagsStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)

    def notify(self, *queues, **fields):
        events = [relay_pb2.WorkDetected(storage_account="acct", queue_name=q, **fields) for q in queues]
        return self.relay.Notify(relay_pb2.NotifyRequest(events=events, publisher="python"), timeout=PATIENCE)

    def subscribe(self, *queues, listener_id="python-1", **fields):
        selectors = [relay_pb2.Selector(storage_account="acct", queue_name=q) for q in queues]
        request = relay_pb2.SubscribeRequest(listener_id=listener_id, selectors=selectors, **fields)
        return self.relay.Subscribe(request, timeout=PATIENCE)


def connect():
    """Connects to the relay of the arguments: its address, and the files of TLS if it has it."""
    return Relay(*sys.argv[1:])


def event(stream):
    """Returns the next message of a stream: its kind and its body."""
    message = next(stream)
    kind = message.WhichOneof("event")
    return kind, getattr(message, kind)


def work(stream):
    """Returns the entries of the next wake-up; heartbeats may come before it."""
    while True:
        kind, body = event(stream)
        if kind == "wake":
            return list(body.work)
        assert kind == "heartbeat", f"{kind}: {body}"


def refused(what, call, code, *words):
    """Checks that a call is refused with this status, and that its message holds these words."""
    try:
        answer = call()
        if hasattr(answer, "__next__"):
            answer = next(answer)
    except grpc.RpcError as error:
        assert error.code() == code, f"{what}: {error.code()} {error.details()}"
        for word in words:
            assert word in error.details(), f"{what}: no {word!r} in {error.details()!r}"
        return error
    raise AssertionError(f"{what}: was not refused but answered {answer}")


def refused_event(what, call, code, *words):
    """Checks that the only event of a request is refused with this status and these words."""
    answer = call()
    [result] = answer.results
    assert result.error.code == code.value[0], f"{what}: {answer}"
    for word in words:
        assert word in result.error.message, f"{what}: no {word!r} in {answer}"


def in_background(function, *arguments):
    """Runs a function in a thread; the returned call waits for its result."""
    outcome = {}

    def run():
        try:
            outcome["value"] = function(*arguments)
        except BaseException as error:  # handed to whoever waits
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait():
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it takes too long"
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]

    return wait
