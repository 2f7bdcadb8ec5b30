"""Clears up after `tests/run`, however it ends.

    clear_up.py DIRECTORY         now
    clear_up.py DIRECTORY PID     once that process is gone, even killed

Ends the processes in whose environment the directory is named, as it is for all that the tests start,
and removes the directory.
"""

import os
import pathlib
import shutil
import signal
import sys
import time


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def started_by_the_tests(directory: str) -> list[int]:
    found = []
    # Elsewhere than on Linux there is no such folder, and nothing is found.
    for environment in pathlib.Path("/proc").glob("[0-9]*/environ"):
        process = int(environment.parent.name)
        try:
            if process != os.getpid() and directory.encode() in environment.read_bytes():
                found.append(process)
        except OSError:
            continue  # Gone, or another user's.
    return found


def kill_all(directory: str, spared: frozenset[int] = frozenset()) -> list[int]:
    """Kills what was started by the tests; returns which processes those were."""
    left = [process for process in started_by_the_tests(directory) if process not in spared]
    for process in left:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left


def clear_up(directory: str, spared: frozenset[int]) -> None:
    for _ in range(50):
        left = kill_all(directory, spared)
        shutil.rmtree(directory, ignore_errors=True)
        if not left and not os.path.exists(directory):
            return
        time.sleep(0.1)


def main() -> None:
    directory = sys.argv[1]
    if len(sys.argv) == 2:
        clear_up(directory, frozenset({os.getppid()}))
        return
    # Out of the reach of what ends the whole group.
    os.setsid()
    while is_alive(int(sys.argv[2])):
        time.sleep(0.5)
    clear_up(directory, frozenset())


if __name__ == "__main__":
    main()
