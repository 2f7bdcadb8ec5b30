"""Prints the end of `tests/run`: the seconds of each step, the slowest tests, and how many passed.

    report.py RESULTS JUNIT DOCTESTS SECONDS

RESULTS has a line for each step and each script, JUNIT is written by nextest, DOCTESTS is the output of
`cargo test --doc`; the last two are absent where their step did not run. SECONDS is the time of all.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as xml

SLOWEST = 20


def main() -> int:
    results, junit, doctests = map(pathlib.Path, sys.argv[1:4])
    rows = [line.split("\t") for line in results.read_text().splitlines()]
    steps = [row for row in rows if row[2] == "step"]
    scripts = [row for row in rows if row[2] == "script"]
    passed = sum(result == "ok" for _, result, *_ in scripts)
    failed = len(scripts) - passed
    tests = []
    for case in xml.parse(junit).iter("testcase") if junit.exists() else []:
        is_failed = case.find("failure") is not None or case.find("error") is not None
        passed, failed = passed + (not is_failed), failed + is_failed
        name = f"{case.get('classname')} {case.get('name')}"
        tests.append((float(case.get("time")), name, " FAILED" if is_failed else ""))
    for good, bad in re.findall(r"(\d+) passed; (\d+) failed", doctests.read_text() if doctests.exists() else ""):
        passed, failed = passed + int(good), failed + int(bad)
    if not failed:
        failed = sum(result != "ok" for _, result, *_ in steps)
    print(f"\nseconds of the {min(SLOWEST, len(tests))} slowest tests of {len(tests)}:")
    for seconds, name, result in sorted(tests, reverse=True)[:SLOWEST]:
        print(f"{seconds:7.1f} {name}{result}")
    print("\nseconds of each step:")
    for seconds, result, _, name in steps + scripts:
        print(f"{seconds:>7} {name}" + (" FAILED" if result != "ok" else ""))
    print(f"{sys.argv[4]:>7} in all\n{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
