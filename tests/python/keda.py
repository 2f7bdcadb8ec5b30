"""Scales workloads from 0 to N and back as KEDA does, with real listeners as pods.

    keda.py REVEILLE SCENARIO

The client behaves as the source of KEDA does (pkg/scalers/external_scaler.go, pkg/scaling): a stream for
each object with its ladder of retries, polls that read the metric and then the activity, the cool-down
before a scale to zero, the autoscaler's ratio with its tolerance, and a `true` that is dropped while the
object's metric is not in its status yet.
"""

import atexit
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import grpc
from externalscaler import externalscaler_pb2 as pb
from externalscaler import externalscaler_pb2_grpc as pb_grpc
from google.protobuf import duration_pb2

from common import Relay, refused, relay_pb2

sys.path.append(str(Path(__file__).parent.parent))
from chaos_support.programs import free_port  # noqa: E402

REVEILLE, SCENARIO = sys.argv[1:3]
FULL = bool(os.environ.get("REVEILLE_FULL"))
HOME = Path(tempfile.mkdtemp(prefix="keda-"))
PATIENCE = 60
MOST = 4


def until(what, condition, patience=PATIENCE):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"in {patience} s not: {what}"
        time.sleep(0.02)


class Server:
    """A relay as a process, on ports that it keeps."""

    def __init__(self, *options, name="relay"):
        self.address, self.admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.options, self.log, self.process = options, f"{name}.log", None
        self.start()

    def start(self):
        store = f"sqlite:{HOME}/flags.db"
        ports = ["--listen", self.address, "--admin-listen", self.admin]
        command = [REVEILLE, "serve", *ports, "--store", store, "--drain", "1s", *self.options]
        self.process = spawn(command, self.log)
        until("the relay is ready", self.is_ready)

    def is_ready(self):
        assert self.process.poll() is None, (HOME / self.log).read_text()
        try:
            return urllib.request.urlopen(f"http://{self.admin}/readyz", timeout=5).status == 200
        except OSError:
            return False

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(PATIENCE)

    def restart(self, how):
        self.end(how)
        self.start()


CHILDREN = []


