"""Who runs beside whom decides who may have the names of `env`, and whose services are whose own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.check_types import TYPES

from keystone_action.options.model import Options
from keystone_action.runner.shared_services import Neighbours, neighbours_of_specs
from keystone_action.spec.loading.loader import load
from keystone_action.spec.plan import Selection, plan

SPEC = """version: 1
id: {}
task: {{prompt: do it}}
agent: {{type: none}}
parallelism: {{replicas: {}, max_concurrency: {}}}
invariants: {{x: {{check: {{type: file_exists, path: x}}}}}}
"""

ALONE = Neighbours(same_spec=False, other_specs=False, only_cell=True)


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., list[Neighbours]]:
    def of(*specs: tuple[int, int], at_once: int | None = None) -> list[Neighbours]:
        paths = [tmp_path / f"spec-{number}.keystone.yaml" for number in range(len(specs))]
        for path, (replicas, most) in zip(paths, specs, strict=True):
            path.write_text(SPEC.format(path.name.split(".")[0], replicas, most))
        planned = plan([load(path, TYPES) for path in paths], Selection(params={}))
        options = Options.of(specs=(), directory=tmp_path, max_concurrency=at_once)
        return list(neighbours_of_specs(options, planned).values())

    return of


def test_one_spec(found: Callable[..., list[Neighbours]]) -> None:
    assert found((1, 4)) == [ALONE]
    assert found((2, 4)) == [Neighbours(same_spec=True, other_specs=False, only_cell=False)]
    assert (
        found((2, 1)) == found((2, 4), at_once=1) == [Neighbours(same_spec=False, other_specs=False, only_cell=False)]
    )


def test_specs_beside_each_other(found: Callable[..., list[Neighbours]]) -> None:
    beside = Neighbours(same_spec=False, other_specs=True, only_cell=True)
    assert found((1, 2), (1, 2)) == [beside, beside]
    assert found((1, 1), (1, 1)) == found((1, 2), (1, 2), at_once=1) == [ALONE, ALONE]
    assert found((1, 1), (3, 3)) == [beside, Neighbours(same_spec=True, other_specs=False, only_cell=False)]
    assert found((3, 1), (1, 2)) == [Neighbours(same_spec=False, other_specs=True, only_cell=False), beside]
