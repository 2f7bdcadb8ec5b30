"""Two relays of one cluster, with stock gRPC: publish at one, subscribe at the other, move between."""

import sys

from google.protobuf import duration_pb2

from common import PATIENCE, Relay, admin_pb2, event, relay_pb2, work

first, second = (Relay(address) for address in sys.argv[1:3])
NOTIFIED, CATCH_UP = relay_pb2.WAKE_REASON_NOTIFIED, relay_pb2.WAKE_REASON_CATCH_UP
SECOND = duration_pb2.Duration(seconds=1)

# A notification at the first relay wakes a stream at the second, with all of its sums.
stream = second.subscribe("orders", heartbeat=SECOND)
kind, welcome = event(stream)
assert kind == "welcome" and not welcome.degraded, welcome
[entry] = work(stream)
assert entry.reason == CATCH_UP, entry
first.notify("orders", payload_size=512, messages=2)
[entry] = work(stream)
assert entry.reason == NOTIFIED and entry.publisher == "python", entry
assert (entry.notifications, entry.payload_size, entry.messages) == (1, 512, 2), entry

# A stream of notifications is answered in order, and is told at the other relay.
event_of = relay_pb2.WorkDetected(storage_account="acct", queue_name="orders")
requests = [relay_pb2.NotifyRequest(events=[event_of])] * 20
answers = list(first.relay.NotifyStream(iter(requests), timeout=PATIENCE))
assert len(answers) == 20 and all(answer.results for answer in answers), answers
told = 0
while told < 20:
    [entry] = work(stream)
    assert entry.reason == NOTIFIED, entry
    told += entry.notifications
assert told == 20, told

# A pattern is told the name of a queue that was notified at the other relay.
pattern = second.subscribe("inv*", listener_id="python-2", heartbeat=SECOND)
event(pattern)
work(pattern)
first.notify("invoices-7")
[named] = work(pattern)
assert (named.queue_name, named.reason) == ("invoices-7", NOTIFIED), named

# A report reaches its stream through the other relay.
first.relay.Report(
    relay_pb2.ReportRequest(
        subscription_id=welcome.subscription_id,
        storage_account="acct",
        queue_name="orders",
        state=relay_pb2.REPORT_STATE_DRAINED,
        number=1,
    ),
    timeout=PATIENCE,
)

# A resume number of one relay is foreign to the other: the stream checks its queue, then it is told.
kind, heartbeat = event(stream)
assert kind == "heartbeat" and heartbeat.resume, heartbeat
stream.cancel()
stream = first.subscribe("orders", heartbeat=SECOND, resume=heartbeat.resume)
event(stream)
[entry] = work(stream)
assert entry.reason == CATCH_UP, entry
second.notify("orders", payload_size=7)
[entry] = work(stream)
assert (entry.reason, entry.notifications, entry.payload_size) == (NOTIFIED, 1, 7), entry

# Both relays list the queues of both.
for relay in (first, second):
    queues = relay.admin.ListQueues(admin_pb2.ListQueuesRequest(), timeout=PATIENCE).queues
    assert [queue.queue_name for queue in queues] == ["invoices-7", "orders"], queues
