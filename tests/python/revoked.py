"""Streams whose token expires end with Goodbye REVOKED, then OK.

    revoked.py ADDRESS TOKEN_THAT_EXPIRES_SOON
"""

import sys

import grpc

from common import PATIENCE
from reveille.v1 import flags_pb2, flags_pb2_grpc, relay_pb2, relay_pb2_grpc

address, token = sys.argv[1:3]
channel = grpc.insecure_channel(address)
metadata = [("authorization", f"Bearer {token}")]
selectors = [relay_pb2.Selector(storage_account="acct", queue_name="orders")]
request = relay_pb2.SubscribeRequest(listener_id="python-1", selectors=selectors)
subscribed = relay_pb2_grpc.RelayStub(channel).Subscribe(request, metadata=metadata, timeout=PATIENCE)
request = flags_pb2.WatchFlagRequest(flag="go-live", listener_id="python-1")
watched = flags_pb2_grpc.FlagsStub(channel).WatchFlag(request, metadata=metadata, timeout=PATIENCE)
for stream in (subscribed, watched):
    last = None
    for last in stream:
        pass
    assert last.WhichOneof("event") == "goodbye", last
    assert last.goodbye.reason == relay_pb2.Goodbye.REVOKED, last
    assert stream.code() == grpc.StatusCode.OK, stream.code()
print("revoked")
