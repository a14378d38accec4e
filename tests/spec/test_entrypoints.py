"""An entrypoint that names nothing is told before anything runs, and refuses nothing; what may be there is not told."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.spec.loading.entrypoints import names_instead
from keystone_action.spec.loading.loaded_spec import LoadedSpec

SPEC = """version: 1
id: a
task: {{prompt: do it}}
agent: {{type: python, entrypoint: '{}', dir: code}}
invariants: {{x: {{check: {{type: file_exists, path: x}}}}}}
"""


def test_a_name_that_the_module_has_not(load_text: Callable[..., LoadedSpec], write: Callable[..., Path]) -> None:
    write("class Agent:\n    def run(self, input, context): ...\n", "code/mine.py")
    (said,) = load_text(SPEC.format("mine:Agnet")).warnings
    assert f"{said.line}:{said.column}: {said.sentence}" == (
        "4:35: there is no 'Agnet' in mine.py, did you mean 'Agent'?"
    )
    # Installed modules and attributes of what is there: only a run can tell.
    for entrypoint in ("mine:Agent", "mine:Agent.inner", "installed:Agent"):
        assert load_text(SPEC.format(entrypoint)).warnings == ()


def test_a_file_that_leads_out_is_not_looked_into(
    load_text: Callable[..., LoadedSpec], directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "mine.py"
    outside.write_text("SECRET = 1")
    (directory / "code").mkdir()
    (directory / "code" / "mine.py").symlink_to(outside)
    assert load_text(SPEC.format("mine:Agent")).warnings == ()
    (directory / "code" / "mine.py").unlink()
    (directory / "code" / "mine.py").write_text("SECRET = 1")
    assert len(load_text(SPEC.format("mine:Agent")).warnings) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from elsewhere import *",
        "from elsewhere import (\n    Agent,\n)",
        "def __getattr__(name): ...",
        "globals()['Ag' + 'ent'] = 1",
        "if True:\n    import x as Agent",
        "# Agent",
        "import lost",
    ],
)
def test_what_may_be_there_is_left_to_a_run(tmp_path: Path, source: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    assert names_instead(tmp_path / "mine.py", "Agent") is None


def test_a_module_of_a_package_may_be_a_name_of_it(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("x: int = 1\ny = 2\nimport z as w")
    assert names_instead(tmp_path / "__init__.py", "inner") == ("x", "y", "w")
    (tmp_path / "inner.py").touch()
    assert names_instead(tmp_path / "__init__.py", "inner") is None


@given(st.binary(max_size=200) | st.text("class Agent=:\n\t import*", max_size=60).map(str.encode))
def test_no_content_breaks_the_look(source: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "m.py").write_bytes(source)
        found = names_instead(Path(folder) / "m.py", "Agent")
        assert found is None or "Agent" not in found
