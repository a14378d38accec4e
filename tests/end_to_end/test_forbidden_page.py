"""docs/forbidden.md: each rule has an example, whose agents do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.command_line import NO_ENGINE, ROOT, keystone
from support.images import PYTHON
from support.page_examples import VARIANTS, examples, fits

from keystone_action.spec.models.policies import Forbidden

PAGE = (ROOT / "docs" / "forbidden.md").read_text("utf-8")
EXAMPLES = examples(PAGE)
CASES = [
    pytest.param(heading, name, marks=[pytest.mark.docker] if "base:" in found[name].files["keystone.yaml"] else [])
    for heading, found in EXAMPLES.items()
    for name in VARIANTS
]


@pytest.mark.parametrize(("heading", "name"), CASES)
def test_an_example_does_what_the_page_says(tmp_path: Path, request: Any, heading: str, name: str) -> None:
    variant = EXAMPLES[heading][name]
    needs_engine = "base:" in variant.files["keystone.yaml"]
    if needs_engine:
        request.getfixturevalue("image")(PYTHON)
    variant.write(tmp_path)
    called = keystone(
        "run", "keystone.yaml", "--output", "out", directory=tmp_path, environ={} if needs_engine else NO_ENGINE
    )
    assert called.code == VARIANTS[name], called.out + called.err
    (cell,) = called.cells
    assert {check["status"] for check in cell["invariants"]} == {"pass"}
    (rule,) = cell["forbidden"]
    assert rule["rule"] == heading.split("`")[1]
    assert rule["violated"] is (name == "Fails")
    if rule["violated"]:
        assert fits(variant.message or "", rule["details"]), rule["details"]


def test_every_rule_is_described() -> None:
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    named = {name for heading in headings for name in re.findall(r"`(\w+)`", heading)}
    rules = set(Forbidden.model_fields)
    assert named == rules
    rows = re.findall(r"^\| (`.*?) \| ", PAGE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= rules