def spawn(command, log):
    variables = {"PATH": os.environ["PATH"], "HOME": str(HOME), "TMPDIR": str(HOME)}
    with open(HOME / log, "ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)
    CHILDREN.append(process)
    return process


@atexit.register
def end_children():
    for process in CHILDREN:
        if process.poll() is None:
            process.kill()


class Workload:
    """Pods: listeners of one queue, each of which writes what it handles into a file."""

    def __init__(self, server, name, seconds=0):
        self.server, self.name, self.seconds = server, name, seconds
        self.url = f"sqlite:{HOME}/{name}.db?queue={name}"
        self.done, self.pods, self.started = HOME / f"{name}.done", [], 0
        run("queue", "create", self.url)

    def scale(self, replicas):
        while len(self.pods) < replicas:
            self.started += 1
            command = [REVEILLE, "listen", self.url, "--relay", f"http://{self.server.address}"]
            command += ["--grace", "5s", "--visibility-timeout", "5s"]
            command += ["--", "sh", "-c", f"printf '%s\\n' \"$(cat)\" >> {self.done}; sleep {self.seconds}"]
            self.pods.append(spawn(command, f"{self.name}.log"))
        leaving = self.pods[replicas:]
        del self.pods[replicas:]
        for pod in leaving:
            pod.terminate()
        for pod in leaving:
            pod.wait(PATIENCE)

    def put(self, *bodies, notify=False):
        option = ["--notify", "--relay", f"http://{self.server.address}"] if notify else []
        run("queue", "put", *option, self.url, *bodies)

    def handled(self):
        return set(self.done.read_text().split()) if self.done.exists() else set()


def run(*arguments):
    command = [REVEILLE, *arguments]
    variables = {"PATH": os.environ["PATH"], "HOME": str(HOME)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done


class Object:
    """A ScaledObject with one trigger of the type external-push."""

    def __init__(self, server, workload, cooldown=2.0, poll=1.0, drop_for=0.0, most=MOST, **keys):
        self.workload, self.cooldown, self.poll, self.most = workload, cooldown, poll, most
        metadata = {"scalerAddress": server.address, "queues": f"local/{workload.name}", **keys}
        self.reference = pb.ScaledObjectRef(name=workload.name, namespace="shop", scalerMetadata=metadata)
        # One pool of connections for all objects of an address.
        self.stub = pb_grpc.ExternalScalerStub(channel(server.address))
        self.dropped, self.drop_until = 0, time.monotonic() + drop_for
        self.lock, self.stopping = threading.Lock(), threading.Event()
        self.pushed, self.asked, self.last_active = [], [], -math.inf
        self.recommendations = []
        # The channel of the source is unbuffered: a reader that is busy holds the stream up.
        self.active, self.errors, self.call = queue.Queue(maxsize=1), [], None
        for work in (self.stream, self.consume, self.control):
            threading.Thread(target=self.guarded, args=(work,), daemon=True).start()

    def guarded(self, work):
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
            raise

    def stream(self):
        retry = 2.0
        while not self.stopping.is_set():
            try:
                self.call = self.stub.StreamIsActive(self.reference)
                for response in self.call:
                    assert response.result, "`false` scaled to zero at once before KEDA 2.18"
                    self.pushed.append(time.monotonic())
                    self.active.put(response.result)
                retry = 2.0
            except grpc.RpcError:
                pass
            self.stopping.wait(retry)
            retry = min(retry * 2, 60.0)

    def consume(self):
        while not self.stopping.is_set():
            try:
                self.active.get(timeout=0.1)
            except queue.Empty:
                continue
            if time.monotonic() < self.drop_until:
                self.dropped += 1
            else:
                self.request_scale(True, "push")

    def control(self):
        """The polls of KEDA, and the autoscaler's rounds between them."""
        polled = time.monotonic()
        while not self.stopping.wait(0.25):
            try:
                self.autoscale()
                if time.monotonic() - polled >= self.poll:
                    polled = time.monotonic()
                    self.metric()
                    self.request_scale(self.stub.IsActive(self.reference, timeout=10).result, "poll")
            except grpc.RpcError:
                # As with fallbacks off: an error changes nothing.
                continue

    def metric(self):
        spec = self.stub.GetMetricSpec(self.reference, timeout=10).metricSpecs[0]
        request = pb.GetMetricsRequest(scaledObjectRef=self.reference, metricName=spec.metricName)
        value = self.stub.GetMetrics(request, timeout=10).metricValues[0]
        number = value.metricValueFloat if value.metricValueFloat > 0 else float(value.metricValue)
        return number / (spec.targetSizeFloat if spec.targetSizeFloat > 0 else spec.targetSize)

    def request_scale(self, active, why):
        with self.lock:
            replicas, now = len(self.workload.pods), time.monotonic()
            if active:
                self.last_active = now
            if active and replicas == 0:
                self.asked.append((now, why))
                self.workload.scale(1)
            elif not active and replicas > 0 and now - self.last_active >= self.cooldown:
                self.workload.scale(0)

    def autoscale(self):
        """An average value for each pod, a tolerance of a tenth, and a window before it scales down."""
        if not self.workload.pods:
            return
        needed = self.metric()
        with self.lock:
            replicas, now = len(self.workload.pods), time.monotonic()
            if replicas == 0:
                return
            desired = replicas if abs(needed / replicas - 1) <= 0.1 else math.ceil(needed)
            desired = max(1, min(self.most, desired))
            self.recommendations = [one for one in self.recommendations if now - one[0] < 1.0]
            self.recommendations.append((now, desired))
            self.workload.scale(max(desired, min(replicas, max(one[1] for one in self.recommendations))))

    def stop(self):
        self.stopping.set()
        if self.call:
            self.call.cancel()
        with self.lock:
            self.workload.scale(0)
        assert not self.errors, self.errors


CHANNELS = {}


def channel(address):
    return CHANNELS.setdefault(address, grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]))


