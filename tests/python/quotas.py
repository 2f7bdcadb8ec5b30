"""The quotas of a principal, as a stock client sees them.

    quotas.py ADDRESS OWNER_TOKEN OTHER_TOKEN

The owner's limits are: 2 connections, 3 streams, 4 selectors, 5 subscribed queues, and 10 notifications a
second with a burst of 1,024. The other has the defaults.
"""

import sys

import grpc

from common import PATIENCE
from reveille.v1 import relay_pb2, relay_pb2_grpc

address, owner, other = sys.argv[1:4]


def expect(condition, *what):
    if not condition:
        raise AssertionError(what)


class Caller:
    """A client on a connection of its own."""

    def __init__(self, token, account="acct"):
        # Otherwise all channels of the process share a connection.
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.relay = relay_pb2_grpc.RelayStub(self.channel)
        self.metadata = [("authorization", f"Bearer {token}")]
        self.account = account

    def notify(self, count=1, queue="orders"):
        event = relay_pb2.WorkDetected(storage_account=self.account, queue_name=queue)
        request = relay_pb2.NotifyRequest(events=[event] * count, publisher="p")
        return self.relay.Notify(request, metadata=self.metadata, timeout=PATIENCE)

    def subscribe(self, *queues):
        """Opens a subscription, and waits for its Welcome."""
        selectors = [relay_pb2.Selector(storage_account=self.account, queue_name=queue) for queue in queues]
        request = relay_pb2.SubscribeRequest(listener_id="l", selectors=selectors)
        stream = self.relay.Subscribe(request, metadata=self.metadata, timeout=PATIENCE)
        expect(next(stream).WhichOneof("event") == "welcome", "no Welcome")
        return stream


def refused(call, name):
    """Checks that a call is refused at the limit of this name, with the time of the next try."""
    try:
        call()
    except grpc.RpcError as error:
        expect(error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, name, error)
        expect(error.details().startswith(f"{name}: the limit of "), name, error.details())
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        expect(b"google.rpc.RetryInfo" in details, name, "no RetryInfo")
        return
    raise AssertionError(f"{name}: not refused")


one, two, third = Caller(owner), Caller(owner), Caller(owner)
free = Caller(other, "other")

# The rate: the burst, then nothing for a while. The other's is not used.
one.notify(1024)
refused(lambda: one.notify(1000), "notify_rate")
refused(lambda: two.notify(1000), "notify_rate")
free.notify(1024)


def requests():
    event = relay_pb2.WorkDetected(storage_account="acct", queue_name="orders")
    for _ in range(2):
        yield relay_pb2.NotifyRequest(events=[event] * 1000, publisher="p")


# A publisher's stream goes on after a refused request; it says when to send the request again.
answers = list(one.relay.NotifyStream(requests(), metadata=one.metadata, timeout=PATIENCE))
expect(len(answers) == 2, answers)
for answer in answers:
    expect(answer.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], answer)
    expect(answer.error.message.startswith("notify_rate: "), answer)
    expect(answer.error.retry_after.ToTimedelta().total_seconds() > 1, answer)

# Connections.
refused(lambda: third.notify(), "connections")
third.channel.close()

# Streams, over all connections; a closed one is free again.
streams = [one.subscribe("a"), two.subscribe("b"), two.subscribe("c")]
refused(lambda: one.subscribe("d"), "streams")
free.subscribe("d").cancel()
streams.pop().cancel()


def again():
    """Opens a stream as soon as the relay knows that another one has ended."""
    import time

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return two.subscribe("c")
        except grpc.RpcError as error:
            expect(time.monotonic() < deadline, error)
            time.sleep(0.05)


streams.append(again())
for stream in streams:
    stream.cancel()

# Selectors of a subscription. Rust tests have the subscribed queues.
refused(lambda: one.subscribe("a", "b", "c", "d", "e"), "selectors")
print("quotas.py: ok")
