"""Notify, subscribe, resume by a number, patterns, reports and lists, with stock gRPC."""

from google.protobuf import duration_pb2

from common import PATIENCE, admin_pb2, connect, event, refused, relay_pb2, work

import grpc

client = connect()

# The first message is a Welcome; without a resume number each queue gets a CATCH_UP.
stream = client.subscribe("orders", heartbeat=duration_pb2.Duration(seconds=1))
kind, welcome = event(stream)
assert kind == "welcome" and len(welcome.epoch) == 32 and welcome.version, welcome
assert welcome.heartbeat.seconds == 1, welcome
[entry] = work(stream)
assert entry.reason == relay_pb2.WAKE_REASON_CATCH_UP, entry

# A notification wakes it; the answer tells sequence and listeners.
answer = client.notify("orders", payload_size=512, messages=2)
[result] = answer.results
assert (result.sequence, result.listeners) == (1, 1), answer
[entry] = work(stream)
assert entry.reason == relay_pb2.WAKE_REASON_NOTIFIED, entry
assert (entry.sequence, entry.notifications, entry.payload_size, entry.messages) == (1, 1, 512, 2), entry
assert entry.publisher == "python", entry

# A silent stream gets a heartbeat with a resume number.
kind, heartbeat = event(stream)
assert kind == "heartbeat" and not heartbeat.degraded and 0 < len(heartbeat.resume) <= 64, heartbeat

# A subscriber that comes back with the number is told whether the queue has changed.
stream.cancel()
stream = client.subscribe("orders", heartbeat=duration_pb2.Duration(seconds=1), resume=heartbeat.resume)
event(stream)
kind, heartbeat = event(stream)
assert kind == "heartbeat", heartbeat
stream.cancel()
client.notify("orders", "orders", "orders", payload_size=10)
stream = client.subscribe("orders", resume=heartbeat.resume)
event(stream)
[entry] = work(stream)
assert (entry.reason, entry.sequence) == (relay_pb2.WAKE_REASON_CATCH_UP, 4), entry

# The relay ignores a number that it did not write.
for nonsense in (b"nonsense", b"x" * 32, b"x" * 64, b"x" * 500):
    other = client.subscribe("orders", resume=nonsense)
    event(other)
    [entry] = work(other)
    assert entry.reason == relay_pb2.WAKE_REASON_CATCH_UP, entry
    other.cancel()

# A pattern hears of queues that come to life later.
pattern = client.subscribe("inv*", listener_id="python-2")
event(pattern)
[entry] = work(pattern)
assert (entry.queue_name, entry.reason) == ("inv*", relay_pb2.WAKE_REASON_CATCH_UP), entry
client.notify("invoices-7")
[entry] = work(pattern)
assert (entry.queue_name, entry.notifications) == ("invoices-7", 1), entry

# NotifyStream answers in order, and goes on after a request and an event that it refuses.
good = relay_pb2.WorkDetected(storage_account="acct", queue_name="streamed")
bad = relay_pb2.WorkDetected(storage_account="acct", queue_name="no/name")
requests = [relay_pb2.NotifyRequest(events=events) for events in ([good], [], [bad, good])]
answers = list(client.relay.NotifyStream(iter(requests), timeout=PATIENCE))
assert answers[0].results[0].sequence == 1 and answers[2].results[1].sequence == 2, answers
assert answers[1].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0], answers
assert "events" in answers[1].error.message and not answers[1].results, answers
refusal = answers[2].results[0].error
assert refusal.code == grpc.StatusCode.INVALID_ARGUMENT.value[0] and "queue_name" in refusal.message, answers

# Reports: BUSY, then DRAINED; one that frees messages wakes the queue again.
pattern.cancel()
reporter = client.subscribe("reported", listener_id="python-3")
_, welcome = event(reporter)
work(reporter)
for number, state in enumerate((relay_pb2.REPORT_STATE_BUSY, relay_pb2.REPORT_STATE_DRAINED), 1):
    client.relay.Report(
        relay_pb2.ReportRequest(
            subscription_id=welcome.subscription_id,
            storage_account="acct",
            queue_name="reported",
            state=state,
            number=number,
            current_queue_depth=7,
            visible_in=duration_pb2.Duration() if number == 2 else None,
        ),
        timeout=PATIENCE,
    )
[entry] = work(reporter)
assert entry.reason == relay_pb2.WAKE_REASON_TIMED, entry

# Two streams may bear the same id; both are listed.
twin = client.subscribe("reported", listener_id="python-3")
event(twin)
listeners = client.admin.ListListeners(admin_pb2.ListListenersRequest(), timeout=PATIENCE).listeners
assert [l.listener_id for l in listeners].count("python-3") == 2, listeners
assert len({l.subscription_id for l in listeners}) == len(listeners), listeners

# Lists are paged, and every entry comes once.
names, page_token = [], ""
while True:
    page = client.admin.ListQueues(
        admin_pb2.ListQueuesRequest(page_size=1, page_token=page_token), timeout=PATIENCE
    )
    names += [q.queue_name for q in page.queues]
    page_token = page.next_page_token
    if not page_token:
        break
assert names == ["invoices-7", "orders", "reported", "streamed"], names
refused(
    "a page too large",
    lambda: client.admin.ListQueues(admin_pb2.ListQueuesRequest(page_size=1001), timeout=PATIENCE),
    grpc.StatusCode.INVALID_ARGUMENT,
    "page_size",
)
