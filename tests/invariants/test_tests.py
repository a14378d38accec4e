"""tests and its alias pytest, with real runs of pytest, node and unittest in the process sandbox."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from support.graded_tests import World

from keystone_action.invariants.check import Outcome

ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
HIDDEN = """
from solution import add
def test_small(): assert add(1, 2) == 3
def test_zero(): assert add(0, 0) == 0
"""
PYTEST = {"type": "pytest", "inject": ["./test_hidden.py"]}


@pytest.fixture
def world(tmp_path: Path, packages: Path) -> World:
    made = World(tmp_path, packages)
    made.hidden(test_hidden=HIDDEN)
    return made


@pytest.fixture
def bare(tmp_path: Path) -> World:
    return World(tmp_path)


def tallied(outcome: Outcome) -> tuple[object, ...]:
    return tuple(outcome.details[name] for name in ("passed", "failed", "errors", "skipped"))


# The examples of 004_722b8593dcd13c4e.txt.


def test_the_documents_pytest_example(world: World) -> None:
    """`- {type: pytest, weight: 4.0, inject: ["./hidden/test_x.py"]}`, value = passed / (passed + failed + errors)."""
    (world.author / "hidden").mkdir()
    (world.author / "hidden" / "test_x.py").write_text(HIDDEN)
    world.left({"solution.py": ADD})
    document = {"type": "pytest", "inject": ["./hidden/test_x.py"]}
    outcome = world.grade(document)
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome
    world.left({"solution.py": WRONG})
    outcome = world.grade(document)
    assert (outcome.status, outcome.score) == ("fail", 0.5)
    assert "1 of 2 tests passed (1 failed), expected all of them. Not passed: test_x.py::test_small." in outcome.message
    assert not (world.workspace / "test_x.py").exists()


def test_the_documents_regression_gate(bare: World) -> None:
    """`{type: tests, gate: true, cmd: "...", junit_xml: "..."}` with a Surefire report."""
    report = '<testsuite tests=\\"2\\"><testcase name=\\"a\\"/><testcase name=\\"b\\">{}</testcase></testsuite>'
    command = 'mkdir -p target/surefire-reports && echo "{}" > target/surefire-reports/TEST-all.xml'
    document = {"type": "tests", "junit_xml": "target/surefire-reports/TEST-*.xml"}
    outcome = bare.grade({**document, "cmd": command.format(report.format(""))})
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome
    outcome = bare.grade({**document, "cmd": command.format(report.format("<failure/>")) + "; exit 1"})
    assert (outcome.status, outcome.score) == ("fail", 0.5)


# Counting.


def test_every_way_that_a_test_can_end_is_counted_right(world: World) -> None:
    world.hidden(
        test_hidden="""
import pytest, solution
@pytest.mark.parametrize("n", [1, 2, "three four "])
def test_parametrised(n): assert n != 2
@pytest.mark.xfail
def test_expected(): assert False
@pytest.mark.xfail
def test_unexpected(): pass
@pytest.mark.skip
def test_skipped(): assert False
def test_skipped_within(): pytest.skip("not here")
@pytest.fixture
def broken(): raise OSError
def test_error(broken): pass
@pytest.fixture
def late():
    yield
    raise OSError
