"""tests with node's own test runner: its reporter, and files that end before their tests did."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.graded_tests import World

from keystone_action.invariants.check import Outcome
from keystone_action.invariants.test_runs.recorded_runs import with_node_reporter

pytestmark = pytest.mark.sandbox


@pytest.fixture
def bare(tmp_path: Path) -> World:
    return World(tmp_path)


def tallied(outcome: Outcome) -> tuple[object, ...]:
    return tuple(outcome.details[name] for name in ("passed", "failed", "errors", "skipped"))


def test_the_documents_node_example(bare: World) -> None:
    """004_722b8593dcd13c4e.txt: `cmd: "node --test hidden.test.js"`, `inject: ["./hidden/x.test.js"]`."""
    text = """const test = require("node:test"); const assert = require("assert");
const {add} = require("./solution.js");
test("small", () => assert.equal(add(1, 2), 3)); test("zero", () => assert.equal(add(0, 0), 0));
test("later", {todo: true}, () => assert.fail()); test("never", {skip: true}, () => assert.fail());"""
    (bare.author / "hidden.test.js").write_text(text)
    document = {"type": "tests", "cmd": "node --test hidden.test.js", "inject": ["./hidden.test.js"]}
    bare.left({"solution.js": "exports.add = (a, b) => a + b;"})
    outcome = bare.grade(document)
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome
    assert tallied(outcome) == (2, 0, 0, 2)
    bare.left({"solution.js": "exports.add = (a, b) => a - b;"})
    outcome = bare.grade(document)
    assert (outcome.status, outcome.score) == ("fail", 0.5)


def test_a_colour_code_in_a_failure_costs_the_other_tests_nothing(bare: World) -> None:
    """Node copies the message of an error into its report as it is."""
    text = """const test = require("node:test"); const {f} = require("./solution.js");
test("one", () => {}); test("two", () => f());"""
    (bare.author / "x.test.js").write_text(text)
    bare.left({"solution.js": r"exports.f = () => { throw new Error('\x1b[31mred\x1b[0m') }"})
    outcome = bare.grade({"type": "tests", "cmd": "node --test x.test.js", "inject": ["x.test.js"]})
    assert (outcome.status, outcome.score) == ("fail", 0.5), outcome


def test_node_tests_that_end_the_process_earn_nothing(bare: World) -> None:
    text = 'const test = require("node:test"); const {f} = require("./solution.js");\ntest("one", () => f());'
    (bare.author / "x.test.js").write_text(text)
    bare.left({"solution.js": "process.exit(0)"})
    outcome = bare.grade({"type": "tests", "cmd": "node --test", "inject": ["x.test.js"]})
    assert (outcome.status, outcome.score) == ("fail", 0.0)


OLD_NODE = """#!/bin/sh
case "$*" in
    "-e "*) printf v18.13.0; exit 1 ;;
    *--test-reporter*) echo "node: bad option: --test-reporter" >&2; exit 9 ;;
esac
exit 0
"""
"""As Node 18.13, which passes whatever ends the process with 0, and has no reporter."""


@pytest.fixture
def old_node(bare: World) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "node")
        program.write_text(OLD_NODE)
        for path in (program, program.parent):
            path.chmod(0o755)
        bare.readable = (program.parent,)
        bare.environment["PATH"] = f"{folder}:{os.environ['PATH']}"
        (bare.author / "x.test.js").write_text('require("node:test")("one", require("./solution.js").f);')
        bare.left({"solution.js": "process.exit(0)"})
        yield bare


def test_a_node_without_the_reporter_is_not_believed(old_node: World) -> None:
    outcome = old_node.grade({"type": "tests", "cmd": "node --test", "inject": ["x.test.js"]})
    assert outcome.status == "error", outcome
    assert "Node 18.13.0 can't be confirmed" in outcome.message
    assert "set base to an image with Node 20" in outcome.message


def test_an_old_node_that_is_not_the_sandboxs_earns_nothing(old_node: World) -> None:
    """Only the command's own shell finds it: without a report its exit code of 0 is not a success."""
    folder = old_node.readable[0]
    del old_node.environment["PATH"]
    outcome = old_node.grade({"type": "tests", "cmd": f"PATH={folder}; node --test", "inject": ["x.test.js"]})
    assert (outcome.status, outcome.score) == ("fail", 0.0), outcome


def test_an_old_node_with_a_report_of_the_authors_is_graded_by_it(old_node: World) -> None:
    write = "echo '<testsuite><testcase name=\"a\"/></testsuite>' > r.xml"
    document = {"type": "tests", "cmd": f"node --test && {write}", "junit_xml": "r.xml", "inject": ["x.test.js"]}
    assert old_node.grade(document).status == "pass"


