"""Health and reflection, as probes and tools ask for them."""

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from common import PATIENCE, connect, refused

import grpc

client = connect()

health = health_pb2_grpc.HealthStub(client.channel)
answer = health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
assert answer.status == health_pb2.HealthCheckResponse.SERVING, answer
refused(
    "a service by its name",
    lambda: health.Check(health_pb2.HealthCheckRequest(service="reveille.v1.Relay"), timeout=PATIENCE),
    grpc.StatusCode.NOT_FOUND,
)

reflection = ProtoReflectionDescriptorDatabase(client.channel)
services = set(reflection.get_services())
assert {"reveille.v1.Relay", "reveille.v1.Flags", "reveille.v1.Admin", "grpc.health.v1.Health"} <= services, services
file = reflection.FindFileContainingSymbol("reveille.v1.Relay")
assert file.package == "reveille.v1", file

# The newer name of the same service.
probe = client.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
answers = probe(iter([b"\x3a\x00"]), timeout=PATIENCE)
assert [b"reveille.v1.Relay" in answer for answer in answers] == [True]
