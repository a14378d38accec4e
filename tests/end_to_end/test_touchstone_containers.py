"""A Touchstone case with a `container`: harness, setup and graders are in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.images import PYTHON
from support.touchstone import both_models, run_case, write_case

pytestmark = pytest.mark.docker


def test_everything_is_in_the_container(tmp_path: Path, image: Callable[[str], str]) -> None:
    agent = """import os
assert Path(sys.argv[3]).samefile('.'), sys.argv
assert os.uname().nodename == 'sandbox'
Path('built').write_text(Path('/etc/built').read_text())
Path('a.py').write_text('def add(a, b): return a + b') if good else None
"""
    graders = "  - {type: implemented, gate: true}\n"
    graders += '  - {type: command, cmd: "test -s built && test -f /etc/built && test -f made"}\n'
    write_case(tmp_path, graders, agent)
    harnesses = tmp_path / "harnesses.yaml"
    text = harnesses.read_text().replace('"{prompt}"', '"{prompt}", "{sandbox}"')
    author = {"source/a.py": "def add(a, b):\n    return a * b\n", "harnesses.yaml": text}
    found = both_models(
        tmp_path,
        graders,
        agent,
        author=author,
        source={"path": "source"},
        container={"image": image(PYTHON), "setup": ["date > /etc/built"]},
        setup={"stub": [{"file": "a.py", "function": "add"}], "run": ["grep -q NotImplemented a.py && touch made"]},
    )
    assert [cell["agent"]["exit_code"] for cell in (found.good, found.bad)] == [0, 0]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)


@pytest.mark.parametrize(("wanted", "code"), [("do it", 0), ("leave it", 1)])
def test_echo_in_a_container(tmp_path: Path, image: Callable[[str], str], wanted: str, code: int) -> None:
    matrix = {"harnesses": ["echo"], "models": ["m"]}
    graders = f"  - {{type: command, cmd: \"grep -qx '{wanted}' ANSWER.md\"}}\n"
    write_case(tmp_path, graders, container={"image": image(PYTHON)}, matrix=matrix)
    called = run_case(tmp_path)
    assert called.code == code, called.out + called.err
    assert called.cells[0]["agent"]["output"] == "do it"
    assert called.document["sandbox"]["kind"] == "docker"
