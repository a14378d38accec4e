"""Every example of docs/checks through the real command: the agent that passes, and the one that fails."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.command_line import NO_ENGINE, ROOT, Called, keystone
from support.local_index import pytest_index
from support.model_server import ModelServer, says
from support.page_examples import PAGES, VARIANTS, Variant, examples, fits, page, sections

from keystone_action.invariants.registry import ALIASES

STAND_IN = ROOT / "tests" / "data" / "embedding_package"
NEEDS_PYTEST = "setup: {packages: [pytest]}"
"""What a page says whose sandbox needs pytest; here pip gets it from a server of ours."""
NEEDS_EMBEDDINGS = "type: similarity"
EXAMPLES = [
    (path.stem, heading, name)
    for path in sorted(PAGES.glob("*.md"))
    for heading, variants in examples(path.read_text("utf-8")).items()
    for name in variants
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pytest_index(tmp_path_factory.mktemp("index")) as environment:
        yield environment


def run(variant: Variant, directory: Path, index: dict[str, str]) -> Called:
    variant.write(directory)
    spec = directory / "keystone.yaml"
    environment = "".join(f', {name}: "{value}"' for name, value in index.items())
    given = f"{NEEDS_PYTEST[:-1]}, env: {{{environment[2:]}}}}}"
    spec.write_text(spec.read_text("utf-8").replace(NEEDS_PYTEST, given), "utf-8")
    environ = NO_ENGINE
    if NEEDS_EMBEDDINGS in spec.read_text("utf-8"):
        environ = {**NO_ENGINE, "PYTHONPATH": os.pathsep.join([str(ROOT), str(STAND_IN)])}
    with ExitStack() as stack:
        if variant.judge is not None:
            environ |= stack.enter_context(ModelServer([says(variant.judge)])).environ()
        return keystone("run", "keystone.yaml", "--output", "out", directory=directory, environ=environ)


@pytest.mark.parametrize(("check_type", "heading", "name"), EXAMPLES, ids=map("-".join, EXAMPLES))
def test_an_example(check_type: str, heading: str, name: str, tmp_path: Path, index: dict[str, str]) -> None:
    text = page(check_type)
    variant = examples(text)[heading][name]
    called = run(variant, tmp_path, index)
    assert called.code == VARIANTS[name], called.out + called.err
    (entry,) = (one for one in called.checks.values() if ALIASES.get(one["type"], one["type"]) == check_type)
    assert entry["status"] == {"Passes": "pass", "Fails": "fail"}[name], entry
    assert variant.message is not None
    assert fits(variant.message, entry["message"]), entry["message"]
    assert set(entry["details"]) <= documented(text), "## Details has to name each of them"


def documented(text: str) -> set[Any]:
    """The keys that a page says `details` can have."""
    return set(re.findall(r"`(\w+)`", dict(sections(text, "## "))["Details"]))


def test_every_page_has_an_example_that_is_run() -> None:
    assert {check_type for check_type, _, _ in EXAMPLES} == {path.stem for path in PAGES.glob("*.md")} - {"README"}


def test_the_invariant_that_is_explained_is_one(tmp_path: Path) -> None:
    (fragment,) = re.findall(r"^```yaml\n(.*?)^```", (PAGES / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "test_slug.py").write_text("def test_it(): pass\n")
    (tmp_path / "keystone.yaml").write_text(
        f"version: 1\nid: explained\ntask: {{prompt: do it}}\nagent: {{type: none}}\n{fragment}"
    )
    called = keystone("validate", "keystone.yaml", directory=tmp_path, environ=NO_ENGINE)
    assert called.code == 0, called.err
