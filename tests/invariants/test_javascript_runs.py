"""tests with Jest and Vitest: the report that is added to their command, and what it is worth."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.agent_clients import Installed, installed_from_npm
from support.attacks import honest, hostile
from support.graded_tests import World

from keystone_action.invariants.test_runs.case_counts import BadReport
from keystone_action.invariants.test_runs.recorded_runs import with_javascript_report

VERSIONS = {"jest": "30.5.2", "vitest": "3.2.4"}
"""A Vitest that runs on Node 20: 5.1 needs a function of Node 21 once a test fails."""
PATH = "/w/.keystone-check-1/report"
JEST = f"--json --outputFile={PATH}"
VITEST = f"--reporter=default --reporter=json --outputFile.json={PATH}"


@pytest.mark.parametrize(
    ("cmd", "expected"),
    [
        ("jest", f"jest {JEST}"),
        ("npx jest --ci tests", f"npx jest {JEST} --ci tests"),
        ("npx --no-install jest", f"npx --no-install jest {JEST}"),
        ("CI=1 npx jest; echo done", f"CI=1 npx jest {JEST}; echo done"),
        ("cd app && npx jest", f"cd app && npx jest {JEST}"),
        ("./node_modules/.bin/jest a", f"./node_modules/.bin/jest {JEST} a"),
        ("node --experimental-vm-modules node_modules/jest/bin/jest.js", f"… {JEST}"),
        (["npx", "jest", "a b"], ["npx", "jest", *JEST.split(), "a b"]),
        ("npx vitest run", f"npx vitest run {VITEST}"),
        ("vitest run --globals", f"vitest run {VITEST} --globals"),
        ("vitest", f"vitest {VITEST}"),
    ],
)
def test_a_report_is_added_to_a_command_that_runs_them(cmd: str | list[str], expected: str | list[str]) -> None:
    added = with_javascript_report(cmd, PATH)
    assert added is not None
    assert added.command == expected or str(added.command).endswith(str(expected).removeprefix("…"))


@pytest.mark.parametrize(
    "cmd",
    [
        "npm run jest",
        "yarn jest",
        "echo jest",
        "./scripts/jest",
        "jest-runner",
        "cat node_modules/jest",
        "jest --json",
        "jest --reporters=default",
        "jest --bail",
        "jest --watch",
        "jest --listTests",
        "jest -h",
        "jest && jest",
        "jest && vitest run",
        "vitest watch",
        "vitest list",
        "vitest bench",
        "vitest run --reporter=junit",
        "vitest run --bail=1",
        "sh -c 'npx jest'",
        ["sh", "-c", "jest"],
        "go test ./...",
    ],
)
def test_any_other_command_stays_as_it_is(cmd: str | list[str]) -> None:
    assert with_javascript_report(cmd, PATH) is None


def report(*files: tuple[str, list[str]], runner: str = "jest", **more: object) -> tuple[int, int, int, list[str]]:
    results = [
        {
            "name": f"{number}.test.js",
            "status": status,
            "assertionResults": [{"fullName": f"t{index}", "status": one} for index, one in enumerate(cases)],
        }
        for number, (status, cases) in enumerate(files)
    ]
    document = {"testResults": results, "numTotalTestSuites": len(results), "wasInterrupted": False, **more}
    added = with_javascript_report(f"npx {runner}", PATH)
    assert added is not None
    counts = added.read(json.dumps(document).encode())
    return counts.passed, counts.failures, counts.skipped, counts.lost


def test_every_way_that_a_test_can_end_is_counted() -> None:
    ended = ["passed", "failed", "pending", "todo", "skipped", "disabled", "what comes later"]
    assert report(("failed", ended)) == (1, 1, 5, [])
    assert report(("focused", ["passed", "pending"]), ("passed", ["passed"])) == (2, 0, 1, [])


def test_a_file_that_could_not_be_loaded_has_lost_its_tests() -> None:
    assert report(("passed", ["passed"] * 99), ("failed", [])) == (99, 0, 0, ["1.test.js"])
    assert report(("failed", ["passed"])) == (1, 0, 0, ["0.test.js"])  # a hook after its last test


@pytest.mark.parametrize("more", [{"wasInterrupted": True}, {"numTotalTestSuites": 2}])
def test_a_run_that_ended_before_its_last_file_is_no_report(more: dict[str, object]) -> None:
    with pytest.raises(BadReport, match="ended before its last file"):
        report(("passed", ["passed"]), **more)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{", b'{"testResults": 1}', b'{"testResults": [1]}', b"[" * 100_000, b"\xff"]
)
@pytest.mark.parametrize("runner", ["jest", "vitest"])
def test_what_neither_of_them_writes_is_no_report(content: bytes, runner: str) -> None:
    added = with_javascript_report(runner, PATH)
    assert added is not None
    with pytest.raises(BadReport, match=f"not as {runner} writes it"):
        added.read(content)


ADD = "export const add = (a, b) => a + b;"
WRONG = "export const add = (a, b) => a - b;"
TESTS = {
    "jest": """const {add} = require("./solution.js");
