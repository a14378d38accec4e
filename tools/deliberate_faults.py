"""Put faults into the product on purpose, one at a time, and see whether the tests of its own room catch each.

    python -m tools.deliberate_faults [WORD…]     those whose name has one of the words; without any, all

The faults are in tests/data/deliberate_faults.yaml: the file, a text that stands in it once, what takes its place, and
the tests that must fail then. Works on a copy of the checkout. Exit code: 0 each was caught, 1 some were not, 2 a fault
fits the code no longer, or pytest itself broke.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from keystone_action.files.removal import remove_tree

ROOT = Path(__file__).parent.parent
FAULTS = ROOT / "tests" / "data" / "deliberate_faults.yaml"
SECONDS = 600
"""For the tests of one fault."""


class Unclear(Exception):  # noqa: N818 - an outcome
    """pytest broke, so nothing is known about the fault; the message says how it ended."""


def load(words: list[str]) -> dict[str, dict[str, Any]]:
    """The faults by name."""
    faults = yaml.safe_load(FAULTS.read_text("utf-8"))
    return {name: one for name, one in faults.items() if not words or any(word in name for word in words)}


def copied(place: Path) -> Path:
    """What git has of the checkout, as it is on disk now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode().split("\0")  # fmt: skip
    for name in filter(None, listed):
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    return place


def problem(fault: dict[str, Any], root: Path) -> str:
    """Why this fault fits the code no longer; empty when it does."""
    path = root / "keystone_action" / fault["file"]
    found = path.read_text("utf-8").count(fault["find"]) if path.exists() else 0
    missing = [test for test in fault["tests"] if not (root / "tests" / test.partition("::")[0]).exists()]
    if found != 1:
        return f"{fault['file']} has the text {found} times, expected once"
    return f"there is no tests/{missing[0]}" if missing else ""


def caught_by(fault: dict[str, Any], root: Path) -> str:
    """The test that fails while the fault is there; empty when none does. Raises Unclear."""
    path = root / "keystone_action" / fault["file"]
    text = path.read_text("utf-8")
    path.write_text(text.replace(fault["find"], fault["put"]), "utf-8")
    try:
        return first_failure(fault["tests"], root)
    finally:
        path.write_text(text, "utf-8")


def first_failure(tests: list[str], root: Path) -> str:
    """The first of these tests that fails; empty when none does. Raises Unclear."""
    # Of its own: pytest fails at the end, with every test passed, on what a run that was killed left in the common one.
    temporary = root.parent / "pytest"
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-x", "-q", "-rfE", f"--basetemp={temporary}"),
                *(f"tests/{test}" for test in tests),
            ],
            cwd=root, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"  # a test that never ends is not a pass
    finally:
        remove_tree(temporary)
    named = re.search(rb"^(?:FAILED|ERROR) tests/([^\s\[]+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and named:
        return named[1].decode()
    if done.returncode != 0:
        end = "\n".join(done.stdout.decode(errors="replace").splitlines()[-5:])
        raise Unclear(f"pytest ended with {done.returncode}, and no test failed:\n{end}")
    return ""


def said_of(key: str, fault: dict[str, Any], root: Path) -> str:
    """A line about a fault whose first word is `caught`, `SURVIVED` or `UNCLEAR`."""
    try:
        test = caught_by(fault, root)
    except Unclear as error:
        return f"UNCLEAR  {key}: {error}"
    return f"caught   {key} by {test}" if test else f"SURVIVED {key}"


def main(words: list[str]) -> int:
    faults = load(words)
    if not faults:
        print(f"no fault has {' or '.join(words)} in its name; {FAULTS.relative_to(ROOT)} has the names")
        return 2
    with tempfile.TemporaryDirectory(prefix="deliberate-") as name:
        Path(name).chmod(0o755)
        root = copied(Path(name, "checkout"))
        stale = {key: why for key, fault in faults.items() if (why := problem(fault, root))}
        tests = sorted({test for key, fault in faults.items() if key not in stale for test in fault["tests"]})
        try:
            failed = first_failure(tests, root)
        except Unclear as error:
            failed = str(error)
        if failed:
            print(f"a test fails without any fault: mend it first: {failed}")
            return 2
        for key, why in stale.items():
            print(f"stale    {key}: {why}", flush=True)
        found: Counter[str] = Counter()
        for number, (key, fault) in enumerate(faults.items(), 1):
            if key not in stale:
                said = said_of(key, fault, root)
                found[said.split()[0]] += 1
                print(f"{said} [{number}/{len(faults)}]", flush=True)
    print(f"{found['caught']} of {len(faults)} faults were caught")
    return 2 if stale or found["UNCLEAR"] else int(bool(found["SURVIVED"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
