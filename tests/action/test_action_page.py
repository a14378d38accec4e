"""docs/action.md: its tables are those of action.yml, and its example of a key works."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from support.fake_runner import ROOT, FakeRunner

from tools.action_page import PAGE, rewritten

TEXT = PAGE.read_text("utf-8")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_tables_are_up_to_date() -> None:
    assert rewritten(TEXT, ACTION) == TEXT, "run: python -m tools.action_page"


def test_an_input_with_the_signs_of_a_table_stays_in_its_cell() -> None:
    page = rewritten(TEXT, {"inputs": {"a": {"description": "x | y\n<b>", "default": "1"}}, "outputs": {}})
    assert "| `a` | `1` | x \\| y &lt;b> |\n" in page


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
