"""Measures how long a newcomer and a contributor wait, in a fresh clone of the present commit.

Downloads of crates are not counted; what `tests/run` installs is. Takes up to an hour.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DEMO = ["cargo", "run", "--release", "--", "demo"]
MODULE = ["cargo", "test", "-p", "reveille", "--all-features", "--lib", "relay::server"]
# The work, and the seconds that it may take: the limit and the aim on two cores.
LIMITS = {
    "clean clone to the first line of the demo": (360, 240),
    "tests/run, empty target": (1200, 900),
    "tests/run, dependencies compiled": (900, 600),
    "a changed line in src/relay/server, then the tests of that module": (60, 30),
}


def run(clone: pathlib.Path, command: list[str]) -> float:
    """Runs a command; returns its seconds."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=clone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-20_000:]}\n`{' '.join(command)}` ended with {done.returncode}")
    return time.monotonic() - began


def demo(clone: pathlib.Path) -> float:
    began = time.monotonic()
    with subprocess.Popen(DEMO, cwd=clone, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True) as process:
        # Cargo writes its own lines there before.
        line = next((line for line in process.stderr if line.startswith(b"[")), b"")
        seconds = time.monotonic() - began
        os.killpg(process.pid, signal.SIGTERM)
    return seconds if line else sys.exit("the demo printed nothing")


def change(clone: pathlib.Path) -> float:
    # A contributor has run the tests of the module before.
    run(clone, MODULE)
    source = clone / "src/relay/server/http2/accept.rs"
    body = re.sub(r"(\n    [^\n]*fn [^;{]*\{\n)", r'\1        tracing::trace!("changed");\n', source.read_text(), count=1)
    assert body != source.read_text(), "no line was changed"
    source.write_text(body)
    return run(clone, MODULE)


def measure(clone: pathlib.Path):
    yield demo(clone)
    shutil.rmtree(clone / "target")
    yield run(clone, ["tests/run"])
    run(clone, ["cargo", "clean", "--quiet", "--workspace", "--profile", "dev"])
    yield run(clone, ["tests/run"])
    yield change(clone)


def main() -> None:
    os.environ.pop("CARGO_TARGET_DIR", None)
    with tempfile.TemporaryDirectory(prefix="reveille-times-") as home:
        clone = pathlib.Path(home) / "clone"
        subprocess.run(["git", "clone", "--quiet", ".", clone], check=True)
        run(clone, ["cargo", "fetch", "--quiet", "--locked"])
        print(f"seconds on {os.cpu_count()} cores (limit and aim on two):", flush=True)
        for (work, (limit, aim)), seconds in zip(LIMITS.items(), measure(clone)):
            print(f"{seconds:7.0f} {work} ({limit}, {aim})", flush=True)


if __name__ == "__main__":
    main()
