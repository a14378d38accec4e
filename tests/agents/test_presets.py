"""Presets: each file of data, and what it makes of a spec's agent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.agents.presets.preset import Preset, PresetCommand, load_preset, preset_names, with_preset
from keystone_action.errors import HarnessError
from keystone_action.gateway.upstreams import ModelAddress
from keystone_action.spec.models.agents import PRESET_TYPES, WITHOUT_TURNS, AgentTrace, CommandAgent, PresetAgent

GATEWAYS = {
    "anthropic": ModelAddress("http://127.0.0.1:1/anthropic", "keystone-a"),
    "openai": ModelAddress("http://127.0.0.1:1/openai/v1", "keystone-a"),
    "gemini": ModelAddress("http://127.0.0.1:1/gemini", "keystone-a"),
}
MODELS = {
    "mini-swe-agent": "openai/gpt-5",
    "opencode": "anthropic/claude-opus-4-5",
    "aider": "openai/gpt-5",
    "qwen-code": "gpt-5",
}


def command(
    prompt: Path,
    kind: str,
    text: str = "do it",
    *,
    deny: bool = False,
    gateways: Any = None,
    environment: Mapping[str, str] | None = None,
    **fields: Any,
) -> PresetCommand:
    """What a preset makes of an agent. prompt: where the prompt's file goes."""
    prompt.write_text(text, "utf-8")
    agent = PresetAgent(type=kind, **{"model": MODELS.get(kind), **fields})
    found = GATEWAYS if gateways is None else gateways
    return load_preset(kind).command(
        agent, found, deny_provider_tools=deny, prompt_file=prompt, environment=environment or {}
    )


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    return tmp_path / "prompt.txt"


def test_each_agent_type_is_a_file_and_each_file_an_agent_type() -> None:
    assert preset_names() == tuple(sorted(PRESET_TYPES))


def test_only_agents_that_can_t_go_on_with_a_session_are_refused_turns() -> None:
    assert {kind for kind in preset_names() if load_preset(kind).conversation is None} == set(WITHOUT_TURNS) - {"none"}


@pytest.mark.parametrize("kind", [kind for kind in preset_names() if load_preset(kind).conversation])
def test_a_later_turn_names_its_session_and_no_argument_is_left_open(prompt: Path, kind: str) -> None:
    preset = load_preset(kind)
    talk = preset.conversation
    assert talk is not None
    prompt.write_text("do it")
    given: dict[str, Any] = {
        "deny_provider_tools": False,
        "prompt_file": prompt,
        "environment": {},
        "session": "the-id",
    }
    spec = PresetAgent.model_validate({"type": kind, "model": MODELS.get(kind, "m-1")})
    turns: list[Sequence[str]] = [(), talk.first, talk.next]
    alone, first, later = (preset.command(spec, GATEWAYS, turn=turn, **given).argv for turn in turns)
    assert set(talk.first) <= {one.replace("the-id", "${session}") for one in first}
    assert ("the-id" in " ".join(later)) == (talk.session is not None)
    assert "the-id" not in " ".join(alone)
    for argv in (alone, first, later):
        assert "${" not in " ".join(argv).replace("${name}", "")


