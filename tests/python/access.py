"""Every call of every service, for each kind of caller: the table that a new call must join.

    access.py ADDRESS OWNER_TOKEN OTHER_TOKEN NOBODY_TOKEN

The owner may do everything. The other may do everything to queues `other/*` and flags `other*`, and
nothing to the relay. Nobody is known, and no rule names it.
"""

import sys

import grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from common import PATIENCE
from externalscaler import externalscaler_pb2
from reveille.v1 import admin_pb2, courier_pb2, flags_pb2, flags_pb2_grpc, relay_pb2, relay_pb2_grpc

address, owner, other, nobody = sys.argv[1:5]
channel = grpc.insecure_channel(address)

queue = {"storage_account": "acct", "queue_name": "orders"}
event = relay_pb2.WorkDetected(**queue)
selector = relay_pb2.Selector(**queue)
pattern = relay_pb2.Selector(storage_account="other*", queue_name="*")
flag = {"flag": "go-live"}
scaled = externalscaler_pb2.ScaledObjectRef(scalerMetadata={"queues": "acct/orders"})

# For each call: what a caller without the right gets, and requests about acct/orders and go-live.
DRAIN = "/reveille.v1.Admin/Drain"
DENIED, FILTERED, ANYONE = "denied", "filtered", "anyone"
CALLS = {
    "/reveille.v1.Relay/Notify": (DENIED, [relay_pb2.NotifyRequest(events=[event], publisher="p")]),
    "/reveille.v1.Relay/NotifyStream": (DENIED, [relay_pb2.NotifyRequest(events=[event], publisher="p")]),
    "/reveille.v1.Relay/Subscribe": (
        DENIED,
        [
            relay_pb2.SubscribeRequest(listener_id="l", selectors=[selector]),
            # Wider than the pattern of the rule.
            relay_pb2.SubscribeRequest(listener_id="l", selectors=[pattern]),
        ],
    ),
    "/reveille.v1.Relay/Report": (DENIED, [relay_pb2.ReportRequest(subscription_id="relay/0", **queue)]),
    "/reveille.v1.Flags/Unleash": (DENIED, [flags_pb2.UnleashRequest(**flag)]),
    "/reveille.v1.Flags/Leash": (DENIED, [flags_pb2.LeashRequest(**flag)]),
    "/reveille.v1.Flags/GetFlag": (DENIED, [flags_pb2.GetFlagRequest(**flag), flags_pb2.GetFlagRequest(flag="absent")]),
    "/reveille.v1.Flags/WatchFlag": (DENIED, [flags_pb2.WatchFlagRequest(listener_id="l", **flag)]),
    "/reveille.v1.Flags/AckFlag": (DENIED, [flags_pb2.AckFlagRequest(listener_id="l", generation=1, **flag)]),
    "/reveille.v1.Flags/ListFlags": (FILTERED, [flags_pb2.ListFlagsRequest()]),
    "/reveille.v1.Flags/ListFlagWatchers": (FILTERED, [flags_pb2.ListFlagWatchersRequest()]),
    "/reveille.v1.Admin/ListListeners": (FILTERED, [admin_pb2.ListListenersRequest()]),
    "/reveille.v1.Admin/ListQueues": (FILTERED, [admin_pb2.ListQueuesRequest()]),
    "/reveille.v1.Admin/ListRelays": (DENIED, [admin_pb2.ListRelaysRequest()]),
    "/reveille.v1.Admin/WatchStats": (DENIED, [admin_pb2.WatchStatsRequest()]),
    "/reveille.v1.Admin/GetHistory": (DENIED, [admin_pb2.GetHistoryRequest()]),
    "/reveille.v1.Admin/Explain": (DENIED, [admin_pb2.ExplainRequest(**queue)]),
    "/reveille.v1.Admin/OpenConsole": (FILTERED, [admin_pb2.OpenConsoleRequest()]),
    "/reveille.v1.Courier/HandOver": (
        DENIED,
        [courier_pb2.HandOverRequest(number=1, hello=courier_pb2.HandOverHello(version=1, sender=b"s" * 16, authority="a:1"))],
    ),
    "/externalscaler.ExternalScaler/IsActive": (DENIED, [scaled]),
    "/externalscaler.ExternalScaler/StreamIsActive": (DENIED, [scaled]),
    "/externalscaler.ExternalScaler/GetMetricSpec": (DENIED, [scaled]),
    "/externalscaler.ExternalScaler/GetMetrics": (DENIED, [externalscaler_pb2.GetMetricsRequest(scaledObjectRef=scaled)]),
    "/grpc.health.v1.Health/Check": (ANYONE, [b""]),
    "/grpc.health.v1.Health/Watch": (ANYONE, [b""]),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": (FILTERED, [b"\x3a\x00"]),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (FILTERED, [b"\x3a\x00"]),
    DRAIN: (DENIED, [admin_pb2.DrainRequest()]),
}