def reference(queues, **keys):
    return pb.ScaledObjectRef(name="one", namespace="shop", scalerMetadata={"queues": queues, **keys})


def spread(queue):
    """The seconds after a start from which on a doubt about the queue counts: FNV-1a."""
    number = 0xCBF29CE484222325
    for byte in queue.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return number % 1000 * 0.06


def drain(server, names):
    """Lets the relay know that a listener has found these queues empty."""
    client = Relay(server.address)
    selectors = [relay_pb2.Selector(storage_account="local", queue_name=name) for name in names]
    stream = client.relay.Subscribe(relay_pb2.SubscribeRequest(listener_id="drains", selectors=selectors))
    welcome = next(stream).welcome
    left = set(names)
    while left:
        message = next(stream)
        for entry in message.wake.work:
            report = relay_pb2.ReportRequest(subscription_id=welcome.subscription_id)
            report.storage_account, report.queue_name = "local", entry.queue_name
            report.state, report.sequence = relay_pb2.REPORT_STATE_DRAINED, entry.sequence
            client.relay.Report(report, timeout=PATIENCE)
            left.discard(entry.queue_name)
    stream.cancel()
    client.channel.close()


def from_zero_to_many_and_back():
    server = Server()
    workload = Workload(server, "orders", seconds=0.3)
    drain(server, ["orders"])
    scaled = Object(server, workload, targetPerReplica="5")
    time.sleep(1.5)
    assert not scaled.pushed and not workload.pods, "an idle workload was started"
    bodies = [f"m{number}" for number in range(40)]
    workload.put(*bodies)
    client, began = Relay(server.address), time.monotonic()
    event = relay_pb2.WorkDetected(storage_account="local", queue_name="orders", messages=40)
    client.relay.Notify(relay_pb2.NotifyRequest(events=[event]), timeout=PATIENCE)
    until("a pod is asked for", lambda: scaled.asked)
    asked, why = scaled.asked[0]
    print(f"the first pod was asked for {(asked - began) * 1000:.0f} ms after the notification")
    assert why == "push" and asked - began < 0.9, (asked - began, why)
    until("all pods run", lambda: len(workload.pods) == MOST)
    until("all is handled", lambda: workload.handled() == set(bodies))
    until("no pod runs", lambda: not workload.pods)
    assert len(scaled.asked) == 1, scaled.asked
    scaled.stop()
    server.end(signal.SIGTERM)


def each_true_is_dropped_for_a_while():
    server = Server()
    workload = Workload(server, "late")
    drain(server, ["late"])
    drop_for = 20.0 if FULL else 4.0
    # No poll in this test: only the stream can ask for a pod.
    scaled = Object(server, workload, poll=600.0, drop_for=drop_for)
    workload.put("m", notify=True)
    until("a pod is asked for", lambda: scaled.asked)
    assert scaled.dropped >= 1 and scaled.asked[0][0] >= scaled.drop_until, scaled.dropped
    until("it is handled", lambda: workload.handled() == {"m"})
    scaled.stop()
    server.end(signal.SIGTERM)


def idle_objects_ask_for_nothing():
    server, count = Server(), 60 if FULL else 8
    workloads = [Workload(server, f"idle-{number}") for number in range(count)]
    drain(server, [workload.name for workload in workloads])
    objects = [Object(server, workload, cooldown=4.0) for workload in workloads]
    for workload in workloads:
        workload.put("m", notify=True)
    until("all is handled", lambda: all(workload.handled() == {"m"} for workload in workloads))
    until("each has a listener, which has found its queue empty", lambda: not any(map(is_active, objects)))
    pushed = [len(scaled.pushed) for scaled in objects]
    until("all are at zero", lambda: not any(workload.pods for workload in workloads))
    time.sleep(7)
    assert [len(scaled.pushed) for scaled in objects] == pushed, "an idle object asked for a pod"
    assert [workload.started for workload in workloads] == [1] * count
    for scaled in objects:
        scaled.stop()
    server.end(signal.SIGTERM)


