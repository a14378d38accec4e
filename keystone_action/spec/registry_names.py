"""Names of image registries, as both front doors take them."""

from __future__ import annotations

import re

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_PORT = r":[0-9]{1,5}"
_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_REGISTRY = re.compile(rf"(?:localhost(?:{_PORT})?|{_HOST}(?:\.{_HOST})+(?:{_PORT})?|{_HOST}{_PORT})(?:/{_PART})*")
"""As the engine tells a registry from a user of Docker Hub: by a dot, a port, or `localhost`."""


def parse_mirror(text: str) -> str | None:
    """`https://mirror.example:5000/hub/` → `mirror.example:5000/hub`; None = that is not a registry."""
    name = without_scheme(text)
    return name if _REGISTRY.fullmatch(name) else None


def without_scheme(text: str) -> str:
    """A registry as image names begin with it. Whether it speaks HTTPS, the engine finds out."""
    return re.sub(r"^https?://|/+$", "", text)
