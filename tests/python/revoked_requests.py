"""Streams of requests whose token is revoked end: NotifyStream with OK, HandOver with UNAUTHENTICATED. Each
stream of reflection ends by itself, with OK.

    revoked_requests.py ADDRESS TOKEN_THAT_IS_REVOKED TOKEN_THAT_STAYS

The test revokes the first token once both notifications have arrived.
"""

import queue
import sys
import time

import grpc

from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from reveille.v1 import courier_pb2, courier_pb2_grpc, relay_pb2, relay_pb2_grpc

address, revoked, stays = sys.argv[1:4]
channel = grpc.insecure_channel(address)
# A stream's caller is checked every 15 s, give or take a tenth; the rest is for a busy machine.
ENDS_WITHIN = 24
# Longer, so that a time-out differs from an end by the relay.
TIMEOUT = 60
EVENT = relay_pb2.WorkDetected(storage_account="acct", queue_name="orders")
NOTIFY = relay_pb2.NotifyRequest(events=[EVENT], publisher="python")


class Requests:
    """The requests of one stream, which stays open until `end`."""

    def __init__(self, *first):
        self.waiting = queue.Queue()
        for request in first:
            self.waiting.put(request)

    def send(self, request):
        self.waiting.put(request)

    def end(self):
        self.waiting.put(None)

    def __iter__(self):
        return iter(self.waiting.get, None)


def hello(sender):
    opening = courier_pb2.HandOverHello(version=1, sender=sender * 16, authority="python:1")
    return courier_pb2.HandOverRequest(number=1, hello=opening)


def opened(call, token, first):
    """Opens a stream, and returns it with its requests and its first answer."""
    requests = Requests(first)
    stream = call(iter(requests), metadata=[("authorization", f"Bearer {token}")], timeout=TIMEOUT)
    return stream, requests, next(stream)


def ended(stream):
    """Reads a stream to its end, and returns its status."""
    try:
        answers = list(stream)
        assert not answers, answers
    except grpc.RpcError:
        pass
    return stream.code(), stream.details()


hand_over = courier_pb2_grpc.CourierStub(channel).HandOver
courier, courier_requests, welcome = opened(hand_over, revoked, hello(b"r"))
assert welcome.HasField("welcome"), welcome
kept_courier, kept_courier_requests, _ = opened(hand_over, stays, hello(b"s"))
reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
SERVICES = reflection_pb2.ServerReflectionRequest(list_services="")
reflection, reflection_requests, services = opened(reflect, revoked, SERVICES)
assert services.list_services_response.service, services
publish = relay_pb2_grpc.RelayStub(channel).NotifyStream
kept, kept_requests, _ = opened(publish, stays, NOTIFY)
publisher, publisher_requests, answer = opened(publish, revoked, NOTIFY)
assert len(answer.results) == 1, answer
start = time.monotonic()

code, details = ended(publisher)
assert code == grpc.StatusCode.OK, (code, details)
code, details = ended(courier)
assert code == grpc.StatusCode.UNAUTHENTICATED, (code, details)
assert "no longer valid" in details, details
code, details = ended(reflection)
assert code == grpc.StatusCode.OK, (code, details)
took = time.monotonic() - start
assert took < ENDS_WITHIN, took

# The streams of the other token go on.
kept_requests.send(NOTIFY)
answer = next(kept)
assert len(answer.results) == 1, answer
assert kept_courier.is_active()
kept_requests.end()
assert ended(kept)[0] == grpc.StatusCode.OK, kept.code()
kept_courier_requests.end()
assert ended(kept_courier)[0] == grpc.StatusCode.OK, kept_courier.code()
for requests in (courier_requests, publisher_requests, reflection_requests):
    requests.end()
print("revoked")
