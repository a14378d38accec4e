"""Addresses that a report may lead to: plain ones, made by us of the runner's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

_URL = re.compile(r"https?://[A-Za-z0-9.:-]+(?:/[A-Za-z0-9._~%-]+)*")


def safe_link(url: str) -> Markup | None:
    """An address that a link may have; None for anything else."""
    from markupsafe import Markup

    return Markup(url) if _URL.fullmatch(url) else None  # noqa: S704 - checked just here


def safe_links(links: Mapping[str, str] | None) -> dict[str, Markup]:
    """Those of several addresses that a link may have."""
    checked = {name: safe_link(url) for name, url in (links or {}).items()}
    return {name: url for name, url in checked.items() if url is not None}
