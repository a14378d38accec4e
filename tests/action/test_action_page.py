"""What is made from the options: action.yml, docs/action.md, docs/command-line.md; and the example of a key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.fake_runner import ROOT, FakeRunner

from keystone_action.options.option import Group, option, settings_of
from tools.option_pages import ACTION_PAGE, input_table, inputs, made_texts

TEXT = ACTION_PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("file", made_texts(), ids=lambda file: file.name)
def test_what_is_made_from_the_options_is_up_to_date(file: Path) -> None:
    assert file.read_text("utf-8") == made_texts()[file], "run: python -m tools.option_pages"


def test_an_input_with_the_signs_of_a_table_stays_in_its_cell() -> None:
    class Model(Group):
        a: int = option("x | y <b>", 1, ge=0, le=1, input="a", input_note="a|b")

    assert input_table(settings_of(Model))[-1] == "| `a` | `1` | x \\| y &lt;b> a\\|b |"


def test_the_workflow_that_spreads_cells_has_the_defaults_of_the_action() -> None:
    """Its inputs go to those of the same names. `timeout-minutes` is GitHub's."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "evaluate.yml").read_text("utf-8"))
    ours = {one.option.input: one.input_default for one in inputs()}
    theirs = {name: entry.get("default", "") for name, entry in workflow[True]["workflow_call"]["inputs"].items()}
    shared = {name: str(theirs[name]).lower() for name in theirs.keys() & ours.keys() - {"shards"}}
    assert len(shared) > 15
    assert shared == {name: ours[name] for name in shared}


def test_a_key_reaches_the_agent_as_the_page_says(tmp_path: Path) -> None:
    ((step,),) = [yaml.safe_load(block) for block in BLOCKS if "AGENT_API_KEY: ${{" in block]
    (spec,) = [block for block in BLOCKS if block.startswith("version: 1")]
    ((name, value),) = step["env"].items()
    assert value == f"${{{{ secrets.{name} }}}}"
    secret = "sk-of-the-agent"
    for given, key, code in (("with", secret, 0), ("without", "", 3)):
        runner = FakeRunner(tmp_path / given)
        (runner.workspace / "keystone.yaml").write_text(spec)
        found = runner.step(step["with"], env={name: key} if key else {})
        assert found.exit_code == code, found.text
        assert secret not in found.text + found.summary
