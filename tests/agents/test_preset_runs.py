"""Agents of presets as runs: what their program finds, and what is said when it is missing."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.context import kept
from support.worlds import world_of

from keystone_action.agents.program import AgentCall, agent_environment, write_inputs
from keystone_action.agents.run import call_agent
from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.gateway.upstreams import ModelAddress, agent_variables
from keystone_action.spec.models.agents import PresetAgent

pytestmark = pytest.mark.sandbox

WORTHLESS = "keystone-worthless-key-of-the-cell"
ADDRESSES = {name: ModelAddress(f"http://127.0.0.1:9/{name}", WORTHLESS) for name in ("anthropic", "openai", "gemini")}

TELLS = """#!/bin/sh
printf '%s\\n' "$@" > arguments
env > variables
cat > prompt
find "$HOME" -type f | sed "s,$HOME/,," | sort > home
cat "$HOME/.gemini/settings.json" > settings 2> /dev/null
exit 3
"""
"""A program that writes down what it was given."""


@dataclass
class Played:
    """files: of the workspace afterwards."""

    run: AgentRun
    files: dict[str, str]


def play(
    agent: PresetAgent,
    program: str = "",
    *,
    prompt: str = "do it",
    deny_provider_tools: bool = False,
    addresses: Mapping[str, ModelAddress] = ADDRESSES,
) -> Played:
    """Run it to its end. program: the text of `./program` in its workspace."""
    return kept().call(_play(agent, program, prompt, deny_provider_tools, addresses))


async def _play(
    agent: PresetAgent, program: str, prompt: str, deny_provider_tools: bool, addresses: Mapping[str, ModelAddress]
) -> Played:
    async with world_of(await kept().sandboxes()) as world:
        inputs = write_inputs(world.area / "task", prompt, agent, bytes)
        world.workspace.mkdir()
        (world.workspace / "program").write_text(program)
        (world.workspace / "program").chmod(0o755)
        sandbox = await world.open(inputs.directory)
        environment = agent_environment(
            prompt=prompt,
            prompt_file=inputs.prompt_file,
            workspace=sandbox.workspace_inside,
            model_variables=agent_variables(addresses, {name: name for name in addresses}),
            agent_env=agent.env,
        )
        task = AgentCall(
            prompt=prompt,
            environment=environment,
            inputs=inputs,
            gateways=addresses,
            deny_provider_tools=deny_provider_tools,
        )
        try:
            run = await call_agent(agent, sandbox, task)
            return Played(run, {path.name: path.read_text() for path in world.workspace.iterdir() if path.is_file()})
        finally:
            await sandbox.close()


def test_a_program_gets_its_arguments_the_prompt_and_its_variables() -> None:
    agent = PresetAgent(type="claude-code", binary="./program", model="m-1", args=["--x"], env={"MCP_TIMEOUT": "7"})
    found = play(agent, TELLS, prompt="do it\n")
    assert found.run.exit_code == 3
    assert found.files["arguments"].splitlines()[-2:] == ["--model=m-1", "--x"]
    assert found.files["prompt"] == "do it\n"
    variables = dict(line.partition("=")[::2] for line in found.files["variables"].splitlines())
    assert variables["IS_SANDBOX"] == "1"
    assert variables["MCP_TIMEOUT"] == "7"  # the spec's word is the last
    assert variables["ANTHROPIC_API_KEY"] == WORTHLESS
    assert found.files["home"] == ""


def test_files_of_a_preset_are_in_its_home_and_the_user_s_own() -> None:
    append = TELLS + 'echo more >> "$HOME/.gemini/settings.json"\n'
    for denies in (False, True):
        agent = PresetAgent(type="gemini", binary="./program")
        found = play(agent, append, deny_provider_tools=denies)
        assert found.files["home"] == ".gemini/settings.json\n"
        assert ("google_web_search" in found.files["settings"]) is denies
        assert (found.run.exit_code, found.run.stderr) == (3, "")


def test_what_mini_prints_for_people_is_apart_from_its_trajectory() -> None:
    program = """#!/bin/sh
echo for people
while [ "$1" != --output ]; do shift; done
printf '{"info": {}}' > "$2"
exit 5
"""
    agent = PresetAgent(type="mini-swe-agent", binary="./program", model="openai/gpt-5")
    found = play(agent, program)
    assert (found.run.stdout, found.run.stderr, found.run.exit_code) == ('{"info": {}}', "for people\n", 5)


def test_a_program_that_is_missing_is_named_with_how_to_install_it() -> None:
    with pytest.raises(HarnessError) as error:
        play(PresetAgent(type="mini-swe-agent", model="openai/gpt-5", env={"PATH": "/usr/bin"}))
    assert error.value.message == "mini-swe-agent: its program mini is not in this sandbox"
    assert error.value.help.startswith("with `base:`, use an image that has it or install it by setup.commands: `pip")
    assert "install it on this machine: `pip install mini-swe-agent 'litellm[mcp]'`" in error.value.help
    assert "resources.readable" in error.value.help


def test_a_program_that_the_sandbox_hides_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "gemini")
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with pytest.raises(HarnessError, match=re.escape(str(program))) as error:
            play(PresetAgent(type="gemini", env={"PATH": "/nowhere"}))
    assert "resources.readable" in error.value.help


def test_a_binary_that_is_missing_is_named_by_the_spec_s_word() -> None:
    with pytest.raises(HarnessError, match="Codex: its program tools/codex is not in this sandbox"):
        play(PresetAgent(type="codex", binary="tools/codex"))


def test_without_a_gateway_nothing_is_started() -> None:
    with pytest.raises(HarnessError, match=r"Codex needs the provider openai; gateway\.providers has none"):
        play(PresetAgent(type="codex", binary="./program"), TELLS, addresses={})


@pytest.mark.parametrize("version", [None, "latest", "0.169.0"])
def test_a_program_of_the_version_that_the_spec_names_is_started(version: str | None) -> None:
    program = '#!/bin/sh\n[ "$1" = --version ] && echo "codex-cli 0.169.0" && exit\nexit 4\n'
    found = play(PresetAgent(type="codex", binary="./program", version=version), program)
    assert found.run.exit_code == 4


@pytest.mark.parametrize(("printed", "found"), [("codex-cli 0.170.1", "0.170.1"), ("no", "of no known version")])
def test_a_program_of_another_version_is_not_started(printed: str, found: str) -> None:
    program = f'#!/bin/sh\n[ "$1" = --version ] || touch started\necho "{printed}"\n'
    with pytest.raises(HarnessError) as error:
        play(PresetAgent(type="codex", binary="./program", version="0.169.0"), program)
    assert error.value.message == f"Codex: agent.version is 0.169.0, and ./program here is {found}"
    assert error.value.help == "Install that one: `npm install --global @openai/codex@0.169.0`."
