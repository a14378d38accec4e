"""Known agents that are told three things in a row, recorded once in front of a model that follows a script, and
replayed elsewhere without it and without a key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent_clients import CLIENTS, image_with
from support.images import BASE
from support.model_agents import trace_events
from support.replayed_agents import TURNS, ConversationModel, Project, require_equal_turns

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
TASK: dict[str, Any] = {"prompt": "Write hello.txt.", "turns": list(TURNS)}
ALONE: dict[str, Any] = {"check": {"type": "diff", "only": ["hello.txt"]}}
WRITTEN: dict[str, Any] = {
    "task": TASK,
    "invariants": {
        "written": {"check": {"type": "file_content", "path": "hello.txt", "pattern": "^hello\nagain\n$"}},
        "alone": ALONE,
    },
}
ANSWERS = "Written.\nIt says hello.\nAdded."


@pytest.mark.parametrize("kind", ["claude-code", "codex", "gemini", "opencode", "qwen-code"])
def test_three_turns_of_one_session(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path / "here" / "project", CLIENTS[kind])
    project.write(**WRITTEN)
    first = project.record(ConversationModel)
    (cell,) = first.cells
    assert cell["agent"]["output"].strip() == ANSWERS
    told = [event["turn"] for event in trace_events(first) if "turn" in event]
    assert set(told) == {1, 2, 3}
    assert told == sorted(told)
    assert not [notice for notice in cell["notices"] if "the agent's own transcript" in notice], cell["notices"]
    require_equal_turns(kind, first, project.elsewhere(tmp_path / "another" / "place" / "clone"))


def test_a_changed_turn_misses_by_content_and_runs_by_turn(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", CLIENTS["codex"])
    project.write(**WRITTEN)
    project.record(ConversationModel)
    project.change(task={**TASK, "turns": [TURNS[0], "Add a line in verse."]})
    missed = project.replay()
    (cell,) = missed.cells
    assert (missed.code, cell["verdict"]) == (3, "error")
    assert "verse" in cell["error"]
    assert cell["prompts"] == [TASK["prompt"], TURNS[0], "Add a line in verse."]
    project.change(gateway={"match": "turn"})
    again = project.replay()
    assert again.code == 0, again.err + again.out
    assert again.cells[0]["trace"]["replayed"] == "stale"


@pytest.mark.docker
def test_three_turns_in_a_container_that_reaches_nothing(tmp_path: Path, image: Callable[[str], str]) -> None:
    base = image_with([client.kind for client in CLIENTS.values() if client.command], image(BASE))
    project = Project(tmp_path / "project", CLIENTS["codex"], base)
    project.write(**WRITTEN)
    require_equal_turns("codex", project.record(ConversationModel), project)