def is_active(scaled):
    return scaled.stub.IsActive(scaled.reference, timeout=10).result


def the_relay_is_killed_under_load():
    server = Server()
    # The doubt after a crash counts soon for this name.
    name = next(f"load-{number}" for number in range(1000) if spread(f"local/load-{number}") < 1)
    workload = Workload(server, name)
    scaled, bodies = Object(server, workload, cooldown=1.0), []
    for number in range(30):
        if number in (10, 20):
            server.end(signal.SIGKILL)
        bodies.append(f"m{number}")
        # While the relay is away, the message is put and nobody is notified.
        is_away = server.process.poll() is not None
        workload.put(bodies[-1], notify=not is_away)
        if number in (12, 22):
            server.start()
    until("all is handled", lambda: workload.handled() == set(bodies))
    until("no pod runs", lambda: not workload.pods)
    scaled.stop()
    server.end(signal.SIGTERM)


def after_a_restart_each_workload_looks():
    server, names = Server(), [f"rest-{number}" for number in range(100)]
    drain(server, names)
    stub = pb_grpc.ExternalScalerStub(channel(server.address))
    references = [reference(f"local/{name}") for name in names]
    actives = lambda: sum(stub.IsActive(one, timeout=10).result for one in references)
    assert actives() == 0
    server.restart(signal.SIGTERM)
    stub = pb_grpc.ExternalScalerStub(grpc.insecure_channel(server.address))
    until("doubts count", lambda: actives() > 0)
    assert actives() < 50, "the doubts of a start are not spread"
    drain(server, names)
    assert actives() == 0
    server.end(signal.SIGTERM)


def collect(stream, trues):
    try:
        trues.extend(response.result for response in stream)
    except grpc.RpcError:
        pass


def a_delayed_notification_starts_a_pod_when_it_is_due():
    server = Server()
    drain(server, ["timed"])
    stub = pb_grpc.ExternalScalerStub(channel(server.address))
    one, trues = reference("local/timed"), []
    threading.Thread(target=collect, args=(stub.StreamIsActive(one), trues), daemon=True).start()
    event = relay_pb2.WorkDetected(storage_account="local", queue_name="timed")
    event.delay.CopyFrom(duration_pb2.Duration(seconds=2))
    began = time.monotonic()
    Relay(server.address).relay.Notify(relay_pb2.NotifyRequest(events=[event]), timeout=PATIENCE)
    assert not stub.IsActive(one, timeout=10).result
    until("the stream says so", lambda: trues)
    assert time.monotonic() - began >= 1.9
    assert stub.IsActive(one, timeout=10).result
    server.end(signal.SIGTERM)


def a_listener_comes_and_goes():
    server = Server()
    drain(server, ["served"])
    stub, trues = pb_grpc.ExternalScalerStub(channel(server.address)), []
    client = Relay(server.address)
    listener = client.relay.Subscribe(
        relay_pb2.SubscribeRequest(
            listener_id="silent",
            selectors=[relay_pb2.Selector(storage_account="local", queue_name="served")],
        )
    )
    next(listener)
    one = reference("local/served")
    threading.Thread(target=collect, args=(stub.StreamIsActive(one), trues), daemon=True).start()
    time.sleep(1.5)
    event = relay_pb2.WorkDetected(storage_account="local", queue_name="served")
    notify = lambda: client.relay.Notify(relay_pb2.NotifyRequest(events=[event]), timeout=PATIENCE)
    notify()
    until("a notification counts although there is a listener", lambda: len(trues) == 1)
    time.sleep(1.2)
    notify()
    time.sleep(1.5)
    assert len(trues) == 1, "not more often than every 5 s"
    time.sleep(4)
    notify()
    until("a queue with traffic is in use", lambda: len(trues) == 2)
    time.sleep(7)
    assert len(trues) == 2, "no listener is missing, and nothing was notified"
    listener.cancel()
    until("the listener has gone, and its queue has messages", lambda: len(trues) == 3)
    server.end(signal.SIGTERM)