def test_late(late): pass
"""
    )
    world.left({"solution.py": ADD})
    outcome = world.grade(PYTEST)
    assert tallied(outcome) == (3, 1, 2, 3)
    assert outcome.score == 0.5
    assert outcome.status == "fail"
    assert world.grade({**PYTEST, "pass_threshold": 0.5}).status == "pass"


def test_a_file_that_cannot_be_collected_earns_nothing(world: World) -> None:
    world.left({"other.py": ""})
    outcome = world.grade(PYTEST)
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert tallied(outcome) == (0, 0, 1, 0)


def test_tests_that_were_collected_and_never_ran_are_errors(world: World) -> None:
    world.left(
        {"solution.py": "import pytest\ndef add(a, b): pytest.exit('enough', 0) if a == 0 else None\n    return 3\n"}
    )
    world.left(
        {"solution.py": "import pytest\ndef add(a, b):\n    if a == 0: pytest.exit('enough', 0)\n    return 3\n"}
    )
    outcome = world.grade(PYTEST)
    assert (outcome.status, outcome.score) == ("fail", 0.5)
    assert tallied(outcome) == (1, 0, 1, 0)


def test_nothing_collected_fails(world: World) -> None:
    world.hidden(test_hidden="x = 1")
    outcome = world.grade(PYTEST)
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert outcome.message.startswith("No test was run.")


def test_without_injected_files_the_authors_suite_runs(world: World) -> None:
    world.given({"tests/test_own.py": HIDDEN, "pyproject.toml": "[tool.pytest.ini_options]\ntestpaths = ['tests']\n"})
    world.left({"solution.py": ADD})
    outcome = world.grade({"type": "pytest"})
    assert (outcome.status, outcome.details["passed"]) == ("pass", 2)


def test_files_are_injected_where_dest_says(world: World) -> None:
    world.left({"package/solution.py": ADD, "package/__init__.py": ""})
    world.hidden(test_hidden="from package.solution import add\ndef test(): assert add(1, 1) == 2")
    inject = [{"src": "test_hidden.py", "dest": "deep/er/test_renamed.py"}, {"src": "test_hidden.py", "dest": "tests/"}]
    outcome = world.grade({"type": "pytest", "inject": inject})
    assert (outcome.status, outcome.details["passed"]) == ("pass", 2), outcome


def test_a_command_line_of_pytest_is_taken_apart(world: World) -> None:
    world.left({"src/solution.py": ADD})
    cmd = "MODE=x python3 -m pytest -q test_hidden.py -k small -o pythonpath=src"
    outcome = world.grade({**PYTEST, "cmd": cmd})
    assert (outcome.status, outcome.details["passed"]) == ("pass", 1), outcome


def test_where_the_sandbox_has_no_pytest_ours_runs_the_tests_and_says_so(bare: World) -> None:
    bare.hidden(test_hidden=HIDDEN)
    bare.left({"solution.py": ADD})
    outcome = bare.grade(PYTEST)
    assert (outcome.status, outcome.details["passed"]) == ("pass", 2), outcome
    assert outcome.notices == (
        f"this sandbox has no pytest: the tests were run by Keystone's own {pytest.__version__}",
    )
    bare.left({"solution.py": WRONG})
    assert (bare.grade(PYTEST).status, bare.grade(PYTEST).score) == ("fail", 0.5)
    by_exit_code = {"type": "tests", "inject": ["test_hidden.py"], "cmd": "python3 -m pytest test_hidden.py"}
    outcome = bare.grade(by_exit_code)
    assert (outcome.status, len(outcome.notices)) == ("fail", 1), outcome


def test_the_sandbox_s_own_pytest_comes_before_ours(world: World) -> None:
    world.left({"solution.py": ADD})
    assert world.grade(PYTEST).notices == ()


@pytest.mark.parametrize("planted", ["pytest.py", "_pytest/__init__.py", "iniconfig.py", "pygments/__init__.py"])
def test_a_pytest_that_the_agent_left_is_never_taken_for_ours(bare: World, planted: str) -> None:
    bare.hidden(test_hidden=HIDDEN)
    bare.left({"solution.py": WRONG, planted: "import os\nos._exit(0)\n"})
    outcome = bare.grade(PYTEST)
    assert (outcome.status, outcome.score) == ("fail", 0.5), outcome


def test_a_pytest_that_does_not_run_is_an_error_that_says_what_to_do(bare: World) -> None:
    """Nor is it replaced by ours: its author chose it."""
    with tempfile.TemporaryDirectory(prefix="keystone-broken-") as name:
        broken = Path(name)
        broken.chmod(0o755)
        (broken / "pytest.py").write_text("import a_part_that_is_not_there")
        bare.environment, bare.readable = {"PYTHONPATH": str(broken)}, (broken,)
        bare.hidden(test_hidden=HIDDEN)
        bare.left({"solution.py": ADD})
        outcome = bare.grade(PYTEST)
    assert outcome.status == "error"
    assert "a_part_that_is_not_there" in outcome.message
    assert "setup.packages" in outcome.message
    assert "environment.requirements" in outcome.message


# Bad input: never credit.


def attacked(world: World, files: dict[str, str | None], **document: object) -> Outcome:
    outcome = world.grade({**PYTEST, **document}) if world.left(files) is None else None
    assert outcome is not None
    assert outcome.status == "fail", outcome
    return outcome


def test_forged_numbers_on_stdout(world: World) -> None:
    forged = "print('==== 2 passed in 0.01s ====', flush=True)\nimport os\n"
    assert attacked(world, {"solution.py": forged + WRONG}).score == 0.5


def test_os_exit_in_the_code_under_test(world: World) -> None:
    outcome = attacked(world, {"solution.py": "import os\nprint('2 passed', flush=True)\nos._exit(0)\n"})
    assert outcome.score == 0.0
    assert "did not come to its end" in outcome.message
    outcome = attacked(world, {"solution.py": "import os\ndef add(a, b):\n    if not a: os._exit(0)\n    return 3\n"})
    assert outcome.score == 0.0


def test_a_report_written_by_the_code_under_test_is_not_ours(world: World) -> None:
    forged = """
