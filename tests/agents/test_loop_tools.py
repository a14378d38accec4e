"""The tools of the tool loop, in a real sandbox: what the model is told of each call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.context import kept
from support.worlds import world_of

from keystone_action.agents.loop_models import CallOutcome, RequestedCall
from keystone_action.agents.loop_tools import FORMS, RESULT_LIMIT, AgentAtLimit, LoopTools
from keystone_action.system.command import CommandLimits, Completed

pytestmark = pytest.mark.sandbox

Call = tuple[str, Any]


def use(*calls: Call, names: Sequence[str] = tuple(FORMS), limits: CommandLimits | None = None) -> list[CallOutcome]:
    """The results of calls, one after the other in one sandbox."""
    return kept().call(_use(calls, names, limits or CommandLimits(), {}))


async def _use(
    calls: Sequence[Call], names: Sequence[str], limits: CommandLimits, environment: Mapping[str, str]
) -> list[CallOutcome]:
    async with world_of(await kept().sandboxes()) as world:
        world.workspace.mkdir()
        sandbox = await world.provider.open(world.workspace, limits=limits)
        try:
            tools = LoopTools(names, sandbox, environment)
            return [await tools.call(RequestedCall("1", name, given)) for name, given in calls]
        finally:
            await sandbox.close()


def test_what_a_command_prints_and_how_it_ended() -> None:
    found = use(
        ("bash", {"command": "echo out; echo err >&2; echo more"}),
        ("bash", {"command": "cd /; export A=1; exit 7"}),
        ("bash", {"command": 'echo "$A"; [[ $PWD == */workspace ]] && basename "$PWD"'}),
        ("bash", {"command": "true"}),
        ("bash", {"command": "kill -9 $$"}),
        ("bash", {"command": "echo before; sleep 60", "timeout": 1}),
        ("bash", {"command": "cat"}),
    )
    assert found == [
        CallOutcome("out\nerr\nmore"),
        CallOutcome("[exit code 7]", is_error=True),
        CallOutcome("\nworkspace"),
        CallOutcome("(no output)"),
        CallOutcome("[ended by signal 9]", is_error=True),
        CallOutcome("before\n[ended after 1 s: it took longer than its timeout]", is_error=True),
        CallOutcome("(no output)"),
    ]


def test_what_runs_in_the_background_ends_with_its_call() -> None:
    first, second = use(
        ("bash", {"command": "(setsid sh -c 'sleep 60; touch late' & ) ; sleep 60 & echo $! > pid; echo started"}),
        ("bash", {"command": "kill -0 $(cat pid) 2>/dev/null && echo alive || echo gone"}),
    )
    assert first == CallOutcome("started")
    assert second == CallOutcome("gone")


def test_files_are_written_read_and_edited() -> None:
    text = "first\nsecond ü\nthird\n"
    found = use(
        ("write", {"path": "a/b/one.txt", "content": text}),
        ("read", {"path": "a/b/one.txt"}),
        ("read", {"path": "a/b/one.txt", "offset": 2, "limit": 1}),
        ("bash", {"command": "chmod 755 a/b/one.txt"}),
        ("edit", {"path": "a/b/one.txt", "old_text": "second ü\nth", "new_text": "2nd\nTh"}),
        ("bash", {"command": "cat a/b/one.txt; stat -c %a a/b/one.txt"}),
        ("write", {"path": "-n", "content": "no option"}),
        ("read", {"path": "-n"}),
        ("write", {"path": "empty", "content": ""}),
        ("read", {"path": "empty"}),
        ("edit", {"path": "-n", "old_text": "no ", "new_text": ""}),
        ("read", {"path": "./-n"}),
        ("write", {"path": "$(touch x)`touch y`; touch z", "content": "1"}),
        ("bash", {"command": "ls | sort"}),
    )
    assert [one.text for one in found] == [
        "a/b/one.txt was written",
        text,
        "second ü\n",
        "(no output)",
        "a/b/one.txt was changed",
        "first\n2nd\nThird\n755",
        "-n was written",
        "no option",
        "empty was written",
        "(nothing)",
        "-n was changed",
        "option",
        "$(touch x)`touch y`; touch z was written",
        "$(touch x)`touch y`; touch z\n-n\na\nempty",
    ]
    assert not any(one.is_error for one in found)


@pytest.mark.parametrize(("call", "said"), [
    (("nothing", {}), "there is no tool 'nothing'; there is bash, read, write, edit"),
    (("x" * 10_000, {}), f"there is no tool {'x' * 100!r}; there is"),
    (("bash", None), "the arguments are not a JSON object"),
    (("bash", {}), "expected a text for command, found nothing"),
    (("bash", {"command": ["ls"]}), "expected a text for command, found list"),
    (("bash", {"command": ""}), "command is empty"),
    (("bash", {"command": "a\0b"}), "command has a NUL character"),
    (("bash", {"command": "echo \ud800"}), "command has half a character"),
    (("bash", {"command": "x" * 200_000}), "command has 200,000 bytes, of 102,400 that are taken"),
    (("bash", {"command": "ls", "timeout": "1"}), "expected a whole number from 1 to 600 for timeout"),
    (("bash", {"command": "ls", "timeout": True}), "expected a whole number"),
    (("bash", {"command": "ls", "timeout": 0}), "expected a whole number"),
    (("bash", {"command": "ls", "timeout": 1e308}), "expected a whole number"),
    (("read", {"path": "nothing.txt"}), "nothing.txt"),
    (("read", {"path": "."}), ". is a directory"),
    (("read", {"path": "a\0b"}), "path has a NUL character"),
    (("read", {"path": "x" * 5000}), "path has 5,000 bytes"),
    (("read", {"path": "a", "offset": 0}), "expected a whole number from 1"),
    (("read", {"path": "/etc/shadow"}), "Permission denied"),
    (("write", {"path": "a"}), "expected a text for content"),
    (("write", {"path": "a", "content": "x" * (10 << 20)}), "content has 10,485,760 bytes, of 4,194,304"),
    (("write", {"path": "/etc/keystone-test", "content": "x"}), "Permission denied"),
    (("write", {"path": "../../outside", "content": "x"}), "ermission denied"),
    (("write", {"path": ".", "content": "x"}), "irectory"),
    (("edit", {"path": "a", "old_text": "", "new_text": "x"}), "old_text is empty"),
    (("edit", {"path": "nothing.txt", "old_text": "a", "new_text": "x"}), "nothing.txt"),
])  # fmt: skip
def test_a_call_that_can_not_be_made_has_an_error_for_its_result(call: Call, said: str) -> None:
    (found,) = use(call)
    assert found.is_error
    assert said in found.text


def test_an_edit_wants_its_text_exactly_once() -> None:
    found = use(
        ("write", {"path": "a", "content": "one one\n"}),
        ("edit", {"path": "a", "old_text": "one", "new_text": "two"}),
        ("edit", {"path": "a", "old_text": "three", "new_text": "two"}),
        ("bash", {"command": "head -c 3000000 /dev/zero > large"}),
        ("edit", {"path": "large", "old_text": "a", "new_text": "b"}),
        ("read", {"path": "a"}),
    )
    assert [one.text for one in found] == [
        "a was written",
        "a was not changed: the old text is there 2 times; take more of its surroundings along",
        "a was not changed: the old text is not there",
        "(no output)",
        "large is too long to be edited (3,000,000 bytes); use another tool",
        "one one\n",
    ]


def test_a_long_output_is_cut_and_that_is_said() -> None:
    printed, zeros, read = use(
        ("bash", {"command": "seq 1 1000000"}),
        ("bash", {"command": "head -c 100000 /dev/zero"}),
        ("read", {"path": "/proc/self/status", "limit": 1}),
    )
    assert printed.text.startswith("1\n2\n")
    assert printed.text.endswith("\n999999\n1000000")
    assert "characters cut …]" in printed.text
    assert len(printed.text) < RESULT_LIMIT + 100
    assert zeros.text.count("\0") == RESULT_LIMIT
    assert read.text.startswith("Name:")


def test_only_the_tools_that_the_spec_names_are_there() -> None:
    found = use(("bash", {"command": "ls"}), ("read", {"path": "a"}), names=("read",))
    assert found[0] == CallOutcome("there is no tool 'bash'; there is read", is_error=True)
    assert use(("bash", {"command": "ls"}), names=()) == [
        CallOutcome("there is no tool 'bash'; there is none", is_error=True)
    ]


def test_a_limit_of_the_sandbox_ends_the_agent() -> None:
    with pytest.raises(AgentAtLimit, match=r"^disk: "):
        use(("bash", {"command": "head -c 50000000 /dev/zero > f; sleep 30"}), limits=CommandLimits(disk=10 << 20))


def test_each_tool_has_a_schema_that_names_its_arguments() -> None:
    for form in FORMS.values():
        json.dumps(form.schema)
        assert set(form.schema["required"]) <= set(form.schema["properties"])
        assert all(one["description"].endswith(".") for one in form.schema["properties"].values())


def test_each_process_that_ended_is_told() -> None:
    told: list[Completed] = []

    async def run() -> None:
        async with world_of(await kept().sandboxes()) as world:
            sandbox = await world.open()
            try:
                tools = LoopTools(("bash",), sandbox, {}, lists_processes=True, ended=told.append)
                await tools.call(RequestedCall("1", "bash", {"command": "sleep 0.2; true"}))
            finally:
                await sandbox.close()

    kept().call(run())
    (one,) = told
    assert any("sleep" in str(seen) for seen in one.processes)
