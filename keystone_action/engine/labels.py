"""The labels that mark what is ours on an engine, and whose it is: everything of a run is found again by them."""

from __future__ import annotations

RUN = "keystone.run"
KIND = "keystone.kind"
OWNER = "keystone.owner"
"""Which provider of sandboxes made it: a run may have several, for several images."""
SERVICE = "keystone.service"
CELL = "keystone.cell"
SETUP = "keystone.setup"
"""Of an image that is found again: the digest of what made it."""


def labels(run_id: str, kind: str, *, owner: str = "", service: str = "", cell: str = "") -> dict[str, str]:
    """The labels of something that a run makes. kind: `sandbox`, `service`, `network`; the others where they apply."""
    optional = {OWNER: owner, SERVICE: service, CELL: cell}
    return {RUN: run_id, KIND: kind, **{name: value for name, value in optional.items() if value}}