def test_files_of_node_that_end_the_process_are_found_among_any_number(bare: World) -> None:
    text = 'const test = require("node:test"); for (let i = 0; i < 1200; i++) test("t" + i, () => {});'
    (bare.author / "a.test.js").write_text(text)
    (bare.author / "b.test.js").write_text('require("./solution.js"); require("node:test")("one", () => {});')
    bare.left({"solution.js": "process.exit(0)"})
    outcome = bare.grade({"type": "tests", "cmd": "node --test", "inject": ["a.test.js", "b.test.js"]})
    assert (outcome.status, tallied(outcome)) == ("fail", (1200, 0, 1, 0)), outcome


@pytest.mark.parametrize(
    ("solution", "found"),
    [
        ("throw new Error('gone');", ("fail", 0.0)),
        ("process.exit(0);", ("fail", 0.0)),
        ("setTimeout(() => { throw new Error('late'); }, 100);", ("fail", 0.0)),
        ("exports.f = () => { throw new Error('in one test'); };", ("pass", 0.8)),
    ],
)
def test_the_tests_of_a_file_that_node_cannot_load_are_lost(
    bare: World, solution: str, found: tuple[str, float]
) -> None:
    """Of ten tests it would lose nine: what passed in other files says nothing of them."""
    many = 'const test = require("node:test"); for (let i = 0; i < 3; i++) test("t" + i, () => {});'
    (bare.author / "a.test.js").write_text(many)
    asks = 'require("node:test")("one", () => s.f && s.f()); require("node:test")("two", () => {});'
    (bare.author / "b.test.js").write_text(f'const s = require("./solution.js"); {asks}')
    bare.left({"solution.js": solution})
    document = {"type": "tests", "cmd": "node --test", "inject": ["a.test.js", "b.test.js"], "pass_threshold": 0.5}
    outcome = bare.grade(document)
    assert (outcome.status, outcome.score) == found, outcome
    assert ("could not all be run" in outcome.message) == (found[0] == "fail")


@pytest.mark.parametrize("load", ['require("./x.test.js");', "import './lib/index.mjs';"])
def test_files_of_node_that_load_their_tests_are_followed(bare: World, load: str) -> None:
    """As the command of 004_722b8593dcd13c4e.txt may load what it injects."""
    name = "hidden.test.mjs" if "import" in load else "hidden.test.js"
    bare.given({name: load, "lib/index.mjs": "import '../more/deep.cjs';"})
    bare.given({"more/deep.cjs": 'require("../x.test");'})
    (bare.author / "x.test.js").write_text('require("./solution.js"); require("node:test")("one", () => {});')
    bare.left({"solution.js": "process.exit(0)"})
    outcome = bare.grade({"type": "tests", "cmd": f"node --test {name}", "inject": ["x.test.js"]})
    assert (outcome.status, outcome.score) == ("fail", 0.0), outcome
    assert "ended before its tests reported" in outcome.message


def test_a_plain_script_is_a_test_of_node_by_its_exit_code(bare: World) -> None:
    (bare.author / "x.test.js").write_text('require("assert").equal(require("./solution.js").f(), 1);')
    bare.left({"solution.js": 'exports.f = () => 1; require("./solution");'})
    outcome = bare.grade({"type": "tests", "cmd": "node --test x.test.js", "inject": ["x.test.js"]})
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome


@pytest.mark.parametrize(
    ("cmd", "expected"),
    [
        ("node --test", "node --test OPTIONS"),
        ("cd app && node --no-warnings --test a.js", "cd app && node --no-warnings --test OPTIONS a.js"),
        (["node", "--test", "a.js"], ["node", "--test", "OPTIONS", "a.js"]),
        ("node --test --test-reporter=tap", None),
        ("node --test-only a.js", None),
        ("npm test", None),
    ],
)
def test_where_the_reporter_goes(cmd: object, expected: object) -> None:
    options = "--test-reporter=spec --test-reporter-destination=stdout --test-reporter=junit"
    options += " --test-reporter-destination=/r.xml"
    if isinstance(expected, str):
        expected = expected.replace("OPTIONS", options)
    elif isinstance(expected, list):
        expected = [*expected[:2], *options.split(), *expected[3:]]
    assert with_node_reporter(cmd, "/r.xml") == expected  # type: ignore[arg-type]


ONE = 'const test = require("node:test"); const {f} = require("./solution.js");\ntest("one", () => f());'
BY_A_SCRIPT = [
    "npm test",
    "node --test --test-reporter=dot",
    "node --test --test-reporter spec --test-reporter-destination stdout x.test.js",
    "node --test x.test.js && node --test x.test.js",
    ["sh", "-c", "exec node --test"],
]


