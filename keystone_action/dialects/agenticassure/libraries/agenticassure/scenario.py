"""What a suite consists of."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from .model import Field, Model, boolean, mapping, number, optional, several, text, whole


class Scenario(Model):
    """One task for the agent."""

    id: str
    name: str
    description: str | None
    input: str
    expected_output: str | None
    expected_tools: list[str] | None
    expected_tool_args: dict[str, Any] | None
    tags: list[str]
    metadata: dict[str, Any]
    scorers: list[str]
    timeout_seconds: float

    fields: ClassVar[dict[str, Field]] = {
        "id": Field(text, lambda: str(uuid.uuid4())),
        "name": Field(text),
        "description": Field(optional(text), None),
        "input": Field(text),
        "expected_output": Field(optional(text), None),
        "expected_tools": Field(optional(several(text)), None),
        "expected_tool_args": Field(optional(mapping), None),
        "tags": Field(several(text), list),
        "metadata": Field(mapping, dict),
        "scorers": Field(several(text), lambda: ["passfail"]),
        "timeout_seconds": Field(number, 30.0),
    }


class SuiteConfig(Model):
    """How a suite is run."""

    fields: ClassVar[dict[str, Field]] = {
        "default_timeout": Field(number, 30.0),
        "retries": Field(whole, 0),
        "default_scorers": Field(several(text), lambda: ["passfail"]),
        "fail_fast": Field(boolean, False),
    }


class Suite(Model):
    """Scenarios that belong together."""

    fields: ClassVar[dict[str, Field]] = {
        "name": Field(text),
        "description": Field(optional(text), None),
        "scenarios": Field(several(Scenario.model_validate), list),
        "tags": Field(several(text), list),
        "config": Field(SuiteConfig.model_validate, SuiteConfig),
    }
