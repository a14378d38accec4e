"""`pytest` and `tests` through `keystone run`, on this machine and in containers: work that passes, work that fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_spec
from support.images import PYTHON

SPEC = """version: 1
id: graded
task: {{prompt: "Mend add."}}
workspace: start
{base}
agent: {{type: command, command: [python3, "{{{{ agent.dir }}}}/agent.py"], dir: agent}}
setup: {{env: {{PYTHONPATH: "{{{{ agent.dir }}}}/packages"}}}}
invariants:
  hidden: {{check: {{type: pytest, inject: [hidden/test_hidden.py]}}}}
  named: {{check: {{type: pytest, cmd: "python3 -m pytest -q tests", protect: ["tests/**"]}}}}
  reported:
    check: {{type: tests, cmd: python3 hidden_runner.py, inject: [hidden/hidden_runner.py], junit_xml: "out/*.xml"}}
  by_code: {{check: {{type: tests, cmd: [python3, -c, "from calc import add; assert add(2, 2) == 4"]}}}}
"""
FILES = {
    "start/calc.py": "def add(a, b):\n    raise NotImplementedError\n",
    "start/tests/test_calc.py": "from calc import add\n\ndef test_zero():\n    assert add(0, 0) == 0\n",
    "hidden/test_hidden.py": (
        "import pytest\nfrom calc import add\n\n"
        "@pytest.mark.parametrize(('a', 'b', 'total'), [(0, 0, 0), (1, 2, 3), (-1, 1, 0), (2, 5, 7)])\n"
        "def test_add(a, b, total):\n    assert add(a, b) == total\n\n"
        "@pytest.mark.skip\ndef test_later():\n    raise AssertionError\n"
    ),
    "hidden/hidden_runner.py": """
import os
from calc import add
cases = {f"{a}+{b}": add(a, b) == a + b for a, b in [(0, 0), (4, 4)]}
body = "".join(f'<testcase name="{name}">{"" if ok else "<failure/>"}</testcase>' for name, ok in cases.items())
os.makedirs("out", exist_ok=True)
open("out/report.xml", "w").write(f'<testsuite tests="2">{body}</testsuite>')
raise SystemExit(not all(cases.values()))
""",
}
LOOKS = "from pathlib import Path\nassert not list(Path().rglob('*hidden*'))\n"
MENDS = "Path('calc.py').write_text('def add(a, b):\\n    return a + b\\n')\n"
SPOILS = """
Path('calc.py').write_text('def add(a, b):\\n    return a * b if a else a + b\\n')
Path('tests/test_calc.py').write_text('def test_nothing(): pass\\n' * 9)
Path('conftest.py').write_text('def pytest_collection_modifyitems(items): items.clear()\\n')
Path('out').mkdir()
Path('out/report.xml').write_text('<testsuite tests="1"><testcase name="forged"/></testsuite>')
print('4 passed in 0.01s')
"""


def graded(directory: Path, packages: Path, agent: str, *, base: str = "") -> tuple[int, dict[str, Any]]:
    """The exit code, and status and score by name."""
    for name, text in {**FILES, "agent/agent.py": LOOKS + agent}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    shutil.copytree(packages, directory / "agent" / "packages")
    called = run_spec(directory, SPEC.format(base=f"base: {base}" if base else ""))
    assert not called.has_traceback
    assert called.cells[0]["agent"]["exit_code"] == 0, called.cells[0]["agent"]
    return called.code, called.checks


def assert_mended(code: int, checks: dict[str, Any]) -> None:
    assert {name: (one["status"], one["score"]) for name, one in checks.items()} == {
        "hidden": ("pass", 1.0),
        "named": ("pass", 1.0),
        "reported": ("pass", 1.0),
        "by_code": ("pass", 1.0),
    }, checks
    assert (checks["hidden"]["details"]["passed"], checks["hidden"]["details"]["skipped"]) == (4, 1)
    assert code == 0


def assert_spoilt(code: int, checks: dict[str, Any]) -> None:
    """1 of 4 hidden ones holds; the author's own test does; of the runner's two, one; 2 × 2 is 4, by bad luck."""
    assert {name: (one["status"], one["score"]) for name, one in checks.items()} == {
        "hidden": ("fail", 0.25),
        "named": ("pass", 1.0),
        "reported": ("fail", 0.5),
        "by_code": ("pass", 1.0),
    }, checks
    assert checks["named"]["details"]["restored"] == ["tests/test_calc.py"]
    assert "conftest.py" in checks["named"]["details"]["removed"]
    assert code == 1


def test_mended_on_this_machine(tmp_path: Path, packages: Path) -> None:
    assert_mended(*graded(tmp_path, packages, MENDS))


def test_spoilt_on_this_machine(tmp_path: Path, packages: Path) -> None:
    assert_spoilt(*graded(tmp_path, packages, SPOILS))


def test_nothing_done_fails_everywhere(tmp_path: Path, packages: Path) -> None:
    code, checks = graded(tmp_path, packages, "")
    assert code == 1
    assert {one["score"] for one in checks.values()} == {0.0}


@pytest.mark.docker
def test_mended_in_a_container(tmp_path: Path, packages: Path, image: Callable[[str], str]) -> None:
    assert_mended(*graded(tmp_path, packages, MENDS, base=image(PYTHON)))


@pytest.mark.docker
def test_spoilt_in_a_container(tmp_path: Path, packages: Path, image: Callable[[str], str]) -> None:
    assert_spoilt(*graded(tmp_path, packages, SPOILS, base=image(PYTHON)))
