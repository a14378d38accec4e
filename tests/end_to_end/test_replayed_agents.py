"""Known agents, recorded once in front of a model that follows a script, and replayed elsewhere: the provider is gone,
there is no key, and folder, commit, date and kernel are others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent_clients import CLIENTS, Client, image_with
from support.hostile import everything_written
from support.images import BASE
from support.model_agents import REAL_KEY, trace_events
from support.replayed_agents import CONTEXT, LongCommandModel, LongOutputModel, ParallelModel, Project, observed

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
KINDS = ("claude-code", "codex", "gemini", "mini-swe-agent")
AGAIN = {"codex": 10}
"""How often it is replayed, where not twice: the quickest one."""


def require_equal_replays(folder: Path, client: Client, base: str = "") -> None:
    """Recorded once, replayed again and again elsewhere."""
    project = Project(folder / "here" / "project", client, base)
    project.write()
    first = project.record()
    elsewhere = project.elsewhere(folder / "another" / "place" / "clone")
    expected = observed(client.kind, first)
    assert expected["verdict"] == "pass"
    assert "+hello" in expected["diff"]
    for _ in range(AGAIN.get(client.kind, 2)):
        again = elsewhere.replay()
        assert again.code == 0, again.err + again.out
        (cell,) = again.cells
        assert (cell["trace"]["source"], cell["trace"]["replayed"]) == ("gateway", "exact"), cell
        assert observed(client.kind, again) == expected
        assert cell["usage"]["spent_usd"] == 0
    recordings = {str(path): path.read_bytes() for path in (project.folder / "recordings").rglob("*.jsonl")}
    assert len(recordings) == 1
    assert [
        name for name, data in {**recordings, **everything_written(first)}.items() if REAL_KEY.encode() in data
    ] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_process_sandbox(tmp_path: Path, kind: str) -> None:
    require_equal_replays(tmp_path, CLIENTS[kind])


@pytest.mark.docker
@pytest.mark.parametrize("kind", KINDS)
def test_a_container_that_reaches_nothing(tmp_path: Path, kind: str, image: Callable[[str], str]) -> None:
    base = image_with([client.kind for client in CLIENTS.values() if client.command], image(BASE))
    require_equal_replays(tmp_path, CLIENTS[kind], base)


@pytest.mark.parametrize("kind", [*KINDS, "opencode"])
def test_calls_that_are_made_at_once_may_end_in_any_order(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path / "project", CLIENTS[kind])
    project.write()
    first = project.record(ParallelModel)
    calls = [event for event in trace_events(first) if event["type"] == "tool_call"]
    assert len(calls) >= 4
    for _ in range(10):
        again = project.replay()
        assert again.code == 0, again.err + again.out
        assert again.cells[0]["trace"]["replayed"] == "exact"


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_prompt_misses_by_content_and_runs_by_turn(tmp_path: Path, kind: str) -> None:
    """What changes is the file of the project that the agent takes its instructions from, or else the task."""
    project = Project(tmp_path / "project", CLIENTS[kind])
    project.write()
    expected = observed(kind, project.record())
    changed: dict[str, Any] = {} if kind in CONTEXT else {"task": {"prompt": "Write hello.txt in verse."}}
    files = {CONTEXT[kind]: "Answer in verse.\n"} if kind in CONTEXT else {}
    elsewhere = project.elsewhere(tmp_path / "clone", files)
    elsewhere.change(**changed)
    missed = elsewhere.replay()
    (cell,) = missed.cells
    assert (missed.code, cell["verdict"]) == (3, "error")
    assert "no recording for request 1 of recordings/project/project.r0.jsonl: nearest differs at " in cell["error"]
    assert "verse" in cell["error"]
    assert "record anew with --gateway record" in cell["error"]
    elsewhere.change(**changed, gateway={"match": "turn"})
    again = elsewhere.replay()
    assert again.code == 0, again.err + again.out
    (cell,) = again.cells
    assert cell["trace"]["replayed"] == "stale"
    assert any("request 1 differs (turn): " in notice and "verse" in notice for notice in cell["notices"])
    assert observed(kind, again) == expected
    assert elsewhere.replay("--fail-on-stale").code == 1


@pytest.mark.parametrize("kind", ["claude-code", "gemini"])
def test_a_model_asks_for_the_file_in_which_this_run_has_a_long_output(tmp_path: Path, kind: str) -> None:
    """Its path holds ids that the program makes anew in each run. (OpenCode, which does the same, shows a part of a
    long output whose place depends on how fast it came.)"""
    project = Project(tmp_path / "project", CLIENTS[kind])
    project.write()
    project.record(LongOutputModel)
    again = project.elsewhere(tmp_path / "clone").replay()
    assert again.code == 0, again.err + again.out
    assert again.cells[0]["trace"]["replayed"] == "exact"
    results = [event["payload"]["output"] for event in trace_events(again) if event["type"] == "tool_result"]
    assert "39999\n40000" in results[1]  # the file was there


def test_a_model_asks_for_the_rest_of_a_long_command_by_the_number_of_this_run(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", CLIENTS["codex"])
    project.write()
    project.record(LongCommandModel)
    again = project.elsewhere(tmp_path / "clone").replay()
    assert again.code == 0, again.err + again.out
    assert again.cells[0]["trace"]["replayed"] == "exact"
    results = [event["payload"]["output"] for event in trace_events(again) if event["type"] == "tool_result"]
    assert len(results) == 2
    assert results[1].endswith("\nOutput:\nlater\n")
