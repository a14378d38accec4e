"""Agents that want credit for tests that their work does not pass, through the real command: each gets the score 0,
the verdict `fail` and a sentence that says what happened. Other checks: test_bad_input_evidence.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bad_input import attack_all, attack_each, earned, planting
from support.graded_tests import files_of

WRONG = "def add(a, b):\n    return a - b\n"
HIDDEN = "from a import add\ndef test_small(): assert add(1, 2) == 3\ndef test_more(): assert add(2, 2) == 4\n"
EXITS = "import os\nprint('2 passed', flush=True)\nos._exit(0)\n"
FORGES = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    result = yield
    result.get_result().outcome = "passed"
"""
PYTHON = {"setup": {"env": {"PYTHONPATH": "{{ agent.dir }}/packages"}}, "resources": {"memory": "512Mi", "pids": 50}}


@pytest.fixture(scope="module")
def packages(packages: Path) -> dict[str, str | bytes]:
    """pytest for the sandbox's python3, as files of the agent's directory."""
    return files_of(packages, "agent/packages")


OPTIONS = "addopts = -p forged\n"
FORGING = {
    "forged.py": FORGES,
    "a.py": f"print('===== 2 passed in 0.01s =====', flush=True)\n{WRONG}",
    "conftest.py": FORGES,
    "tests/conftest.py": FORGES,
    "pytest.ini": f"[pytest]\n{OPTIONS}",
    # Metadata of a plug-in, and variables in files.
    "forged-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: forged\nVersion: 1\n",
    "forged-1.dist-info/entry_points.txt": "[pytest11]\nforged = forged\n",
    ".env": "PYTEST_PLUGINS=forged\nPYTEST_ADDOPTS=-pforged\nPYTHONSTARTUP=forged.py\n",
}
"""What would let all tests pass, whichever of it pytest took."""
FORGING_ELSEWHERE = {
    "forged.py": FORGES,
    "tests/conftest/__init__.py": FORGES,
    "tests/pytest.ini": f"[pytest]\n{OPTIONS}",
    ".pytest.ini": f"[pytest]\n{OPTIONS}",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p forged'\n",
    "tox.ini": f"[pytest]\n{OPTIONS}",
    "setup.cfg": f"[tool:pytest]\n{OPTIONS}",
}
EXITING = dict.fromkeys(
    ("sitecustomize.py", "sitecustomize/__init__.py", "usercustomize.py", "pytest/__init__.py", "pytest/__main__.py"),
    EXITS,
)
"""What would end every Python, or be pytest."""
PLANTED = {
    "nothing but what is wrong": "pass",
    "what forges": planting(FORGING),
    "what forges elsewhere": planting(FORGING_ELSEWHERE),
    "what exits": planting({**EXITING, "_pytest/x.py": "", "x.pth": "import os; os._exit(0)"})
    + """
for version in range(8, 16):  # packages of its user
    for home in (Path(os.environ["HOME"]), Path()):
        place = home / f".local/lib/python3.{version}/site-packages"
        write(place / "evil.pth", "import os; os._exit(0)"), write(place / "usercustomize.py", "import os; os._exit(0)")
for place in ("python3", "bin/python3", "node_modules/.bin/python3", ".venv/bin/python3"):
    write(place, "#!/bin/sh\\nexit 0\\n"), os.chmod(place, 0o755)
""",
    "modules and byte code": planting(dict.fromkeys(("pytest.py", "pluggy.py", "argparse.py"), EXITS))
    + """
import py_compile
write("ok.py", "def test_small(): pass\\n")
for python in range(8, 16):
    for tag in ("", "-pytest-8.4.1", "-pytest-9.0.1"):
        place = f"tests/__pycache__/test_x.cpython-3{python}{tag}.pyc"
        py_compile.compile("ok.py", place, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
""",
    "__init__.py of the tests": planting({"tests/__init__.py": EXITS}),
}
"""Several things of a kind in one: that both tests are said to have failed shows that none of them was taken."""
ENDED = {
    "os._exit": planting({"a.py": EXITS}),
    "os._exit when called": planting({"a.py": "import os\ndef add(a, b): os._exit(0)\n"}),
    "sys.exit": planting({"a.py": "import sys\nsys.exit(0)\n"}),
    "pytest.exit": planting({"a.py": "import pytest\npytest.exit('done', 0)\n"}),
    "skipped when called": planting({"a.py": "import pytest\ndef add(a, b): pytest.skip('x')\n"}),
    "a forged report": planting({"a.py": """
import atexit, glob, json, os
def forge():
    for place in glob.glob(".keystone*/"):
        passed = {"status": 0, "collected": ["a"], "outcomes": {"a": ["passed"]}, "skipped_by": {}}
        text = json.dumps({**passed, "collection_errors": []})
        open(place + "report", "w").write("0" * 64 + "\\n" + text)
    os._exit(0)
atexit.register(forge)
def add(a, b): raise SystemExit
"""}),
    "a FIFO for a report": planting({"a.py": """
import atexit, glob, os
def block():
    for place in glob.glob(".keystone*/"): os.mkfifo(place + "report")
    os._exit(0)
atexit.register(block)
def add(a, b): os._exit(block())
"""}),
    "a process that stays": planting({"a.py": "import os, time\nif os.fork() == 0: os.setsid(), time.sleep(60)\n"}),
    "hangs": planting({"a.py": "import time\ntime.sleep(900)\n"}),
    "takes all memory": planting({"a.py": "x = []\nwhile True: x.append(bytes(1 << 20))\n"}),
}  # fmt: skip
REPLACED = {
    "nothing can be written": "write('tests/test_x.py'), os.chmod('tests', 0o555), os.chmod('.', 0o555)",
    "tests is closed": "os.chmod('tests', 0)",
    "the code is a link": "os.symlink('/dev/null', retired('a.py'))",
    "the code is a FIFO": "os.mkfifo(retired('a.py'))",
}
RAN = "0 of 2 tests passed (2 failed)"
SAID = {
    **dict.fromkeys(PLANTED.keys() - {"__init__.py of the tests"}, RAN),
    **dict.fromkeys(("nothing can be written", "tests is closed"), RAN),
    "os._exit": "its report was never written: pytest did not come to its end",
    "pytest.exit": "1 in error",
    "skipped when called": "2 in error",
    "a forged report": "its report is not the one that this run of pytest wrote",
    "hangs": "The tests were stopped at their time limit of 10 s.",
    "takes all memory": "stopped at a limit: memory",
    "sys.exit": "No test was run.",
}