SESSIONS: Mapping[str, Sequence[str]] = {
    "claude-code": (".claude/projects/-w/a b\n.jsonl", ".claude/todos/one.json"),
    "codex": (".codex/sessions/2026/11/29/rollout.jsonl",),
    "gemini": (
        ".gemini/projects.json",
        ".gemini/tmp/one/.project_root",
        ".gemini/tmp/one/chats/a b.jsonl",
        ".gemini/tmp/one/tool-outputs/session-1/long.txt",
        ".gemini/tmp/two/chats/c.jsonl",
    ),
    "opencode": (".local/share/opencode/opencode.db", ".local/share/opencode/opencode.db-wal"),
    "aider": ("chat.md",),
    "qwen-code": (".qwen/projects/-w/chats/a b.jsonl",),
}
PLANTED: Mapping[str, Sequence[str]] = {
    "claude-code": (".claude.json", ".claude/settings.json", ".claude/skills/a b/SKILL.md", ".node_modules/sharp.js"),
    "codex": (".codex/config.toml", ".codex/AGENTS.md", ".agents/skills/a/SKILL.md", ".node_libraries/a.js"),
    "gemini": (
        ".gemini/settings.json",
        ".gemini/tmp/bin/rg",
        ".gemini/tmp/one/memory/MEMORY.md",
        ".gemini/tmp/one/memory/skills/a/SKILL.md",
        ".env",
    ),
    "opencode": (".config/opencode/plugin/p.js", ".local/share/opencode/auth.json", ".local/share/opencode/bin/rg"),
    "aider": (".aider.conf.yml", ".env", ".keystone-model.yml"),
    "qwen-code": (".qwen/settings.json", ".qwen/projects/-w/memory/MEMORY.md", ".env"),
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_between_two_turns_the_settings_below_home_go_and_the_sessions_stay(tmp_path: Path, kind: str) -> None:
    talk = load_preset(kind).conversation
    assert talk is not None
    kept = {*SESSIONS[kind], "notes", ".config/mine/notes"}
    for name in (*kept, *PLANTED[kind], ".keystone-sessions/x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for _ in range(2):
        subprocess.run(["sh", "-c", talk.clean_up(load_preset(kind).files)], env={"HOME": str(tmp_path)}, check=True)
        found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
        assert found == {name: name for name in kept}


@pytest.mark.parametrize(("place", "expected"), [("home", ""), ("elsewhere", "1")])
def test_modules_of_home_are_aider_s_only_where_it_is_installed_there(
    tmp_path: Path, prompt: Path, place: str, expected: str
) -> None:
    program = tmp_path / place / "aider"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf %s "$PYTHONNOUSERSITE"\n')
    program.chmod(0o755)
    argv = command(prompt, "aider", binary=str(program)).argv
    environment = {"HOME": str(tmp_path / "home"), "KEYSTONE_PROMPT_FILE": str(prompt), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == expected


@pytest.mark.parametrize("kind", PRESET_TYPES)
@pytest.mark.parametrize("deny", [False, True])
def test_every_name_in_a_file_is_known_and_filled(prompt: Path, kind: str, deny: bool) -> None:
    found = command(prompt, kind, deny=deny, model="openai/gpt-5")
    texts = [*found.argv, *found.environment.values(), *found.home_files.values()]
    assert [text for text in texts if "${" in text] == []
    assert all(not Path(name).is_absolute() and ".." not in Path(name).parts for name in found.home_files)


@pytest.mark.parametrize("kind", PRESET_TYPES)
def test_what_a_spec_says_of_the_program_comes_last_or_in_its_place(prompt: Path, kind: str) -> None:
    found = command(prompt, kind, model="openai/m-1", binary="bin/mine", args=["--more", "than that"])
    assert found.argv[-3:] == ("--model=openai/m-1", "--more", "than that")
    assert "bin/mine" in found.argv
    assert load_preset(kind).program not in found.argv


@pytest.mark.parametrize("kind", PRESET_TYPES)
def test_a_spec_s_own_stdin_and_transcript_win(kind: str) -> None:
    preset, plain = load_preset(kind), PresetAgent(type=kind)
    assert with_preset(plain).trace == preset.trace
    assert with_preset(plain).stdin == preset.stdin
    own = AgentTrace(format="otel", path="spans.jsonl")
    assert with_preset(PresetAgent(type=kind, trace=own)).trace == own
    other = CommandAgent(type="command", command="true")
    assert with_preset(other) is other


def test_claude_code(prompt: Path) -> None:
    found = command(prompt, "claude-code")
    assert found.argv == (
        "claude", "--print", "--output-format=stream-json", "--verbose", "--dangerously-skip-permissions",
        found.argv[-1],
    )  # fmt: skip
    assert json.loads(found.argv[-1].removeprefix("--settings="))["env"]["CLAUDE_CODE_USE_BEDROCK"] == ""
    assert found.environment["IS_SANDBOX"] == found.environment["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert found.environment["MCP_CONNECTION_NONBLOCKING"] == "false"
    assert "--disallowedTools=WebSearch" in command(prompt, "claude-code", deny=True).argv


def test_codex(prompt: Path) -> None:
    found = command(prompt, "codex")
    provider = next(text for text in found.argv if "model_providers" in text)
    assert 'base_url="http://127.0.0.1:1/openai/v1"' in provider
    assert 'wire_api="responses"' in provider
    assert "keystone-a" not in " ".join(found.argv)
    assert found.environment == {"OPENAI_API_KEY": "keystone-a"}
    assert found.argv[-1] == "-"
    assert command(prompt, "codex", deny=True).argv[-1] == '--config=web_search="disabled"'


def test_gemini(prompt: Path) -> None:
    settings = yaml.safe_load(command(prompt, "gemini").home_files[".gemini/settings.json"])
    assert settings["security"]["auth"] == {"selectedType": "gemini-api-key"}
    denied = yaml.safe_load(command(prompt, "gemini", deny=True).home_files[".gemini/settings.json"])
    assert denied == {**settings, "tools": {"exclude": ["google_web_search", "web_fetch"]}}


def test_qwen_code_reads_no_settings(prompt: Path) -> None:
    found = command(prompt, "qwen-code", deny=True)
    assert found.argv[:4] == ("qwen", "--bare", "--include-directories=.", "--auth-type=openai")
    assert "--openai-base-url=http://127.0.0.1:1/openai/v1" in found.argv
    assert not found.home_files
    others = ("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL")
    assert {found.environment[name] for name in others} == {"http://127.0.0.1:1/openai/v1"}
    assert "keystone-a" not in " ".join(found.argv)
    assert "--exclude-tools=web_search" in found.argv
    assert found.environment["NO_PROXY"] == "*"
    proxy = {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "gateway"}
    assert command(prompt, "qwen-code", environment=proxy).environment["NO_PROXY"] == "gateway"


def test_opencode_has_the_addresses_of_what_there_is(prompt: Path) -> None:
    found = command(prompt, "opencode", gateways={"anthropic": GATEWAYS["anthropic"]})
    providers = json.loads(found.environment["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert providers["anthropic"]["options"] == {
        "baseURL": "http://127.0.0.1:1/anthropic/v1",
        "apiKey": "keystone-a",
    }
    assert providers["openai"]["options"] == {"baseURL": "", "apiKey": ""}


@pytest.mark.parametrize("text", ["", "do it\n", "ü 😀 \x7f\x85\u2028 \"'${program}: {a: b}\n\n# no\t", "y" * 300_000])
def test_mini_gets_the_prompt_by_a_file(prompt: Path, text: str) -> None:
    found = command(prompt, "mini-swe-agent", text)
    assert yaml.safe_load(found.home_files[".keystone-task.yaml"]) == {"run": {"task": text}}
    assert max(map(len, found.argv)) < 1000


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_prompt_comes_through_yaml(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "prompt.txt"
    file.write_bytes(text.encode())
    agent = PresetAgent(type="mini-swe-agent", model="openai/gpt-5")
    made = load_preset("mini-swe-agent").command(
        agent, GATEWAYS, deny_provider_tools=False, prompt_file=file, environment={}
    )
    assert yaml.safe_load(made.home_files[".keystone-task.yaml"]) == {"run": {"task": text}}


@pytest.mark.parametrize(
    ("model", "needed"), [("openai/gpt-5", ("openai",)), ("anthropic/claude-opus-4-5", ("anthropic",))]
)
def test_the_model_of_mini_says_which_provider_it_needs(model: str, needed: tuple[str, ...]) -> None:
    assert load_preset("mini-swe-agent").needed(PresetAgent(type="mini-swe-agent", model=model)) == needed


def test_others_need_their_one_provider_whatever_the_model() -> None:
    assert load_preset("codex").needed(PresetAgent(type="codex", model="a/b")) == ("openai",)
    assert load_preset("gemini").needed(PresetAgent(type="gemini")) == ("gemini",)


@pytest.mark.parametrize(
    ("model", "message", "advice"),
    [
        (None, "mini-swe-agent has no model of its own", "Name one: `agent.model: openai/NAME`."),
        (
            "gpt-5",
            "the model gpt-5 of mini-swe-agent names no provider",
            "Write `openai/gpt-5` or `anthropic/gpt-5`.",
        ),
    ],
)
def test_a_model_that_names_no_provider_is_refused(prompt: Path, model: str | None, message: str, advice: str) -> None:
    with pytest.raises(HarnessError) as error:
        command(prompt, "mini-swe-agent", model=model)
    assert (error.value.message, error.value.help) == (message, advice)


def test_a_provider_that_the_gateway_lacks_is_named(prompt: Path) -> None:
    with pytest.raises(HarnessError, match=r"Codex needs the provider openai; gateway\.providers has gemini"):
        command(prompt, "codex", gateways={"gemini": GATEWAYS["gemini"]})


@pytest.mark.parametrize(
    ("kind", "version", "expected"),
    [
        ("claude-code", "2.1.197", "npm install --global @anthropic-ai/claude-code@2.1.197"),
        ("mini-swe-agent", "2.4.6", "pip install mini-swe-agent==2.4.6 'litellm[mcp]'"),
        ("mini-swe-agent", "", "pip install mini-swe-agent 'litellm[mcp]'"),
    ],
)
def test_what_a_person_types_to_install_it(kind: str, version: str, expected: str) -> None:
    assert load_preset(kind).install_command(version) == expected


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("2.1.197 (Claude Code)\n", "2.1.197"),
        ("codex-cli 0.169.0\n", "0.169.0"),
        ("0.61.0", "0.61.0"),
        ("This is mini-swe-agent version 2.4.6.\nCheck the v2", "2.4.6"),
        ("1.0.0-rc.1\n", "1.0.0-rc.1"),
        ("no idea", ""),
    ],
)
def test_the_version_in_what_a_program_prints(printed: str, version: str) -> None:
    assert load_preset("codex").version_in(printed) == version


def test_a_misspelt_key_of_a_file_is_an_error() -> None:
    document = load_preset("codex").model_dump()
    with pytest.raises(ValueError, match="programm"):
        Preset.model_validate({**document, "programm": "codex"})


@pytest.mark.parametrize("deny", [False, True])
def test_skills_that_gemini_brings_along_are_off(prompt: Path, deny: bool) -> None:
    """They stand in its requests in an order that differs from run to run."""
    settings = json.loads(command(prompt, "gemini", deny=deny).home_files[".gemini/settings.json"])
    assert settings["skills"] == {"disabled": ["skill-creator", "antigravity-support"]}
    assert ("tools" in settings) == deny


@pytest.mark.parametrize("kind", [kind for kind in PRESET_TYPES if load_preset(kind).pinned])
def test_variables_that_could_lead_it_elsewhere_are_pinned_to_what_the_agent_has(prompt: Path, kind: str) -> None:
    found = command(prompt, kind, environment={"HTTP_PROXY": "http://proxy:3128"})
    pinned = load_preset(kind).pinned
    assert pinned is not None
    assert found.environment["HTTP_PROXY"] == "http://proxy:3128"
    assert {name for name in pinned.variables if name not in found.environment} == set()
    told = " ".join(found.argv)
    assert ("http://proxy:3128" in told) == bool(pinned.arguments)


def test_aider_s_models_are_all_of_the_provider_that_it_uses(prompt: Path) -> None:
    (settings,) = yaml.safe_load(command(prompt, "aider").home_files[".keystone-model.yml"])
    assert settings["extra_params"]["api_base"] == "http://127.0.0.1:1/openai/v1"
