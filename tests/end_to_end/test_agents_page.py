"""docs/agents.md: its table is that of the presets, and every block of every agent is run: the laptop's with the real
program, those for an image and for the action with one that a stand-in for npm and pip installs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.agent_clients import CLIENTS, installed
from support.command_line import ROOT, keystone
from support.fake_runner import FakeRunner
from support.model_agents import REAL_KEY
from support.page_examples import sections
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import provider

from keystone_action.agents.presets.preset import load_preset, preset_names
from keystone_action.gateway.upstreams import VARIABLES

PAGE = (ROOT / "docs" / "agents.md").read_text("utf-8")
PRICES = "item,price\nbread,3.20\ncoffee,8.45\napples,4.10\ncheese,26.75\n"
ADDS_UP = "awk -F, 'NR > 1 {sum += $2} END {printf \"%.2f\\n\", sum}' prices.csv > total.txt"
EDIT = "total.txt\n```\n<<<<<<< SEARCH\n=======\n42.50\n>>>>>>> REPLACE\n```\n"
"""For an agent without tools, whose model writes edits down."""


def blocks(text: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


SECTIONS = dict(sections(PAGE, "## "))
(TASK,) = blocks(SECTIONS["The task of the examples"])


def blocks_of(name: str) -> list[str]:
    """For a laptop, for an image, for the action."""
    return blocks(SECTIONS[load_preset(name).title])


def lay_out(folder: Path, block: str, more: str = "") -> None:
    (folder / "example").mkdir()
    (folder / "example" / "prices.csv").write_text(PRICES)
    (folder / "keystone.yaml").write_text(TASK + block + more)


def test_the_table_says_what_the_presets_say() -> None:
    shown = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| `([^`]*)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert sorted(shown) == [
        (
            name,
            load_preset(name).program,
            load_preset(name).install_command(),
            " or ".join(f"`{VARIABLES[api][0]}`" for api in load_preset(name).providers),
        )
        for name in preset_names()
    ]


@pytest.mark.parametrize("name", preset_names())
def test_its_blocks_belong_together(name: str) -> None:
    laptop, image, action = map(yaml.safe_load, blocks_of(name))
    assert laptop["agent"]["type"] == name
    assert image["agent"] == laptop["agent"]
    assert image["setup"]["commands"] == [load_preset(name).install_command(load_preset(name).seen)]
    ((variable, secret),) = action[0]["env"].items()
    assert variable == VARIABLES[load_preset(name).providers[0]][0]
    assert secret == f"${{{{ secrets.{variable} }}}}"


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_its_block_for_a_laptop(tmp_path: Path, name: str) -> None:
    client, place = CLIENTS[name], installed(name)
    shown = f"resources: {{readable: ['{place.folder}', '{place.program.parent}']}}\n"
    lay_out(tmp_path, blocks_of(name)[0], shown)
    turns = [client.runs(ADDS_UP), *client.ends] if client.command else [Turn(text=EDIT)]
    with provider(ScriptedModel(turns, offers_tools=client.command is not None).answer) as behind:
        environ = environment(name, behind.url)
        called = keystone("run", "keystone.yaml", "--output", "out", directory=tmp_path, environ=environ)
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["trace"]["source"] == "gateway"


def environment(name: str, url: str) -> dict[str, str]:
    api = load_preset(name).providers[0]
    key, base = VARIABLES[api]
    return {key: REAL_KEY, base: url + ("/v1" if api == "openai" else "")}


@pytest.mark.docker
@pytest.mark.parametrize("name", preset_names())
def test_its_blocks_for_an_image_and_for_the_action(tmp_path: Path, name: str, agent_installers: str) -> None:
    _, block, action = blocks_of(name)
    (step,) = yaml.safe_load(action)
    with provider(ScriptedModel([Turn(text="Done.")]).answer) as behind:
        environ = environment(name, behind.url)
        (key,) = step["env"]
        for given, code in ((environ[key], 0), ("", 3)):
            (tmp_path / str(code)).mkdir()
            runner = FakeRunner(tmp_path / str(code))
            base = yaml.safe_load(block)["base"]
            lay_out(runner.workspace, block.replace(f"base: {base}", f"base: {agent_installers}"))
            found = runner.step(step.get("with", {}), env={**environ, key: given})
            assert found.exit_code == code, found.text
            written = b"".join(path.read_bytes() for path in runner.workspace.rglob("*") if path.is_file())
            assert REAL_KEY.encode() not in written + (found.text + found.summary).encode()
            asked = [one.header(name) for one in behind.asked for name, _ in one.headers]
            assert len(behind.asked) == 1
            assert {REAL_KEY, f"Bearer {REAL_KEY}"} & set(asked)
    assert "is not set" in found.text
