"""Names of images, in `base` and of services."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.check_types import CHECKS, HEAD

from keystone_action.spec.loading.loaded_spec import LoadedSpec

Load = Callable[..., LoadedSpec]
Errors = Callable[..., list[str]]
IMAGES = [
    *(
        "redis",
        "redis:7",
        "library/redis:7-alpine",
        "docker.io/library/postgres:16@sha256:" + "0" * 64,
        "a__b--c/d_e.f",
    ),
    *("localhost:5000/x/y", "127.0.0.1:9/nobody/nothing:1", "[::1]:5000/x", "Mirror.example:5000/hub/python:3.12-slim"),
    *("0123456789ab", "sha256:" + "a" * 64),
]


@pytest.mark.parametrize("image", IMAGES)
def test_names_of_images(load_text: Load, image: str) -> None:
    loaded = load_text(f"{HEAD}base: '{image}'\nservices: [{{name: s, image: '{image}'}}]\n{CHECKS}")
    assert loaded.spec.base == image


@pytest.mark.parametrize("image", ["", "no such", "Redis:7", "redis:", ":7", "/redis", "redis/", "x:a:b", "a\\n", "-x"])
def test_what_is_no_name_of_an_image(errors_of: Errors, image: str) -> None:
    found = errors_of(f'{HEAD}base: "{image}"\nservices: [{{name: s, image: "{image}"}}]\n{CHECKS}')
    assert [line for line in found if "the name of an image, such as python:3.12-slim" in line] == found
    assert len(found) == 2


def test_an_image_may_come_of_an_expression_but_base_may_not(load_text: Load, errors_of: Errors) -> None:
    matrix = "parallelism: {matrix: {v: [1]}}\n"
    services = "services: [{name: s, image: 'redis:{{ params.v }}'}]\n"
    assert load_text(HEAD + matrix + services + CHECKS).warnings == ()
    (error,) = errors_of(f"{HEAD}{matrix}base: 'x:{{{{ params.v }}}}'\n{CHECKS}")
    assert "expressions don't work here" in error