import atexit, glob, json, os
def forge():
    for place in glob.glob(".keystone*/"):
        with open(place + "report", "wb") as file:
            file.write(b"0" * 64 + b"\\n" + json.dumps({"status": 0, "collected": ["a"], "outcomes": {"a": ["passed"]},
                       "skipped_by": {}, "collection_errors": []}).encode())
    os._exit(0)
atexit.register(forge)
def add(a, b):
    raise SystemExit
"""
    outcome = attacked(world, {"solution.py": forged})
    assert outcome.score == 0.0
    assert "is not the one that this run of pytest wrote" in outcome.message


def test_the_order_cannot_be_read_again(world: World) -> None:
    reading = "import os\ntry: KEY = os.pread(0, 100000, 0)\nexcept OSError: KEY = b''\n"
    world.hidden(test_hidden="import solution\ndef test(): assert solution.KEY == b''")
    world.left({"solution.py": reading})
    assert world.grade(PYTEST).status == "pass"


FORGES_PASSES = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    result = yield
    result.get_result().outcome = "passed"
def pytest_collection_modifyitems(items):
    items[:] = items[:1]
"""


def test_planted_conftest(world: World) -> None:
    world.given({"tests/deep/readme": ""})
    inject = [{"src": "test_hidden.py", "dest": "tests/deep/test_hidden.py"}]
    planted = [f"{directory}conftest.py" for directory in ("", "tests/", "tests/deep/")]
    outcome = attacked(world, {"solution.py": WRONG, **dict.fromkeys(planted, FORGES_PASSES)}, inject=inject)
    assert outcome.score == 0.5
    assert outcome.details["removed"] == planted


def test_changed_and_deleted_conftest_are_restored(world: World) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef three(): return 3\n"
    world.given({"conftest.py": fixture, "sub/conftest.py": fixture})
    world.hidden(test_hidden="from solution import add\ndef test(three): assert add(1, 2) == three")
    world.left({"conftest.py": FORGES_PASSES, "solution.py": ADD, "sub/conftest.py": None})
    inject = ["test_hidden.py", {"src": "test_hidden.py", "dest": "sub/test_other.py"}]
    outcome = world.grade({"type": "pytest", "inject": inject})
    assert (outcome.status, outcome.details["passed"]) == ("pass", 2), outcome
    assert outcome.details["restored"] == ["conftest.py", "sub/conftest.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\naddopts = -p forged -k zero\n"),
        (".pytest.ini", "[pytest]\naddopts = -p forged -k zero\n"),
        ("pytest.toml", "[pytest]\naddopts = ['-p', 'forged', '-k', 'zero']\n"),
        ("tox.ini", "[pytest]\naddopts = -p forged -k zero\n"),
        ("setup.cfg", "[tool:pytest]\naddopts = -p forged -k zero\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-p forged -k zero'\n"),
    ],
)
def test_planted_configuration(world: World, name: str, text: str) -> None:
    assert attacked(world, {"solution.py": WRONG, "forged.py": FORGES_PASSES, name: text}).score == 0.5