def call(path, request, token):
    """Returns the status of a call, and the bytes of its first answer."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    data = request if isinstance(request, bytes) else request.SerializeToString()
    # To the server all forms of a call look the same until the second message.
    answers = channel.stream_stream(path)(iter([data]), metadata=metadata, timeout=PATIENCE)
    try:
        answer = next(answers, b"")
        answers.cancel()
        return grpc.StatusCode.OK, answer
    except grpc.RpcError as error:
        return error.code(), error.details().encode()


def expect(condition, *what):
    if not condition:
        raise AssertionError(what)


class Authorized(grpc.StreamStreamClientInterceptor):
    """Adds the owner's token to the calls of the reflection client."""

    def intercept_stream_stream(self, continuation, details, requests):
        metadata = [*(details.metadata or []), ("authorization", f"Bearer {owner}")]
        return continuation(details._replace(metadata=metadata), requests)


# `_replace` of a tuple: grpcio's details are one in Python.
import collections  # noqa: E402

Details = collections.namedtuple("Details", ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression"))


class Named(Authorized):
    def intercept_stream_stream(self, continuation, details, requests):
        fields = {name: getattr(details, name, None) for name in Details._fields}
        return super().intercept_stream_stream(continuation, Details(**fields), requests)


reflection = ProtoReflectionDescriptorDatabase(grpc.intercept_channel(channel, Named()))
paths = set()
for service in reflection.get_services():
    file = reflection.FindFileContainingSymbol(service)
    for described in file.service:
        if f"{file.package}.{described.name}" == service:
            paths.update(f"/{service}/{method.name}" for method in described.method)
# The relay of this test hosts no queues, and reflection names the service all the same.
missing = paths - set(CALLS)
expect(not missing, "calls without a row here", missing)
# The older name of the reflection service, by which this client asks, does not list the newer one.
gone = set(CALLS) - paths - {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"}
expect(not gone, "rows without a call", gone)

code, _ = call("/reveille.v1.Relay/Notify", CALLS["/reveille.v1.Relay/Notify"][1][0], owner)
expect(code == grpc.StatusCode.OK, code)
code, _ = call("/reveille.v1.Flags/Unleash", flags_pb2.UnleashRequest(**flag), owner)
expect(code == grpc.StatusCode.OK, code)

# Lists show the open streams of the owner to the owner, and to no other caller.
metadata = [("authorization", f"Bearer {owner}")]
subscribe = relay_pb2.SubscribeRequest(listener_id="owners-listener", selectors=[selector])
subscribed = relay_pb2_grpc.RelayStub(channel).Subscribe(subscribe, metadata=metadata, timeout=PATIENCE)
subscription = next(subscribed).welcome.subscription_id
expect(subscription, "a subscription")
watch = flags_pb2.WatchFlagRequest(listener_id="owners-watcher", **flag)
watched = flags_pb2_grpc.FlagsStub(channel).WatchFlag(watch, metadata=metadata, timeout=PATIENCE)
next(watched)
LISTS = {
    "/reveille.v1.Admin/ListListeners": (b"owners-listener", b"orders"),
    "/reveille.v1.Admin/ListQueues": (b"orders",),
    "/reveille.v1.Flags/ListFlagWatchers": (b"owners-watcher", b"go-live"),
    "/reveille.v1.Flags/ListFlags": (b"go-live",),
}
for path, names in LISTS.items():
    for token in (owner, other, nobody):
        code, details = call(path, CALLS[path][1][0], token)
        expect(code == grpc.StatusCode.OK, path, code, details)
        for name in names:
            expect((name in details) == (token == owner), path, name, details)


def of_queue(name):
    return {"storage_account": "acct", "queue_name": name}


def notify(name):
    return relay_pb2.NotifyRequest(events=[relay_pb2.WorkDetected(**of_queue(name))], publisher="p")


def report_to(subscription):
    return lambda name: relay_pb2.ReportRequest(subscription_id=subscription, **of_queue(name))


# Denials of what is there and of what is not there are the same but for the name.
QUEUES = {"orders", "absent"}
FLAGS = {"go-live", "absent"}
ALIKE = [
    ("/reveille.v1.Relay/Notify", QUEUES, [notify]),
    ("/reveille.v1.Relay/NotifyStream", QUEUES, [notify]),
    (
        "/reveille.v1.Relay/Subscribe",
        QUEUES,
        [lambda name: relay_pb2.SubscribeRequest(listener_id="l", selectors=[relay_pb2.Selector(**of_queue(name))])],
    ),
    ("/reveille.v1.Relay/Report", QUEUES, [report_to(subscription), report_to("relay/999999")]),
    (
        "/externalscaler.ExternalScaler/IsActive",
        QUEUES,
        [lambda name: externalscaler_pb2.ScaledObjectRef(scalerMetadata={"queues": f"acct/{name}"})],
    ),
    ("/reveille.v1.Admin/Explain", QUEUES, [lambda name: admin_pb2.ExplainRequest(**of_queue(name))]),
    ("/reveille.v1.Flags/Unleash", FLAGS, [lambda name: flags_pb2.UnleashRequest(flag=name)]),
    ("/reveille.v1.Flags/Leash", FLAGS, [lambda name: flags_pb2.LeashRequest(flag=name)]),
    ("/reveille.v1.Flags/GetFlag", FLAGS, [lambda name: flags_pb2.GetFlagRequest(flag=name)]),
    (
        "/reveille.v1.Flags/WatchFlag",
        FLAGS,
        [
            # The second id is that of an open watch.
            lambda name: flags_pb2.WatchFlagRequest(flag=name, listener_id="l"),
            lambda name: flags_pb2.WatchFlagRequest(flag=name, listener_id="owners-watcher"),
        ],
    ),
    (
        "/reveille.v1.Flags/AckFlag",
        FLAGS,
        [
            lambda name: flags_pb2.AckFlagRequest(flag=name, listener_id="l", generation=1),
            lambda name: flags_pb2.AckFlagRequest(flag=name, listener_id="owners-watcher", generation=1),
        ],
    ),
]


def denial(path, request, token):
    """Returns the status of a denied call, and its text; of a publisher's call those of its event."""
    code, details = call(path, request, token)
    if "/Notify" in path and code == grpc.StatusCode.OK:
        [result] = relay_pb2.NotifyResponse.FromString(details).results
        return result.error.code, result.error.message
    return code.value[0], details.decode()


for path, names, makers in ALIKE:
    for token in (other, nobody):
        answers = set()
        for make in makers:
            for name in names:
                code, text = denial(path, make(name), token)
                answers.add((code, text.replace(name, "NAME")))
        expect(len(answers) == 1, path, answers)
        expect(answers.pop()[0] == grpc.StatusCode.PERMISSION_DENIED.value[0], path)
subscribed.cancel()
watched.cancel()

for path, (kind, requests) in CALLS.items():
    for request in requests:
        code, details = call(path, request, None)
        if kind == ANYONE:
            # A relay has no health to watch: clients then take it for a healthy one.
            known = grpc.StatusCode.UNIMPLEMENTED if path.endswith("Health/Watch") else grpc.StatusCode.OK
            expect(code == known, path, code)
            continue
        expect(code == grpc.StatusCode.UNAUTHENTICATED, path, code, details)
        # The owner's call ends the relay's streams, so it is the last one.
        code, details = (None, b"") if path == DRAIN else call(path, request, owner)
        refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        expect(code not in refused, path, code, details)
        for token in (other, nobody):
            code, details = call(path, request, token)
            if kind == DENIED and "/Notify" in path and code == grpc.StatusCode.OK:
                # It may notify some queues: each event has its own result.
                [result] = relay_pb2.NotifyResponse.FromString(details).results
                expect(result.error.code == grpc.StatusCode.PERMISSION_DENIED.value[0], path, result)
            elif kind == DENIED:
                expect(code == grpc.StatusCode.PERMISSION_DENIED, path, code, details)
            else:
                expect(code == grpc.StatusCode.OK, path, code, details)
                expect(b"orders" not in details and b"go-live" not in details, path, details)

# What the other may do, it may do.
mine = {"storage_account": "other", "queue_name": "jobs"}
for path, request in {
    "/reveille.v1.Relay/Notify": relay_pb2.NotifyRequest(events=[relay_pb2.WorkDetected(**mine)], publisher="p"),
    "/reveille.v1.Relay/Subscribe": relay_pb2.SubscribeRequest(
        listener_id="l", selectors=[relay_pb2.Selector(storage_account="other", queue_name="*")]
    ),
    "/reveille.v1.Flags/Unleash": flags_pb2.UnleashRequest(flag="other-flag"),
    "/reveille.v1.Flags/GetFlag": flags_pb2.GetFlagRequest(flag="other-flag"),
}.items():
    code, details = call(path, request, other)
    expect(code == grpc.StatusCode.OK, path, code, details)
code, details = call("/reveille.v1.Admin/ListQueues", admin_pb2.ListQueuesRequest(), other)
names = [entry.queue_name for entry in admin_pb2.ListQueuesResponse.FromString(details).queues]
expect(names == ["jobs"], names)
code, details = call("/reveille.v1.Flags/ListFlags", flags_pb2.ListFlagsRequest(), other)
names = [entry.name for entry in flags_pb2.ListFlagsResponse.FromString(details).flags]
expect(names == ["other-flag"], names)
print(f"{len(CALLS)} calls")
code, details = call(DRAIN, admin_pb2.DrainRequest(), owner)
expect(code == grpc.StatusCode.OK, DRAIN, code, details)
