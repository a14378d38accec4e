"""What a suite's modules say of their scorers is data, whatever it is."""

from __future__ import annotations

from typing import Any

import pytest

from keystone_action.runner.preflight import _unknown
from keystone_action.spec.loading.diagnostics import SourcePosition
from keystone_action.spec.loading.loaded_spec import OwnScorers

OWN = OwnScorers(".", ("mine",), {"own": SourcePosition("suite.yaml", 1, 1)})


@pytest.mark.parametrize("names", [5, None, "own", {"own": 1}, [["own"], 3]])
def test_an_answer_that_is_none_registers_nothing(names: Any) -> None:
    (found,) = _unknown(OWN, {"names": names, "replaced": names})
    assert "unknown scorer 'own'" in found.sentence


def test_what_is_registered_is_known() -> None:
    assert list(_unknown(OWN, {"names": ["own", "passfail"], "replaced": []})) == []
    assert list(_unknown(OWN, None)) == []