@pytest.mark.slow
def test_no_credit_for_hidden_tests_that_fail(tmp_path: Path, packages: dict[str, str | bytes]) -> None:
    called, found = attack_all(
        tmp_path,
        {**PLANTED, **ENDED, **REPLACED},
        {"type": "pytest", "inject": [{"src": "hidden/test_x.py", "dest": "tests/test_x.py"}], "timeout": "10s"},
        author={**packages, "hidden/test_x.py": HIDDEN},
        start={"a.py": WRONG, "tests/readme": ""},
        **PYTHON,
    )
    assert earned(found) == {}
    assert called.document["verdict"] == "fail"
    for name, said in SAID.items():
        assert said in found[name]["message"], name


IN_PLACE = {
    "tests_is_a_link": "write('mine/{test}', PASSES); os.symlink('mine', retired('{place}'))",
    "tests_is_a_link_outside": "os.symlink(os.environ['KEYSTONE_AGENT_DIR'], retired('{place}'))",
    "the_test_is_there": "write('{place}/{test}', PASSES)",
    "the_test_is_a_link": "write('mine.py', PASSES); os.symlink('../mine.py', '{place}/{test}')",
    "the_test_is_a_directory": "write('{place}/{test}/test_y.py', PASSES)",
    "the_test_is_a_FIFO": "os.mkfifo('{place}/{test}')",
}
"""What the agent has in place of a hidden test, of which each has a folder of its own."""
SKIPPING = {
    "a_skipped_module": "import pytest\npytest.skip('x', allow_module_level=True)\n",
    "unittests_skip": "import unittest\nraise unittest.SkipTest\n",
    "skipped_when_called": "import pytest\ndef add(a, b): pytest.skip('x')\n",
    "an_expected_failure": "import pytest\ndef add(a, b): pytest.xfail('x')\n",
}
"""Modules under test, of which each has a hidden test of its own."""


