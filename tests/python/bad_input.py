"""Every way to ask wrongly: which status, and that its message names field and rule."""

from google.protobuf import duration_pb2, timestamp_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common import PATIENCE, admin_pb2, connect, event, flags_pb2, refused, refused_event, relay_pb2, work

import grpc

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

client = connect()
health = health_pb2_grpc.HealthStub(client.channel)


def span(seconds, nanos=0):
    return duration_pb2.Duration(seconds=seconds, nanos=nanos)


def selector(queue="orders", account="acct"):
    return relay_pb2.Selector(storage_account=account, queue_name=queue)


def notify(*events, **fields):
    request = relay_pb2.NotifyRequest(events=events, **fields)
    return lambda: client.relay.Notify(request, timeout=PATIENCE)


def one(**fields):
    fields = {"storage_account": "acct", "queue_name": "orders", **fields}
    return notify(relay_pb2.WorkDetected(**fields))


def subscribe(**fields):
    fields = {"listener_id": "python-1", "selectors": [selector()], **fields}
    return lambda: client.relay.Subscribe(relay_pb2.SubscribeRequest(**fields), timeout=PATIENCE)


stream = client.subscribe("orders")
_, welcome = event(stream)
[entry] = work(stream)
assert entry.sequence == 0, entry
relay_id, _ = welcome.subscription_id.rsplit("/", 1)


def report(**fields):
    fields = {
        "subscription_id": welcome.subscription_id,
        "storage_account": "acct",
        "queue_name": "orders",
        **fields,
    }
    return lambda: client.relay.Report(relay_pb2.ReportRequest(**fields), timeout=PATIENCE)


def raw(method, body):
    call = client.channel.unary_unary(f"/reveille.v1.{method}")
    return lambda: call(body, timeout=PATIENCE)


def raw_notify(body):
    return lambda: relay_pb2.NotifyResponse.FromString(raw("Relay/Notify", body)())


def notify_stream(publisher):
    request = relay_pb2.NotifyRequest(events=[good], publisher=publisher)
    return lambda: client.relay.NotifyStream(iter([request]), timeout=PATIENCE)


def flag(method, request):
    return lambda: getattr(client.flags, method)(request, timeout=PATIENCE)