def bad_keys_and_answers():
    server = Server()
    stub = pb_grpc.ExternalScalerStub(channel(server.address))
    bad = grpc.StatusCode.INVALID_ARGUMENT
    cases = [
        ({}, "queues: is missing"),
        ({"queues": "local/a", "targetPerReplicas": "5"}, "targetPerReplicas: is unknown"),
        ({"queues": "local/a*"}, "is a pattern"),
        ({"queues": "local/a", "activation": "few"}, "activation: must be a whole number"),
    ]
    for keys, words in cases:
        one = pb.ScaledObjectRef(name="one", namespace="shop", scalerMetadata=keys)
        request = pb.GetMetricsRequest(scaledObjectRef=one, metricName="m")
        for call in (stub.IsActive, stub.StreamIsActive, stub.GetMetricSpec):
            refused(words, lambda: call(one, timeout=10), bad, "scalerMetadata", words)
        refused(words, lambda: stub.GetMetrics(request, timeout=10), bad, "scalerMetadata", words)
    spec = stub.GetMetricSpec(reference("local/a", targetPerReplica="2.5")).metricSpecs[0]
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("reveille-local-a-" + spec.metricName[-6:], 3, 2.5), spec
    server.end(signal.SIGTERM)


def tokens_are_those_of_the_keys():
    (HOME / "auth.toml").write_text(
        'tokens = "tokens.toml"\n\n[[rule]]\nprincipals = ["keda"]\nactions = ["subscribe"]\n'
        'queues = ["local/mine"]\n'
    )
    token = run("auth", "token", "new", "keda", "--auth", f"{HOME}/auth.toml").stdout.split()[-1]
    server = Server("--auth", f"{HOME}/auth.toml")
    stub = pb_grpc.ExternalScalerStub(channel(server.address))
    unknown, denied = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
    for call in (stub.IsActive, stub.StreamIsActive, stub.GetMetricSpec):
        refused("no token", lambda: call(reference("local/mine"), timeout=10), unknown)
        refused("wrong", lambda: call(reference("local/mine", token="wrong"), timeout=10), unknown)
        other = reference("local/other", tokenFromEnv=token)
        refused("another queue", lambda: call(other, timeout=10), denied, "local/other")
    mine = reference("local/mine", tokenFromEnv=token)
    assert stub.GetMetricSpec(mine, timeout=10).metricSpecs
    header = [("authorization", f"Bearer {token}")]
    assert stub.GetMetricSpec(reference("local/mine"), metadata=header, timeout=10).metricSpecs
    server.end(signal.SIGTERM)


def a_client_certificate_names_the_caller():
    (HOME / "auth.toml").write_text(
        '[[rule]]\nprincipals = ["keda"]\nactions = ["subscribe"]\nqueues = ["local/mine"]\n\n'
        '[certificates]\n"keda.example.com" = "keda"\n'
    )
    ca, *pairs = os.environ["CERTIFICATES"].split(":")
    (certificate, key), *callers = [(f"{path}.pem", f"{path}.key") for path in pairs]
    options = ["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", ca]
    server = Server("--auth", f"{HOME}/auth.toml", *options)
    read = lambda path: Path(path).read_bytes()
    keda, stranger = (
        pb_grpc.ExternalScalerStub(
            grpc.secure_channel(
                server.address, grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
            )
        )
        for certificate, key in callers
    )
    # `enableTLS` and `unsafeSsl` are keys of KEDA.
    mine, other = (reference(f"local/{name}", enableTLS="true") for name in ("mine", "other"))
    assert keda.GetMetricSpec(mine, timeout=10).metricSpecs
    keda.IsActive(mine, timeout=10)
    unknown, denied = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
    for call in ("IsActive", "StreamIsActive", "GetMetricSpec"):
        refused("another queue", lambda: getattr(keda, call)(other, timeout=10), denied, "local/other")
        refused("a stranger", lambda: getattr(stranger, call)(mine, timeout=10), unknown)
    server.end(signal.SIGTERM)


