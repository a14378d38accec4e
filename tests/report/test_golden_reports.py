"""The reports of the samples, byte by byte. After a wanted change: KEYSTONE_UPDATE_GOLDEN=1, then read the diff.

The style sheet and the script of the page are files of their own, the same in each: their names stand for them here.
"""

from __future__ import annotations

import base64
import hashlib
import os
from importlib.resources import files
from pathlib import Path

import pytest
from samples import SAMPLES

from keystone_action.report.page.render import script_text
from keystone_action.report.write import Format, render

GOLDEN = Path(__file__).parent / "golden"
FILES: dict[Format, str] = {"md": "summary.md", "junit": "junit.xml", "html": "report.html", "json": "results.json"}


def with_names(page: str, parts: dict[str, str]) -> str:
    """page with a name for each of its parts that is a file, and for its digest: each is there just once."""
    for name, content in parts.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        for found, shown in ((content, f"/* {name} */"), (digest, f"digest of {name}")):
            assert page.count(found) == 1
            page = page.replace(found, shown)
    return page


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("fmt", FILES)
def test_a_report_is_as_reviewed(name: str, fmt: Format) -> None:
    path = GOLDEN / name / FILES[fmt]
    text = render(SAMPLES[name](), fmt)
    if fmt == "html":
        style = files("keystone_action.report").joinpath("templates", "report.css").read_text("utf-8")
        text = with_names(text, {"report.css": style, "report/*.js": script_text()})
    if os.environ.get("KEYSTONE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode()
