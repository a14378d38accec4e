"""The page on the gateway: its examples load, and its numbers are those of the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.check_types import CHECKS

from keystone_action.gateway import answer_copy, application, request, request_body, server, upstreams
from keystone_action.spec.loading.loaded_spec import LoadedSpec

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text("utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_loads(example: str, load_text: Callable[..., LoadedSpec]) -> None:
    agent = "agent: {type: command, command: [run]}"
    loaded = load_text(f"version: 1\nid: sample\ntask: {{prompt: do it}}\n{agent}\n{example}\n{CHECKS}")
    assert loaded.spec.model_gateway is not None


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("a head of more than {} KiB", server.HEAD_LIMIT >> 10),
        ("more than {} s for a head", server.HEAD_SECONDS),
        ("more than {} s for a body", request.BODY_SECONDS),
        ("sends more than {} MiB, or", request.BODY_LIMIT >> 20),
        ("or more than {:,} values", request_body.MARKS_LIMIT),
        ("sends more than {} MiB in one piece", answer_copy.READ_LIMIT >> 20),
        ("a path and query of more than {} KiB", application.TARGET_LIMIT >> 10),
        ("more than {} requests at once", application.AT_ONCE),
        ("connections beyond {}", server.CONNECTIONS),
        ("says nothing for {} minutes", upstreams.SILENT_SECONDS / 60),
        ("does not read for a minute", server.UNREAD_SECONDS / 60),
        ("for up to a minute", application.AFTER_LEAVING_SECONDS / 60),
    ],
)
def test_a_number_is_that_of_the_code(words: str, value: float) -> None:
    assert words.format(int(value)) in PAGE
    assert "{" in words or value == 1
