"""Watch a flag, unleash it, acknowledge, leash it, list flags, with stock gRPC."""

from google.protobuf import duration_pb2

from common import PATIENCE, connect, event, flags_pb2, in_background

client = connect()


def watch(listener_id, **fields):
    request = flags_pb2.WatchFlagRequest(flag="go", listener_id=listener_id, **fields)
    return client.flags.WatchFlag(request, timeout=PATIENCE)


def state(stream):
    while True:
        kind, body = event(stream)
        if kind == "flag":
            return body


def get():
    return client.flags.GetFlag(flags_pb2.GetFlagRequest(flag="go"), timeout=PATIENCE).flag


# One that was never set is no error, and a watcher is told so first.
assert not get().set
parked = watch("python-1", heartbeat=duration_pb2.Duration(seconds=1))
assert not state(parked).set
kind, _ = event(parked)
assert kind == "heartbeat", kind

# An unleash is durable, then everybody is told.
waiting = in_background(state, parked)
request = flags_pb2.UnleashRequest(flag="go", set_by="ops", reason="the batch is in")
answer = client.flags.Unleash(request, timeout=PATIENCE)
assert answer.flag.set and answer.flag.generation > 0 and answer.watchers == 1, answer
seen = waiting()
assert seen.set and seen.generation == answer.flag.generation, seen
assert (seen.set_by, seen.reason) == ("ops", "the batch is in"), seen

# Who comes later reads it.
late = watch("python-2")
assert state(late).generation == answer.flag.generation

# Acknowledgements are counted by distinct listener.
acks = watch("python-admin", acks=True)
assert state(acks).set
for listener in ("python-1", "python-2", "python-2"):
    client.flags.AckFlag(
        flags_pb2.AckFlagRequest(flag="go", generation=answer.flag.generation, listener_id=listener), timeout=PATIENCE
    )
while True:
    kind, body = event(acks)
    if kind == "acks" and body.acknowledged == 2:
        assert body.generation == answer.flag.generation and body.watchers == 2, body
        break

# Set again: the same generation, another reason. Cleared and set: another generation.
again = client.flags.Unleash(flags_pb2.UnleashRequest(flag="go", reason="still"), timeout=PATIENCE).flag
assert again.generation == answer.flag.generation and again.reason == "still", again
client.flags.Leash(flags_pb2.LeashRequest(flag="go"), timeout=PATIENCE)
assert not get().set
client.flags.Leash(flags_pb2.LeashRequest(flag="go"), timeout=PATIENCE)
other = client.flags.Unleash(flags_pb2.UnleashRequest(flag="go"), timeout=PATIENCE).flag
assert other.set and other.generation != answer.flag.generation, other

# Lists hold what is set, by name, in pages.
for name in ("go-1", "go-2", "stop"):
    client.flags.Unleash(flags_pb2.UnleashRequest(flag=name), timeout=PATIENCE)
names, page_token = [], ""
while True:
    request = flags_pb2.ListFlagsRequest(prefix="go", page_size=2, page_token=page_token)
    page = client.flags.ListFlags(request, timeout=PATIENCE)
    names += [flag.name for flag in page.flags]
    page_token = page.next_page_token
    if not page_token:
        break
assert names == ["go", "go-1", "go-2"], names
