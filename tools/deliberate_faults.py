"""Put faults into the product on purpose, one at a time, and see whether the tests of its own room catch each.

    python -m tools.deliberate_faults [WORD…]     those whose name has one of the words; without any, all

The faults are in tests/data/deliberate_faults.yaml: the file, a text that stands in it once, what takes its place, and
the tests that must fail then. Works on a copy of the checkout. Exit code: 0 each was caught, 1 some were not, 2 a fault
fits the code no longer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
FAULTS = ROOT / "tests" / "data" / "deliberate_faults.yaml"
SECONDS = 600
"""For the tests of one fault."""


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
    """The test that fails while the fault is there; empty when none does."""
    path = root / "keystone_action" / fault["file"]
    text = path.read_text("utf-8")
    path.write_text(text.replace(fault["find"], fault["put"]), "utf-8")
    try:
        return first_failure(fault["tests"], root)
    finally:
        path.write_text(text, "utf-8")


def first_failure(tests: list[str], root: Path) -> str:
    """The first of these tests that fails; empty when none does."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", *(f"tests/{test}" for test in tests)],
            cwd=root, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"  # a test that never ends is no pass
    named = re.search(rb"^(?:FAILED|ERROR) tests/([^\s\[]+)", done.stdout, re.MULTILINE)
    if done.returncode == 1:
        return named[1].decode() if named else "a test without a name"
    return ""


def main(words: list[str]) -> int:
    faults = load(words)
    with tempfile.TemporaryDirectory(prefix="deliberate-") as name:
        Path(name).chmod(0o755)
        root = copied(Path(name))
        stale = {key: why for key, fault in faults.items() if (why := problem(fault, root))}
        tests = sorted({test for key, fault in faults.items() if key not in stale for test in fault["tests"]})
        if test := first_failure(tests, root):
            print(f"a test fails without any fault: mend it first: {test}")
            return 2
        for key, why in stale.items():
            print(f"stale    {key}: {why}", flush=True)
        survived = []
        for number, (key, fault) in enumerate(faults.items(), 1):
            if key in stale:
                continue
            test = caught_by(fault, root)
            survived += [] if test else [key]
            said = f"caught   {key} by {test}" if test else f"SURVIVED {key}"
            print(f"{said} [{number}/{len(faults)}]", flush=True)
    print(f"{len(faults) - len(stale) - len(survived)} of {len(faults)} faults were caught")
    return 2 if stale else int(bool(survived))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