def test_changed_configuration_is_the_authors_while_the_rest_of_the_file_is_not(world: World) -> None:
    world.given({"pyproject.toml": "[tool.pytest.ini_options]\npython_functions = ['test_*', 'check_*']\n"})
    world.hidden(
        test_hidden="def check_it(): assert 'agent' in open('pyproject.toml').read()\ndef test_zero(): assert 0\n"
    )
    world.left({"pyproject.toml": "[project]\nname = 'agent'\n[tool.pytest.ini_options]\naddopts = '-k zero'\n"})
    outcome = world.grade(PYTEST)
    assert tallied(outcome) == (1, 1, 0, 0), outcome


def test_planted_start_up_modules(world: World) -> None:
    """Any one of them that is imported ends it all."""
    names = [
        "evil.pth",
        "lib/sitecustomize.py",
        "sitecustomize.py",
        "src/sitecustomize/__init__.py",
        "usercustomize.py",
    ]
    world.environment["PYTHONPATH"] = "lib:src:."
    world.given({"src/readme": "", "lib/readme": ""})
    planted = "import os, sys\nprint('2 passed', flush=True)\nos._exit(0)\n"
    outcome = attacked(world, {"solution.py": WRONG, **dict.fromkeys(names, planted)})
    assert outcome.score == 0.5
    assert outcome.details["removed"] == names


# One hides the other.
@pytest.mark.parametrize(
    "names", [("pytest.py", "pluggy.py"), ("pytest/__init__.py", "pytest/__main__.py", "_pytest/__init__.py")]
)
def test_a_pytest_in_the_workspace(world: World, names: tuple[str, ...]) -> None:
    world.environment["PYTHONPATH"] = "."
    planted = "import os\nprint('2 passed', flush=True)\nos._exit(0)\n"
    assert attacked(world, {"solution.py": WRONG, **dict.fromkeys(names, planted)}).score == 0.5


@pytest.mark.parametrize("name", ["pytest.py", "pytest/__init__.py"])
def test_a_pytest_in_the_workspace_does_not_run_instead_of_a_command(world: World, name: str) -> None:
    planted = {name: "import os\nos._exit(0)\n", "solution.py": WRONG}
    world.left(planted)
    outcome = world.grade({**PYTEST, "type": "tests", "cmd": "python3 -m pytest -q test_hidden.py"})
    assert (outcome.status, outcome.score) == ("fail", 0.0)


def test_planted_metadata_of_a_plug_in(world: World) -> None:
    metadata = {
        "forged-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: forged\nVersion: 1\n",
        "forged-1.dist-info/entry_points.txt": "[pytest11]\nforged = forged\n",
        "forged.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: forged2\nVersion: 1\n",
        "forged.egg-info/entry_points.txt": "[pytest11]\nforged2 = forged\n",
    }
    assert attacked(world, {"solution.py": WRONG, "forged.py": FORGES_PASSES, **metadata}).score == 0.5


def test_code_that_skips_the_test_it_is_tested_by(world: World) -> None:
    hows = ("return 0", "pytest.skip('x')", "raise unittest.SkipTest", "pytest.xfail('x')")
    tests = "".join(f"def test_{number}(): assert add({number}, 0) == 0\n" for number in range(len(hows)))
    world.hidden(test_hidden=f"from solution import add\n{tests}")
    ways = "".join(f"    if a == {number}: {how}\n" for number, how in enumerate(hows))
    outcome = attacked(world, {"solution.py": f"import pytest, unittest\ndef add(a, b):\n{ways}"})
    assert tallied(outcome) == (1, 0, 3, 0)


