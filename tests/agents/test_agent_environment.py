"""What the agent finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from keystone_action.agents.program import PROMPT_VARIABLE_LIMIT, agent_environment, service_environment
from keystone_action.errors import HarnessError
from keystone_action.evidence.model import Address

FILE = Path("/task/prompt.txt")


def test_what_there_is_without_anything_else() -> None:
    assert agent_environment(prompt="Do it", prompt_file=FILE, workspace="/w") == {
        "KEYSTONE_PROMPT": "Do it",
        "KEYSTONE_PROMPT_FILE": "/task/prompt.txt",
        "KEYSTONE_WORKSPACE": "/w",
    }


def test_all_there_can_be_and_the_later_wins() -> None:
    found = agent_environment(
        prompt="p",
        prompt_file=FILE,
        workspace="/w",
        agent_directory=Path("/agent"),
        services={"my-db": Address(host="h", port=5432, url="u://h:5432", password="x")},
        seed=2**32 + 7,
        setup_env={"A": "setup", "B": "setup", "KEYSTONE_WORKSPACE": "other"},
        agent_env={"B": "agent"},
    )
    del found["KEYSTONE_PROMPT"], found["KEYSTONE_PROMPT_FILE"]
    assert found == {
        "KEYSTONE_WORKSPACE": "other",
        "KEYSTONE_AGENT_DIR": "/agent",
        "KEYSTONE_SERVICE_MY_DB_HOST": "h",
        "KEYSTONE_SERVICE_MY_DB_PORT": "5432",
        "KEYSTONE_SERVICE_MY_DB_URL": "u://h:5432",
        "KEYSTONE_SEED": "4294967303",
        "PYTHONHASHSEED": "7",
        "A": "setup",
        "B": "agent",
    }


def test_what_a_service_has_not_is_left_out() -> None:
    assert service_environment({"file": Address(url="sqlite:///x")}) == {"KEYSTONE_SERVICE_FILE_URL": "sqlite:///x"}


@pytest.mark.parametrize(
    ("prompt", "there"),
    [
        ("x" * PROMPT_VARIABLE_LIMIT, True),
        ("x" * (PROMPT_VARIABLE_LIMIT + 1), False),
        ("é" * (PROMPT_VARIABLE_LIMIT // 2 + 1), False),
        ("nul\0", False),
    ],
)
def test_a_prompt_that_no_variable_can_hold_is_in_the_file_only(prompt: str, there: bool) -> None:
    found = agent_environment(prompt=prompt, prompt_file=FILE, workspace="/w")
    assert ("KEYSTONE_PROMPT" in found) is there
    assert "KEYSTONE_PROMPT_FILE" in found


@pytest.mark.parametrize(("name", "value"), [("A=B", "x"), ("", "x"), ("A", "a\0b"), ("A\0", "x")])
def test_what_no_process_can_be_given_is_a_sentence(name: str, value: str) -> None:
    with pytest.raises(HarnessError, match="can't be given to a process"):
        agent_environment(prompt="p", prompt_file=FILE, workspace="/w", agent_env={name: value})
