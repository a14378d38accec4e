"""What all tests share. Its place makes `tests/` importable: helpers are `support.…`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.agent_installers import agent_installers
from support.docker_engine import engine
from support.images import image
from support.kept_runs import kept_runs
from support.pytest_packages import packages
from support.tiers import mark_tiers, may_have, require_words, start_long_tests_first

__all__ = ["agent_installers", "engine", "image", "kept_runs", "packages"]

# A slow machine is not a defect: hypothesis' own time limits would be timing assertions.
settings.register_profile("few", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)
settings.register_profile("many", settings.get_profile("few"), max_examples=200)
settings.load_profile("few")


def pytest_unconfigure() -> None:
    """Sandboxes that checks shared end while threads can still be started."""
    if "support.context" in sys.modules:
        sys.modules["support.context"].kept().close()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Each worker imports what it collects, and rewrites its asserts: of all files, 30 s of a processor."""
    expression = config.getoption("markexpr")
    return True if expression and collection_path.is_file() and not may_have(collection_path, expression) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    mark_tiers(items)  # first: `-m` chooses by the marks
    require_words(items)
    yield
    if worker := getattr(config, "workerinput", None):
        start_long_tests_first(items, worker["workercount"])
