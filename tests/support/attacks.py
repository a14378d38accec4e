"""What marks a test as an attack that the product holds off, or as the honest twin of one.

`make hostile` runs them all and prints them as one table: attack × sandbox → held off, by which mechanism.
"""

from __future__ import annotations

from typing import Literal

import pytest

Kind = Literal["process", "docker", "both", "none"]
"""The sandbox that the attack runs in; `none` where none takes part (pull requests, reports)."""


def hostile(family: str, what: str, *, held_by: str, sandbox: Kind = "process") -> pytest.MarkDecorator:
    """An attack. family, what: the row of the table, in a few words; held_by: the mechanism that holds it off."""
    return pytest.mark.hostile(family=family, what=what, held_by=held_by, sandbox=sandbox)


def honest(family: str, *attacks: str, sandbox: Kind = "process") -> pytest.MarkDecorator:
    """The twin of the attacks of these names: somebody who does the like in good faith, and is not held off."""
    return pytest.mark.honest(family=family, attacks=attacks, sandbox=sandbox)
