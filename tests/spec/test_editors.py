"""What an editor shows of a spec by our JSON Schema, asked of the language server that editors use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent_clients import installed_from_npm
from support.language_server import LanguageServer, language_server

from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.format_reference import json_schema

pytestmark = pytest.mark.slow
SPEC = """version: 1
id: a
task: {prompt: x}
agent:
  type: command
  command: x
  timeout: 5m
services:
  - name: crm
    type: postgres
    isolation: nonsense
invariants:
  made:
    weight: 2
    check:
      type: file_exists
      path: report.txt
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    folder = tmp_path_factory.mktemp("editor")
    schema = folder / "schema.json"
    schema.write_text(json.dumps(json_schema(CheckTypes())), "utf-8")
    program: Path = installed_from_npm("yaml-language-server", "1.25.0").program
    with language_server(program, schema, folder, SPEC) as found:
        yield found


def shown(server: LanguageServer, word: str) -> str:
    before = SPEC[: SPEC.index(word)]
    return server.hover(before.count("\n"), len(before) - before.rfind("\n"))


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("timeout:", ["How long the agent may run.", "`must_exit_zero`", "Default: `10m`.", "```yaml\n5m\n```"]),
        ("agent:", ["Any program, started by a command line.", "type: command\ncommand: python3 agent.py"]),
        ("isolation:", ["How cells are kept apart.", "Default: `auto`.", "* `container`"]),
        ("weight:", ["How much the check counts", "Default: `1`."]),
        ("type: file_exists", ["Passes when the agent left something at a path"]),
        ("path:", ["What must be there, relative to the workspace."]),
        ("invariants:", ["The checks, each under its name"]),
    ],
)
def test_hovering_over_a_key_shows_what_it_means(server: LanguageServer, word: str, texts: list[str]) -> None:
    found = shown(server, word)
    assert [text for text in texts if text not in found] == [], found
    assert "####" not in found, "a heading would be the name of a class of ours"


def test_a_wrong_value_is_underlined(server: LanguageServer) -> None:
    assert [one for one in server.problems if "isolation" in one or '"auto"' in one], server.problems
