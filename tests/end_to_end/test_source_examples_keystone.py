"""The examples of 000_66edd30c29bbac31.txt, "Scoring", as they stand there, to a passing and a failing verdict: what
looks at files, runs commands and is added up. Services, scripts and judges: test_source_examples_services.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.source_examples import both_ways

NPM = json.dumps({"name": "x", "scripts": {"test": "node test.js"}})
"""The package.json of a project whose `npm test` decides."""
BREAKS_NPM = """
failing = "console.log('1 failing'); console.error('told'); process.exit(1)"
Path("test.js").write_text("process.exit(0)" if good else failing)
"""

ANATOMY = """
invariants:
  tests_pass:
    description: "All tests pass"
    weight: 1.0                 # relative importance in composite
    gate: true                   # hard fail if this fails
    check:
      type: command_exit
      command: "npm test"
"""
COMMAND_EXIT = """
invariants:
  tests_pass:
    description: "All tests pass"
    weight: 1.0
    gate: true
    check:
      type: command_exit
      command: "npm test"
      exit_code: 0              # optional; default 0
"""


@pytest.mark.parametrize("example", [ANATOMY, COMMAND_EXIT], ids=["anatomy", "command_exit"])
@pytest.mark.slow
def test_npm_test_is_a_gate(tmp_path: Path, example: str) -> None:
    """ "Stdout and stderr are captured and shown in the failure message.\""""
    found = both_ways(tmp_path, example, BREAKS_NPM, start={"package.json": NPM, "test.js": "process.exit(1)"})
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)
    message = found.check("tests_pass")[1]["message"]
    assert "1 failing" in message
    assert "told" in message


FILES = """
invariants:
  output_created:
    description: "Output file exists"
    check:
      type: file_exists
      path: "output.json"

  no_temp_files:
    description: "Temp file cleaned up"
    check:
      type: file_absent
      path: ".tmp/cache"
"""


def test_file_exists_and_file_absent(tmp_path: Path) -> None:
    agent = """
if good:
    Path("output.json").touch(), Path(".tmp/cache").unlink()
"""
    found = both_ways(tmp_path, FILES, agent, start={".tmp/cache": ""})
    assert found.statuses[1] == {"output_created": "fail", "no_temp_files": "fail"}


FILE_CONTENT = r"""
invariants:
  output_correct:
    description: "Output contains success marker"
    check:
      type: file_content
      path: "output.json"
      contains: '"status": "success"'      # substring match

  no_debug_logs:
    description: "No console.log left in source"
    check:
      type: file_content
      path: "src/main.ts"
      not_contains: "console.log"

  matches_pattern:
    description: "Email follows expected format"
    check:
      type: file_content
      path: "draft.txt"
      pattern: "^Subject: Renewal\\b"     # regex (matches anywhere unless ^/$)
"""
WRITES_CONTENT = """
Path("src").mkdir()
Path("output.json").write_text('{"status": "success"}' if good else '{"status":"success"}')
Path("src/main.ts").write_text("run();" if good else "run(); console.log(1);")
Path("draft.txt").write_text("Subject: Renewal of yours" if good else "Hello,\\nSubject: Renewal")
"""


def test_file_content(tmp_path: Path) -> None:
    found = both_ways(tmp_path, FILE_CONTENT, WRITES_CONTENT)
    assert set(found.statuses[1].values()) == {"fail"}


COMBINED = """
invariants:
  all:
    description: "You can combine them — all conditions must be true."
    check: {type: file_content, path: output.json, contains: success, not_contains: error, pattern: "st.tus"}
"""


@pytest.mark.parametrize("bad", ["status: failure", "status: success, error", "success"])
def test_conditions_of_file_content_combined(tmp_path: Path, bad: str) -> None:
    found = both_ways(tmp_path, COMBINED, f"Path('output.json').write_text('status: success' if good else {bad!r})")
    assert found.check("all")[1]["score"] == 0.0


MUST_PASS = """
invariants:
  must_pass:
    description: ""
    weight: 1.0
    gate: true                  # if this fails, composite = 0 regardless
    check: { type: file_exists, path: must }

  nice_to_have:
    description: ""
    weight: 0.3
    check: { type: file_exists, path: nice }

scoring:
  pass_threshold: 0.85
"""
"""`check: { ... }` filled in."""


@pytest.mark.parametrize(
    ("left", "composite"),
    [("must", 1.0 / 1.3), ("nice", 0.0)],
    ids=["nice_to_have-fails", "must_pass-fails"],
)
def test_weights_and_gates(tmp_path: Path, left: str, composite: float) -> None:
    """ "If only nice_to_have fails, the composite is (1.0 × 1) / (1.0 + 0.3) ≈ 0.77 — below the 0.85 threshold, so the
    scenario fails."; "If must_pass fails, the composite is forced to 0.\""""
    found = both_ways(tmp_path, MUST_PASS, f"for name in ('must', 'nice') if good else [{left!r}]: Path(name).touch()")
    assert found.good["composite"] == 1.0
    assert found.bad["composite"] == pytest.approx(composite)


QUALITY = """
invariants:
  tests_pass:
    description: "All unit tests pass"
    weight: 1.0
    gate: true
    check:
      type: command_exit
      command: "npm test"

  no_console_log:
    description: "No debug logs left in source"
    weight: 0.3
    check:
      type: file_content
      path: "src/main.ts"
      not_contains: "console.log"

  small_diff:
    description: "Diff is small"
    weight: 0.2
    check:
      type: command_exit
      command: "[ $(git diff --stat | tail -1 | awk '{print $4+$6}') -lt 50 ]"

scoring:
  pass_threshold: 0.85
"""
COMMITTED = {
    "setup": {
        "commands": [
            "git init -q . && git add -A && git -c user.name=a -c user.email=a@b.c commit -qm start",
        ]
    }
}


@pytest.mark.parametrize(
    ("spoils", "failing", "composite"),
    [
        ("Path('test.js').write_text('process.exit(1)')", ["tests_pass"], 0.0),
        ("Path('src/main.ts').write_text('console.log(1)')", ["no_console_log"], 1.2 / 1.5),
        ("Path('src/main.ts').write_text('console.log(1)\\n' * 60)", ["no_console_log", "small_diff"], 1 / 1.5),
    ],
    ids=["tests", "log", "log-and-diff"],
)
def test_tests_as_a_gate_and_quality(tmp_path: Path, spoils: str, failing: list[str], composite: float) -> None:
    """ "If tests fail → composite is 0, scenario fails. If tests pass + everything else perfect → composite is 1.0,
    pass. If tests pass + one nice-to-have fails → composite around 0.83, fail." By the document's own formula that is
    0.80 without the log, and 0.87 for a large diff alone, which is above its threshold."""
    agent = f"Path('src/main.ts').write_text('run();\\nstop();\\n')\nif not good: {spoils}\n"
    start = {"package.json": NPM, "test.js": "process.exit(0)", "src/main.ts": "run();\n"}
    found = both_ways(tmp_path, QUALITY, agent, start=start, **COMMITTED)
    assert found.good["composite"] == 1.0
    assert found.bad["composite"] == pytest.approx(composite)
    assert [name for name, status in found.statuses[1].items() if status == "fail"] == failing
