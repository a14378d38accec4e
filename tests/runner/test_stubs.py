"""Functions that lose their bodies: what of them is left, and sources that are hostile."""

from __future__ import annotations

import ast
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.errors import HarnessError
from keystone_action.runner.cell import fixtures as stubs
from keystone_action.runner.cell.stub_program import stubbed
from keystone_action.spec.loading.loaded_spec import Stub

SOURCE = '''# licence
class Sums:
    @property
    async def add(self, a: int = 1, *, b) -> int:
        """Adds."""
        # secret
        return a + b  # secret
    def other(self): return self.add
def add(): return "secret"; 1
if True:
    def outer():
        def add(): yield "secret"
        return add
'''


def test_every_function_of_that_name_at_any_depth() -> None:
    answer = stubbed(SOURCE, ["add", "gone"])
    assert answer["missing"] == ["gone"]
    text = answer["source"]
    assert "secret" not in text
    assert text.count("raise NotImplementedError\n") == 3
    assert 'async def add(self, a: int=1, *, b) -> int:\n        """Adds."""\n        raise' in text
    assert "return self.add" in text


@settings(deadline=None)
@given(
    st.sampled_from(["add", "other", "outer", "Sums", "x"]), st.lists(st.sampled_from(SOURCE.splitlines()), max_size=6)
)
def test_what_is_left_is_python_with_the_same_functions(name: str, lines: list[str]) -> None:
    source = SOURCE + "\n".join(line.lstrip() if line.startswith("def") else "" for line in lines)
    answer = stubbed(source, [name])
    before, after = ast.parse(source), ast.parse(answer["source"])
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = [one for one in ast.walk(after) if isinstance(one, kinds) and one.name == name]
    assert (not named) == (name in answer["missing"])
    assert all(isinstance(one.body[-1], ast.Raise) and len(one.body) <= 2 for one in named)
    assert len([one for one in before.body if isinstance(one, kinds)]) == len(
        [one for one in after.body if isinstance(one, kinds)]
    )


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def (", "it is not Python (line 1: "),
        ("x = " + "(" * 5000, "it "),
        ("x = " + "-" * 100_000 + "1", "it "),
        ("a\0b", "it "),
    ],
    ids=["syntax", "brackets", "signs", "nul"],
)
def test_hostile_sources_are_refused_in_a_sentence(tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "a.py").write_text(source)
    with pytest.raises(HarnessError) as caught:
        anyio.run(stubs.apply_stubs, [Stub("a.py", "add", "case.yaml:1:2")], tmp_path)
    message = caught.value.message
    assert "setup.stub" in message
    assert "a.py" in message
    assert problem in message
    assert (tmp_path / "a.py").read_text() == source


def test_modes_stay_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text(SOURCE)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "a.py").write_text(SOURCE)
    (workspace / "a.py").chmod(0o755)
    anyio.run(stubs.apply_stubs, [Stub("a.py", "add"), Stub("a.py", "other")], workspace)
    assert (workspace / "a.py").read_text().count("NotImplementedError") == 4
    assert (workspace / "a.py").stat().st_mode & 0o777 == 0o755
    (workspace / "b.py").symlink_to(outside)
    (workspace / "c").symlink_to(tmp_path)
    for name in ("b.py", "c/outside.py"):
        with pytest.raises(HarnessError):
            anyio.run(stubs.apply_stubs, [Stub(name, "add")], workspace)
    assert outside.read_text() == SOURCE
