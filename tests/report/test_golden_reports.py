"""The reports of the samples, byte by byte. After a wanted change: KEYSTONE_UPDATE_GOLDEN=1, then read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from samples import SAMPLES

from keystone_action.report.render import Format, render

GOLDEN = Path(__file__).parent / "golden"
FILES: dict[Format, str] = {"md": "summary.md", "junit": "junit.xml", "html": "report.html", "json": "results.json"}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("fmt", FILES)
def test_a_report_is_as_reviewed(name: str, fmt: Format) -> None:
    path = GOLDEN / name / FILES[fmt]
    text = render(SAMPLES[name](), fmt)
    if os.environ.get("KEYSTONE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode()