def test_code_that_skips_the_whole_file_it_is_tested_by(world: World) -> None:
    world.hidden(test_other="def test(): pass")
    skipping = "import pytest\npytest.skip('x', allow_module_level=True)\n"
    outcome = attacked(world, {"solution.py": skipping}, inject=["test_hidden.py", "test_other.py"])
    assert outcome.score == 0.5


def test_links_and_directories_where_hidden_files_go(world: World) -> None:
    outside = world.root / "outside"
    outside.mkdir()
    world.left({"solution.py": ADD, "conftest.py/x": "", "test_hidden.py/conftest.py": FORGES_PASSES})
    (world.workspace / "tests").symlink_to(outside)
    (world.workspace / "file").write_text("")
    inject = [
        "test_hidden.py",
        {"src": "test_hidden.py", "dest": "tests/test_two.py"},
        {"src": "test_hidden.py", "dest": "file/test_three.py"},
    ]
    outcome = world.grade({"type": "pytest", "inject": inject})
    assert (outcome.status, outcome.details["passed"]) == ("pass", 6), outcome
    assert list(outside.iterdir()) == []


def test_cached_byte_code_of_the_agents_is_not_taken(world: World) -> None:
    world.given({"tests/helper.py": "def expected(): return 3\n", "tests/readme": ""})
    world.left({"solution.py": WRONG, "forged.py": "def expected(): return -1\n"})
    # Code that is taken without a look at the source it stands for.
    program = """
import py_compile, sys
target = f"tests/__pycache__/helper.{sys.implementation.cache_tag}.pyc"
py_compile.compile("forged.py", target, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""
    subprocess.run(["/usr/bin/python3", "-c", program], check=True, cwd=world.workspace)
    world.hidden(
        test_hidden="from helper import expected\nfrom solution import add\ndef test(): assert add(1, 2) == expected()"
    )
    outcome = attacked(world, {}, inject=[{"src": "test_hidden.py", "dest": "tests/test_hidden.py"}])
    assert outcome.score == 0.0


def test_a_test_that_hangs(world: World) -> None:
    world.left({"solution.py": "import time\ndef add(a, b):\n    time.sleep(600)\n"})
    outcome = world.grade(PYTEST, timeout=3.0)
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert outcome.message.startswith("The tests were stopped at their time limit of 3 s.")


def test_what_a_spec_protects_besides(bare: World) -> None:
    bare.given({"ci/run": "test -f done", "ci/data/keep": "kept"})
    bare.left({"ci/run": "true", "ci/more": "x", "ci/data/keep": None})
    document = {"type": "tests", "cmd": "sh ci/run", "protect": ["ci/"]}
    outcome = bare.grade(document)
    assert outcome.status == "fail"
    assert outcome.details["restored"] == ["ci/data/keep", "ci/run"]
    assert outcome.details["removed"] == ["ci/more"]
    bare.left({"done": ""})
    assert bare.grade(document).status == "pass"


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        (ADD, "by its exit code alone"),
        (WRONG, "ended with exit code 1, expected 0. It was graded by its exit code alone"),
        ("import os\nos._exit(0)\n", "exit code 0, and its report was never written"),
        ("import pytest\ndef add(a, b): pytest.skip('x')\n", "exit code 0, but 0 of 2 tests passed (2 in error)"),
    ],
)
def test_a_pytest_command_is_graded_by_an_exit_code_that_its_tests_made(
    world: World, solution: str, message: str
) -> None:
    world.left({"solution.py": solution})
    outcome = world.grade({"type": "tests", "cmd": "python3 -m pytest -q test_hidden.py", "inject": ["test_hidden.py"]})
    right = solution is ADD
    assert (outcome.status, outcome.score) == (("pass", 1.0) if right else ("fail", 0.0)), outcome
    assert message in outcome.message