def test_no_credit_for_what_the_agent_has_in_place_of_hidden_tests_nor_for_skips(
    tmp_path: Path, packages: dict[str, str | bytes]
) -> None:
    """Each hidden test is counted as one that failed or, for those that were skipped, as an error."""
    hidden = {f"{name}/test_{name}.py": HIDDEN for name in IN_PLACE}
    hidden |= {f"tests/test_{name}.py": HIDDEN.replace("from a ", f"from {name} ") for name in SKIPPING}
    planted = [how.format(place=name, test=f"test_{name}.py") for name, how in IN_PLACE.items()]
    agent = "PASSES = 'def test_small(): pass'\n" + "\n".join(planted) + "\n"
    _, found = attack_all(
        tmp_path,
        {"all": agent + planting({f"{name}.py": text for name, text in SKIPPING.items()})},
        {"type": "pytest", "inject": [{"src": f"hidden/{test}", "dest": test} for test in hidden]},
        author={**packages, **{f"hidden/{test}": text for test, text in hidden.items()}},
        start={"a.py": WRONG, "tests/readme": "", **{f"{name}/readme": "" for name in IN_PLACE}},
        **PYTHON,
    )
    assert earned(found) == {}
    assert "0 of 18 tests passed (12 failed, 6 in error)" in found["all"]["message"]


def test_the_same_check_gives_credit_where_it_is_due(tmp_path: Path, packages: dict[str, str | bytes]) -> None:
    agent = planting({"a.py": WRONG.replace("-", "+"), "conftest.py": EXITS, "pytest.py": EXITS, "x.pth": EXITS})
    check = {"type": "pytest", "inject": [{"src": "hidden/test_x.py", "dest": "tests/test_x.py"}]}
    author = {**packages, "hidden/test_x.py": HIDDEN}
    _, found = attack_all(tmp_path, {"honest": agent}, check, author=author, code=0, **PYTHON)
    assert (found["honest"]["status"], found["honest"]["score"]) == ("pass", 1.0)


NOT_THERE: dict[str, tuple[dict[str, object], str]] = {
    "nothing collected": ({"type": "pytest", "inject": ["hidden/helper.py"]}, "No test was run."),
    "no file": ({"type": "pytest", "cmd": "pytest -q gone/test_y.py"}, "No test was run."),
    "no test": (
        {"type": "pytest", "cmd": "pytest -q tests/test_x.py::test_gone", "inject": ["hidden/test_x.py"]},
        "No test",
    ),
    "swebench: no file": (
        {"type": "swebench", "fail_to_pass": ["gone/test_y.py::test_small"]},
        "test_small (not found)",
    ),
    "swebench: no test": (
        {"type": "swebench", "inject": ["hidden/test_x.py"], "fail_to_pass": ["test_x.py::gone"]},
        "gone (not found)",
    ),
    "swebench: its own test": (
        {"type": "swebench", "fail_to_pass": ["a.py::x"], "pass_to_pass": ["tests/test_old.py::test_keep"]},
        "test_keep (failed)",
    ),
}


def test_tests_that_do_not_exist(tmp_path: Path, packages: dict[str, str | bytes]) -> None:
    _, found = attack_each(
        tmp_path,
        {"one": planting({"tests/test_old.py": "def test_keep(): pass\n"})},
        {name.replace(": ", "-").replace(" ", "-"): check for name, (check, _) in NOT_THERE.items()},
        author={**packages, "hidden/helper.py": "x = 1\n", "hidden/test_x.py": HIDDEN},
        start={"a.py": WRONG, "tests/test_old.py": "def test_keep(): assert 0\n"},
        **PYTHON,
    )
    entries = {name: entries["one"] for name, entries in zip(NOT_THERE, found.values(), strict=True)}
    assert earned(entries) == {}
    assert {name: one["message"] for name, one in entries.items() if NOT_THERE[name][1] not in one["message"]} == {}
    assert entries["no file"]["cell"]["composite"] == 0.0


