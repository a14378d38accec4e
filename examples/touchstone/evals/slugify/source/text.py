"""Texts for addresses."""

import re


def slugify(title: str) -> str:
    """The title in lower case, every run of anything but a-z and 0-9 as one dash, none at its ends."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
