"""tests/data/every_field: specs that together use every field of the contract, which end_to_end runs in the image. Here
is held that no field is left out, so that a new one needs a spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.every_field import FOLDER, SPECS, WITHOUT_A_SPEC, fields_of_the_contract, fields_used, loaded


@pytest.mark.parametrize("path", SPECS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_each_is_valid_without_a_warning(path: Path) -> None:
    assert loaded(path).warning_sentences == ()


def test_every_field_is_used_but_those_with_a_reason() -> None:
    used = {field for path in SPECS for field in fields_used(loaded(path))}
    excused = {field for fields in WITHOUT_A_SPEC.values() for field in fields}
    assert sorted(fields_of_the_contract() - used - excused) == []
    assert sorted(excused & used) == []
    assert sorted(excused - fields_of_the_contract()) == []
