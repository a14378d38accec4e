"""Touchstone cases loaded from their text, for tests that import these fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keystone_action.dialects.known import DIALECTS
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load

Write = Callable[..., Path]
HEAD = """id: add
task: {prompt: implement it}
matrix: {harnesses: [echo], models: [m]}
"""
GRADERS = "graders:\n  - {type: command, cmd: 'true'}\n"


@pytest.fixture
def case(write: Write) -> Callable[..., LoadedSpec]:
    """Load a case from its text."""

    def loaded(text: str, **options: Any) -> LoadedSpec:
        return load(write(text, "case.yaml"), CheckTypes(), dialects=DIALECTS, **options)

    return loaded


@pytest.fixture
def errors(case: Callable[..., LoadedSpec], directory: Path) -> Callable[..., list[str]]:
    """The errors of a case as `line:column: sentence`, `harnesses.yaml:` before those of that file."""

    def found(text: str, **options: Any) -> list[str]:
        with pytest.raises(SpecError) as caught:
            case(text, **options)
        assert caught.value.exit_code == 2
        lines = [f"{one.path}:{one.line}:{one.column}: {one.sentence}" for one in caught.value.diagnostics]
        return [line.replace(f"{directory}/case.yaml:", "").replace(f"{directory}/", "") for line in lines]

    return found