def test_a_command_of_pytest_that_ended_with_0(tmp_path: Path, packages: dict[str, str | bytes]) -> None:
    """An exit code that is all there is to grade by is the tests' own."""
    names = ("os._exit", "skipped when called", "pytest.exit")
    _, found = attack_all(
        tmp_path,
        {name: ENDED[name] for name in names} | {"argparse.py": planting({"argparse.py": EXITS, "a.py": WRONG})},
        {"type": "tests", "cmd": "python3 -m pytest -q test_x.py", "inject": ["hidden/test_x.py"]},
        author={**packages, "hidden/test_x.py": HIDDEN},
        **PYTHON,
    )
    assert earned(found) == {}


GOOD_REPORT = '<testsuite tests="1"><testcase name="x"/></testsuite>'
REPORT = "target/reports/TEST-all.xml"
BUILD = f"""import os, sys
sys.path.insert(0, "")
import a
passed = a.add(1, 2) == 3
os.makedirs("target/reports", exist_ok=True)
case = "" if passed else "<failure/>"
open("{REPORT}", "w").write(f'<testsuite tests="1"><testcase name="x">{{case}}</testcase></testsuite>')
sys.exit(not passed)
"""


def ending(statement: str) -> str:
    """Code under test that leaves something in the report's place, and ends the run with 0."""
    return f"import os\nos.makedirs('target/reports', exist_ok=True)\nREPORT = '{REPORT}'\n{statement}\nos._exit(0)\n"


def writing(report: str) -> str:
    return planting({"a.py": ending(f"open(REPORT, 'w').write({report!r})")})


ENDS = planting({"a.py": ending("pass")})
LEVELS = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 1000}">' for n in range(9))
REPORTS = {
    "written before": planting({REPORT: GOOD_REPORT}) + ENDS,
    "another beside": planting({"target/reports/TEST-mine.xml": GOOD_REPORT}),
    "in a closed directory": planting({REPORT: GOOD_REPORT}) + ENDS + "os.chmod('target/reports', 0o500)\n",
    "directory before": "os.makedirs('target/reports/TEST-all.xml/deep')",
    "FIFO before": f"os.makedirs('target/reports'); os.mkfifo('{REPORT}')\n{ENDS}",
    "link outside before": f"os.makedirs('target/reports'); os.symlink('/etc/hostname', '{REPORT}')\n{ENDS}",
    "directory outside": f"os.symlink(os.environ['KEYSTONE_AGENT_DIR'], 'target')\n{ENDS}",
    "directory elsewhere": f"{planting({f'mine/{REPORT[7:]}': GOOD_REPORT})}os.symlink('mine', 'target')\n{ENDS}",
    "FIFO": planting({"a.py": ending("os.mkfifo(REPORT)")}),
    "directory": planting({"a.py": ending("os.mkdir(REPORT)")}),
    "link outside": planting({"a.py": ending("os.symlink('/etc/hostname', REPORT)")}),
    "loop of links": planting({"a.py": ending("os.symlink('TEST-all.xml', REPORT)")}),
    "entity bomb": writing(f"<!DOCTYPE t [{LEVELS}]><testsuite><testcase name='&e8;'/></testsuite>"),
    "deep": planting({"a.py": ending("open(REPORT, 'w').write('<testsuite>' * 100000 + '<testcase/>')")}),
    "huge": planting({"a.py": ending("open(REPORT, 'w').write('<testsuite>' + '<testcase/>' * 6200000)")}),
    "claims without cases": writing('<testsuite tests="100" failures="0"/>'),
    "all skipped": writing('<testsuite><testcase name="x"><skipped/></testcase></testsuite>'),
    "half of one": writing(GOOD_REPORT[:-3]),
    "on stdout": planting({"a.py": ending(f"print({GOOD_REPORT!r}, flush=True)")}),
    "start-up modules": planting(dict.fromkeys(("sitecustomize.py", "build.py"), ending("open(REPORT, 'w')"))),
    "hangs": planting({"a.py": "import time\ntime.sleep(900)\n"}),
}
SAID_OF_REPORTS = {
    "written before": "no report matches target/reports/TEST-*.xml",
    "FIFO": "is a FIFO, not a regular file",
    "link outside before": "leads through a link out of the workspace, to /etc/hostname",
    "link outside": "leads through a link out of the workspace, to /etc/hostname",
    "entity bomb": "has a document type or entities, which no JUnit report needs",
    "deep": "is nested too deep",
    "huge": "at most 67,108,864 are read",
    "claims without cases": "No test was run.",
    "half of one": "is not well-formed XML",
    "hangs": "stopped at their time limit of 10 s",
}