good = relay_pb2.WorkDetected(storage_account="acct", queue_name="orders")
# Events that are refused each by itself.
EVENTS = [
    ("no account", one(storage_account=""), "storage_account", "1 to 128"),
    ("no queue", one(queue_name=""), "queue_name", "1 to 128"),
    ("a long queue", one(queue_name="x" * 129), "queue_name", "1 to 128"),
    ("a slash", one(queue_name="a/b"), "queue_name"),
    ("a blank", one(queue_name="a b"), "queue_name"),
    ("a pattern", one(queue_name="ord*"), "queue_name"),
    ("dots", one(queue_name=".."), "queue_name"),
    ("another script", one(queue_name="\u00e4uftr\u00e4ge"), "queue_name"),
    ("a line break", one(queue_name="a\nb"), "queue_name"),
    ("a delay below zero", one(delay=span(-1)), "delay", "negative"),
    ("a delay a bit below zero", one(delay=span(0, -1)), "delay", "negative"),
    ("a delay of 15 days", one(delay=span(15 * 86400)), "delay", "14 days"),
    ("nanoseconds out of range", one(delay=span(0, 2_000_000_000)), "delay"),
    ("no point in time", one(published_at=timestamp_pb2.Timestamp(seconds=2**62)), "published_at"),
    ("a long traceparent", one(traceparent="x" * 129), "traceparent", "128"),
    ("text that is none", raw_notify(b"\x0a\x03\x0a\x01\xff"), "storage_account"),
]
TABLE = [
    # Notify
    ("no events", notify(), INVALID, "events", "1 to 1024"),
    ("1025 events", notify(*[good] * 1025), INVALID, "events", "1024"),
    ("a long publisher", notify(good, publisher="x" * 129), INVALID, "publisher", "128"),
    ("malformed bytes", raw("Relay/Notify", b"\xff\xff\xff"), INVALID, "malformed"),
    ("a mebibyte of events and more", notify(good, publisher="x" * (1024 * 1024)), EXHAUSTED, "1048576"),
    # Subscribe
    ("no listener id", subscribe(listener_id=""), INVALID, "listener_id"),
    ("a bad listener id", subscribe(listener_id="a/b"), INVALID, "listener_id"),
    ("no selectors", subscribe(selectors=[]), INVALID, "selectors"),
    ("a star in the middle", subscribe(selectors=[selector("or*rs")]), INVALID, "queue_name", "at its end"),
    ("two stars", subscribe(selectors=[selector("or**")]), INVALID, "queue_name", "at its end"),
    ("a star in the account", subscribe(selectors=[selector(account="a*t")]), INVALID, "storage_account"),
    ("a bad selector", subscribe(selectors=[selector("a/b")]), INVALID, "queue_name"),
    ("a bad group", subscribe(group="a/b"), INVALID, "group"),
    ("a visibility below zero", subscribe(visibility_timeout=span(-1)), INVALID, "visibility_timeout"),
    ("a visibility of 15 days", subscribe(visibility_timeout=span(15 * 86400)), INVALID, "visibility_timeout"),
    ("a heartbeat below zero", subscribe(heartbeat=span(-5)), INVALID, "heartbeat"),
    ("4097 selectors", subscribe(selectors=[selector(f"q{n}") for n in range(4097)]), EXHAUSTED, "selectors", "4096"),
    ("a mebibyte and more", subscribe(group="x" * (1024 * 1024)), EXHAUSTED, "1048576"),
    # Report
    ("no subscription", report(subscription_id=""), INVALID, "subscription_id"),
    ("an unknown subscription", report(subscription_id=f"{relay_id}/{0:032x}"), grpc.StatusCode.NOT_FOUND, "subscription_id"),
    ("another relay's", report(subscription_id=f"other/{0:032x}"), grpc.StatusCode.UNAVAILABLE, "another relay"),
    ("visible before now", report(visible_in=span(-1)), INVALID, "visible_in", "negative"),
    ("visible in 15 days", report(visible_in=span(15 * 86400)), INVALID, "visible_in", "14 days"),
    ("a queue not listened on", report(queue_name="invoices"), INVALID, "queue_name"),
    ("64 KiB and more", report(subscription_id="x" * (64 * 1024)), EXHAUSTED, "65536"),
    # Beyond the greatest request of a service: refused by its length, before it is read.
    ("two mebibytes of events", notify(good, publisher="x" * (2 * 1024 * 1024)), EXHAUSTED, "limit", "1048576"),
    ("a report of two mebibytes", report(subscription_id="x" * (2 * 1024 * 1024)), EXHAUSTED, "limit", "1048576"),
    ("a subscription of two mebibytes", subscribe(group="x" * (2 * 1024 * 1024)), EXHAUSTED, "1048576"),
    ("a reason of a mebibyte", flag("Unleash", flags_pb2.UnleashRequest(flag="go", reason="x" * (1024 * 1024))), EXHAUSTED, "65536"),
    ("a page token of a mebibyte", lambda: client.admin.ListListeners(admin_pb2.ListListenersRequest(page_token="x" * (1024 * 1024)), timeout=PATIENCE), EXHAUSTED, "65536"),
    ("a health check of a mebibyte", lambda: health.Check(health_pb2.HealthCheckRequest(service="x" * (1024 * 1024)), timeout=PATIENCE), EXHAUSTED, "limit", "18432"),
    # On a stream
    ("a mebibyte and more on a stream", notify_stream("x" * (1024 * 1024)), EXHAUSTED, "1048576"),
    ("two mebibytes on a stream", notify_stream("x" * (2 * 1024 * 1024)), EXHAUSTED, "limit", "1048576"),
    # Admin
    ("a bad page token", lambda: client.admin.ListListeners(admin_pb2.ListListenersRequest(page_token="?"), timeout=PATIENCE), INVALID, "page_token"),
    # Flags
    ("no flag", flag("Unleash", flags_pb2.UnleashRequest()), INVALID, "flag"),
    ("a flag that climbs", flag("Unleash", flags_pb2.UnleashRequest(flag="a/../b")), INVALID, "flag"),
    ("a flag of dots", flag("GetFlag", flags_pb2.GetFlagRequest(flag="..")), INVALID, "flag"),
    ("a ttl below zero", flag("Unleash", flags_pb2.UnleashRequest(flag="go", ttl=span(-1))), INVALID, "ttl"),
    ("a ttl beyond ten years", flag("Unleash", flags_pb2.UnleashRequest(flag="go", ttl=span(3651 * 86400))), INVALID, "ttl"),
    ("a long reason", flag("Unleash", flags_pb2.UnleashRequest(flag="go", reason="x" * 1025)), INVALID, "reason"),
    ("a long name", flag("Unleash", flags_pb2.UnleashRequest(flag="go", set_by="x" * 129)), INVALID, "set_by"),
    ("a watch of no flag", flag("WatchFlag", flags_pb2.WatchFlagRequest(listener_id="a")), INVALID, "flag"),
    ("a watch of nobody", flag("WatchFlag", flags_pb2.WatchFlagRequest(flag="go")), INVALID, "listener_id"),
    ("an ack of nobody", flag("AckFlag", flags_pb2.AckFlagRequest(flag="go", generation=1)), INVALID, "listener_id"),
]
for what, call, code, *words in TABLE:
    refused(what, call, code, *words)
for what, call, *words in EVENTS:
    refused_event(what, call, INVALID, *words)

# Nothing of all this was applied.
[result] = client.notify("orders").results
assert result.sequence == 1, result
# A bad event takes none of the others with it; the texts of many have a limit.
answer = notify(good, *[relay_pb2.WorkDetected(queue_name="q")] * 1022, good)()
assert [len(answer.results), answer.results[0].sequence, answer.results[-1].sequence] == [1024, 2, 3], answer
errors = [result.error for result in answer.results[1:-1]]
assert all(error.code == INVALID.value[0] for error in errors), answer
assert "storage_account" in errors[0].message and not errors[-1].message, answer
queues = client.admin.ListQueues(admin_pb2.ListQueuesRequest(), timeout=PATIENCE).queues
assert [q.queue_name for q in queues] == ["orders"], queues
state = client.flags.GetFlag(flags_pb2.GetFlagRequest(flag="go"), timeout=PATIENCE).flag
assert not state.set, state