@pytest.fixture(params=BY_A_SCRIPT, ids=str)
def by_a_script(bare: World, request: pytest.FixtureRequest) -> dict[str, object]:
    """A check whose command chooses its reporters, or is a script that runs node's tests."""
    if request.param == "npm test" and shutil.which("npm") is None:
        pytest.skip("no npm is installed")
    bare.given({"package.json": '{"scripts": {"test": "node --test"}}'})
    (bare.author / "x.test.js").write_text(ONE)
    return {"type": "tests", "cmd": request.param, "inject": ["x.test.js"]}


@hostile("tests", "code under test ends node's tests below a script with 0", held_by="each run owes a report")
def test_node_tests_below_a_script_that_end_the_process_earn_nothing(
    bare: World, by_a_script: dict[str, object]
) -> None:
    bare.left({"solution.js": "process.exit(0)"})
    outcome = bare.grade(by_a_script)
    assert (outcome.status, outcome.score) == ("fail", 0.0), outcome
    assert "of node did not come to the end of its tests" in outcome.message


@honest("tests", "code under test ends node's tests below a script with 0")
def test_node_tests_below_a_script_pass_by_their_exit_code(bare: World, by_a_script: dict[str, object]) -> None:
    bare.left({"solution.js": "exports.f = () => process.stdout.write('hello');"})
    outcome = bare.grade(by_a_script)
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome
    assert "by its exit code alone" in outcome.message
    bare.left({"solution.js": "exports.f = () => { throw new Error('no'); };"})
    assert bare.grade(by_a_script).status == "fail"


@hostile("tests", "code under test ends node's tests below a script with 0", held_by="each run owes a report")
@pytest.mark.parametrize("how", ["fs.writeFileSync(keys, '')", "fs.unlinkSync(keys)", "process.exit(0)"])
def test_a_run_of_node_whose_keys_were_meddled_with_earns_nothing(bare: World, how: str) -> None:
    bare.given({"run.sh": "node --test || true"})
    (bare.author / "x.test.js").write_text(ONE)
    bare.left({"solution.js": MEDDLE.replace("HOW", how)})
    outcome = bare.grade({"type": "tests", "cmd": "sh run.sh", "inject": ["x.test.js"]})
    assert (outcome.status, outcome.score) == ("fail", 0.0), outcome


MEDDLE = """
const fs = require("fs");
const folder = fs.readdirSync(".").find((name) => name.startsWith(".keystone-check-"));
const keys = `${folder}/node`;
for (const name of fs.readdirSync(folder)) if (name !== "node") fs.unlinkSync(`${folder}/${name}`);
HOW;
process.exit(0);
"""


def test_a_report_of_the_commands_own_is_no_word_for_node_tests_that_ended_the_process(bare: World) -> None:
    (bare.author / "x.test.js").write_text(ONE)
    cmd = "node --test --test-reporter=junit --test-reporter-destination=r.xml"
    document = {"type": "tests", "cmd": cmd, "junit_xml": "r.xml", "inject": ["x.test.js"]}
    bare.left({"solution.js": "process.exit(0)"})
    assert (bare.grade(document).status, bare.grade(document).score) == ("fail", 0.0)
    bare.left({"solution.js": "exports.f = () => 1;"})
    assert (bare.grade(document).status, bare.grade(document).score) == ("pass", 1.0)


def test_node_options_of_the_spec_are_kept(bare: World) -> None:
    bare.environment["NODE_OPTIONS"] = "--no-warnings --max-old-space-size=64"
    bare.given({"run.sh": 'case "$NODE_OPTIONS" in *" --no-warnings --max-old-space-size=64") node --test;; esac'})
    (bare.author / "x.test.js").write_text(ONE)
    bare.left({"solution.js": "process.exit(0)"})
    outcome = bare.grade({"type": "tests", "cmd": "sh run.sh", "inject": ["x.test.js"]})
    assert "of node did not come to the end of its tests" in outcome.message, outcome


def test_runs_that_tests_of_node_start_are_theirs(bare: World) -> None:
    """A test may expect another run to fail."""
    inner = 'require("child_process").spawnSync(process.execPath, ["--test", "inner.js"]).status'
    bare.given({"package.json": "{}", "inner.js": "process.exit(0)"})
    text = f'require("node:test")("outer", () => {inner}); require("./solution.js");'
    (bare.author / "x.test.js").write_text(text)
    bare.left({"solution.js": "1;"})
    document = {"type": "tests", "cmd": "node --test --test-reporter=tap x.test.js", "inject": ["x.test.js"]}
    assert bare.grade(document).status == "pass"


def test_a_run_of_chosen_tests_is_graded_by_its_exit_code(bare: World) -> None:
    (bare.author / "x.test.js").write_text(ONE)
    bare.left({"solution.js": "exports.f = () => 1;"})
    document = {"type": "tests", "cmd": "node --test --test-reporter=tap --test-name-pattern=other"}
    outcome = bare.grade({**document, "inject": ["x.test.js"]})
    assert (outcome.status, "by its exit code alone" in outcome.message) == ("pass", True), outcome