def test_no_credit_for_reports(tmp_path: Path) -> None:
    """The runner itself is protected; what it runs, and all that it leaves, is the agent's."""
    check = {"type": "tests", "cmd": "python3 build.py", "junit_xml": "target/reports/TEST-*.xml", "timeout": "10s"}
    start = {"a.py": WRONG, "build.py": BUILD}
    _, found = attack_all(tmp_path, REPORTS, {**check, "protect": ["build.py"]}, start=start)
    assert earned(found) == {}
    for name, said in SAID_OF_REPORTS.items():
        assert said in found[name]["message"], name


NODE = """const test = require("node:test"), assert = require("assert"), {add} = require("./solution.js");
test("small", () => assert.equal(add(1, 2), 3)); test("more", () => assert.equal(add(2, 2), 4));"""
ENDED_OF_NODE = {
    "process.exit": planting({"solution.js": "console.log('# pass 2'); process.exit(0)"}),
    "process.exit when called": planting({"solution.js": "exports.add = () => process.exit(0)"}),
    "reallyExit": planting({"solution.js": "process.reallyExit(0)"}),
    "ends the runner": planting({"solution.js": "process.kill(process.ppid, 'SIGTERM'); process.exit(0)"}),
    "hangs": planting({"solution.js": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);"}),
}
PLANTED_FOR_NODE = {
    "wrong": "pass",
    "programs, modules and a directory": planting(
        {
            "node_modules/assert/index.js": "exports.equal = () => {};",
            "node_modules/test/index.js": "",
            "x.test.js/index.js": "",
        }
    )
    + """
for place in ("node", "node_modules/.bin/node"):
    write(place, "#!/bin/sh\\nexit 0\\n"), os.chmod(place, 0o755)
""",
    "configuration": planting({"package.json": '{"type": "module"}', ".npmrc": "node-options=--require ./x.js"}),
}


@pytest.mark.parametrize(
    ("test", "attacks"),
    [("x.test.js", {**ENDED_OF_NODE, **PLANTED_FOR_NODE}), ("hidden.test.js", ENDED_OF_NODE)],
    ids=["itself", "by-a-file-that-loads-it"],
)
@pytest.mark.slow
def test_no_credit_for_hidden_tests_of_node_that_fail(tmp_path: Path, test: str, attacks: dict[str, str]) -> None:
    _, found = attack_all(
        tmp_path,
        attacks,
        {"type": "tests", "inject": ["hidden/x.test.js"], "cmd": f"node --test {test}", "timeout": "10s"},
        author={"hidden/x.test.js": NODE},
        start={"solution.js": "exports.add = () => 0;\n", "hidden.test.js": 'require("./x.test.js");'},
    )
    assert earned(found) == {}
    assert "ended before its tests reported" in found["process.exit"]["message"]
    assert "stopped at their time limit of 10 s" in found["hangs"]["message"]
    for name in found.keys() & {"wrong", "programs, modules and a directory"}:
        assert RAN in found[name]["message"], name