test("small", () => expect(add(1, 2)).toBe(3)); test("zero", () => expect(add(0, 0)).toBe(0));
test.skip("never", () => {}); test.todo("later");""",
    "vitest": """import {add} from "./solution.js";
test("small", () => expect(add(1, 2)).toBe(3)); test("zero", () => expect(add(0, 0)).toBe(0));
test.skip("never", () => {}); test.todo("later");""",
}
LEAVES = {"jest": lambda text: re.sub(r"export const (\w+)", r"exports.\1", text), "vitest": lambda text: text}


class Runner:
    """A world whose workspace has Jest or Vitest, and hidden tests of two files for it."""

    def __init__(self, world: World, name: str, program: Installed) -> None:
        self.world, self.name = world, name
        world.readable = (program.folder,)
        world.given({"package.json": '{"type": "module"}' if name == "vitest" else "{}"})
        (world.workspace / "node_modules").symlink_to(program.folder / "node_modules")
        for file, text in (("a", TESTS[name]), ("b", 'test("other", () => {});')):
            (world.author / f"{file}.test.js").write_text(text)
        run = "jest" if name == "jest" else "vitest run --globals"
        command = f"node_modules/.bin/{run}"
        self.document = {"type": "tests", "cmd": command, "inject": ["a.test.js", "b.test.js"], "pass_threshold": 0.1}

    def grade(self, solution: str, **files: str) -> tuple[str, float | None, str]:
        self.world.left({"solution.js": LEAVES[self.name](solution), **files})
        outcome = self.world.grade(self.document, timeout=300.0)
        return outcome.status, outcome.score, outcome.message


@pytest.fixture(params=sorted(VERSIONS))
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    return Runner(World(tmp_path), request.param, installed_from_npm(request.param, VERSIONS[request.param]))


@pytest.mark.slow
@honest("reports", "ends the process of Jest or Vitest, or prints and plants a report of its own")
def test_the_share_of_real_tests_is_the_score(runner: Runner) -> None:
    status, score, message = runner.grade(ADD)
    assert (status, score) == ("pass", 1.0), message
    status, score, message = runner.grade(WRONG)
    assert (status, round(score or 0, 3)) == ("pass", 0.667), message
    assert "2 of 3 tests passed (1 failed, 2 skipped, not counted)" in message


@pytest.mark.slow
@hostile(
    "reports",
    "ends the process of Jest or Vitest, or prints and plants a report of its own",
    held_by="a report of ours beside the command; a file whose tests are not in it earns nothing",
)
@pytest.mark.parametrize(
    "solution",
    [
        "process.exit(0); export const add = 1;",
        "throw new Error('gone'); export const add = 1;",
        "console.log(JSON.stringify({success: true, testResults: []})); " + "process.kill(process.pid, 'SIGKILL');",
    ],
)
def test_a_file_of_tests_that_cannot_run_earns_nothing(runner: Runner, solution: str) -> None:
    """Neither from the other file's tests, which pass, nor by a report that lies there already."""
    planted = json.dumps({"success": True, "numTotalTestSuites": 0, "testResults": []})
    status, score, message = runner.grade(solution, **{"report": planted, "report.json": planted})
    assert (status, score) == ("fail", 0.0), message
