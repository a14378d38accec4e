"""Specs written into a directory of their own, as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.check_types import TYPES

from keystone_action.dialects.known import DIALECTS
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A repository of the author's."""
    (tmp_path / ".git").mkdir()
    return tmp_path


@pytest.fixture
def write(directory: Path) -> Callable[..., Path]:
    """Write a file into the repository; `write(text)` writes the spec."""

    def writer(content: str | bytes, name: str = "keystone.yaml") -> Path:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return writer


@pytest.fixture
def load_text(write: Callable[..., Path]) -> Callable[..., LoadedSpec]:
    """Load a spec from its text."""

    def loader(text: str, **options: Any) -> LoadedSpec:
        return load(write(text), TYPES, dialects=DIALECTS, **options)

    return loader


@pytest.fixture
def errors_of(load_text: Callable[..., LoadedSpec], directory: Path) -> Callable[..., list[str]]:
    """The errors of a spec as `line:column: sentence`."""
    from keystone_action.spec.loading.diagnostics import SpecError

    def errors(text: str, **options: Any) -> list[str]:
        with pytest.raises(SpecError) as caught:
            load_text(text, **options)
        assert caught.value.exit_code == 2
        shown = [f"{one.line}:{one.column}: {one.sentence}" for one in caught.value.diagnostics]
        return [line.replace(str(directory), "<here>") for line in shown]

    return errors