def the_relays_of_a_cluster_scale_as_one():
    broker = free_port()
    nats = str(Path(sys.executable).parent / "nats-server")
    spawn([nats, "-a", "127.0.0.1", "-p", str(broker)], "nats.log")
    cluster = ["--cluster", f"nats://127.0.0.1:{broker}", "--cluster-name", "keda", "--relay-id"]
    asked, other = (Server(*cluster, name, name=name) for name in ("asked", "other"))
    # KEDA reaches one relay; the publisher and the pods use the other one.
    workload = Workload(other, "shared", seconds=0.2)
    drain(other, ["shared"])
    scaled = Object(asked, workload, targetPerReplica="5")
    until("it is known to be empty", lambda: not is_active(scaled) and not workload.pods)
    before = len(scaled.asked)
    bodies = [f"m{number}" for number in range(20)]
    workload.put(*bodies, notify=True)
    until("a pod is asked for", lambda: len(scaled.asked) > before)
    until("all is handled", lambda: workload.handled() == set(bodies))
    until("no pod runs", lambda: not workload.pods)
    # The relay that KEDA reaches starts again: it knows nothing, and the next message needs a pod.
    asked.restart(signal.SIGKILL)
    before = len(scaled.asked)
    workload.put("after", notify=True)
    until("the message is handled", lambda: "after" in workload.handled())
    assert len(scaled.asked) > before
    until("no pod runs again", lambda: not workload.pods)
    scaled.stop()
    for server in (asked, other):
        server.end(signal.SIGTERM)


def text(**more):
    return {"type": "string", **more}


def fields(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


# The parts of the custom resources keda.sh/v1alpha1 that the examples use.
TRIGGER = fields(
    ["type", "metadata"],
    type=text(enum=["external-push", "azure-queue"]),
    name=text(),
    metadata={"type": "object", "additionalProperties": text()},
    authenticationRef=fields(["name"], name=text(), kind=text()),
    useCachedMetrics={"type": "boolean"},
    metricType=text(enum=["AverageValue", "Value"]),
)
SCHEMAS = {
    "ScaledObject": fields(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=fields(
            ["name"], name=text(), kind=text(), apiVersion=text(), envSourceContainerName=text()
        ),
        triggers={"type": "array", "minItems": 1, "items": TRIGGER},
        **{
            key: {"type": "integer", "minimum": 0}
            for key in ("minReplicaCount", "maxReplicaCount", "cooldownPeriod", "pollingInterval")
        },
    ),
    "TriggerAuthentication": fields(
        podIdentity=fields(["provider"], provider=text()),
        secretTargetRef={
            "type": "array",
            "items": fields(
                ["parameter", "name", "key"],
                parameter=text(enum=["caCert", "tlsClientCert", "tlsClientKey"]),
                name=text(),
                key=text(),
            ),
        },
    ),
}


def the_manifests_are_what_keda_and_the_relay_take():
    import jsonschema
    import yaml

    server, pushed = Server(), 0
    stub = pb_grpc.ExternalScalerStub(channel(server.address))
    documents = [one for file in sorted(Path("deploy/keda").glob("*.yaml")) for one in yaml.safe_load_all(file.open())]
    names = {one["metadata"]["name"] for one in documents if one["kind"] == "TriggerAuthentication"}
    for document in documents:
        if document["kind"] == "Deployment":
            continue
        assert document["apiVersion"] == "keda.sh/v1alpha1", document
        jsonschema.validate(document["spec"], SCHEMAS[document["kind"]])
        for trigger in document["spec"].get("triggers", []):
            assert trigger.get("authenticationRef", {"name": min(names)})["name"] in names, trigger
            if trigger["type"] == "external-push":
                one = pb.ScaledObjectRef(name="one", namespace="shop", scalerMetadata=trigger["metadata"])
                assert stub.GetMetricSpec(one, timeout=10).metricSpecs
                pushed += 1
    assert pushed == 2
    server.end(signal.SIGTERM)


globals()[SCENARIO]()
