"""Asking a judge of the scripted server; shared by the judge's tests."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from support.model_server import ModelServer

from keystone_action.judge.judgement import Judgement, JudgeRequest
from keystone_action.judge.jury import ModelJudge

BOTH = pytest.mark.parametrize("model", ["claude-sonnet-4-6", "openai:local-model"])
"""Each of these models takes a temperature."""


def ask(server: ModelServer, *, judged: str = "a haiku of mine", **more: Any) -> Judgement:
    """One judgement by a judge of its own; `notes` collects what it noted."""
    notes = more.pop("notes", [])
    environ = server.environ(**more.pop("environ", {}))
    cache, backoff, purse = more.pop("cache_dir", None), more.pop("backoff", 0.001), more.pop("purse", None)
    judge = ModelJudge(environ, on_note=notes.append, cache_dir=cache, backoff=backoff, purse=purse)
    return anyio.run(judge.judge, JudgeRequest(criteria="Is it good?", judged=judged, **more))
