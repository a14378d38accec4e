"""docs/http-agents.md: each spec on it is one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.check_types import CHECKS

from keystone_action.spec.agent_service import agent_service, is_elsewhere
from keystone_action.spec.loading.loaded_spec import LoadedSpec

PAGE = (Path(__file__).parents[2] / "docs" / "http-agents.md").read_text("utf-8")
ELSEWHERE, CONTAINER = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
HEAD = "version: 1\nid: sample\ntask: {prompt: do it}\nsecrets: [AGENT_TOKEN]\nparallelism: {matrix: {tag: [a]}}\n"


@pytest.mark.parametrize(
    ("block", "service", "elsewhere"),
    [(ELSEWHERE, None, True), (CONTAINER, "support", False)],
    ids=["elsewhere", "own"],
)
def test_each_block_completes_a_spec(
    load_text: Callable[..., LoadedSpec], block: str, service: str | None, elsewhere: bool
) -> None:
    spec = load_text(HEAD + block + CHECKS).spec
    assert (agent_service(spec, spec.agent, {}), is_elsewhere(spec, spec.agent)) == (service, elsewhere)
