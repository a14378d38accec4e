"""docs/spec.md: what is made of the models is what they say now, and every field has a place of its own to link to."""

from __future__ import annotations

import re
from inspect import get_annotations
from pathlib import Path
from typing import Any, cast

import pytest
from support.command_line import run_spec
from support.field_examples import places

from keystone_action.errors import UsageError
from keystone_action.services.mysql.service import DEFAULT_IMAGE, Mysql
from keystone_action.services.service import Surroundings
from keystone_action.spec.models.fields import StrictModel
from keystone_action.spec.models.services import MysqlService
from keystone_action.spec.models.spec import Spec
from tools.check_pages import check_types
from tools.spec_page import PAGE, page, sections

TEXT = PAGE.read_text("utf-8")


def test_it_is_up_to_date() -> None:
    assert page() == TEXT, "run: python -m tools.spec_page"


def test_every_field_of_the_format_is_told_once_or_more() -> None:
    told = {f"{one.model.__name__}.{name}" for one in sections() for name in one.names}
    for place in places():
        for name in place.model.model_fields if place.root is Spec else ():
            declared = {one.__name__ for one in place.model.__mro__ if name in get_annotations(one)}
            assert name == "type" or told & {f"{one}.{name}" for one in (place.model.__name__, *declared)}, name


def test_every_field_has_an_anchor_of_its_own() -> None:
    anchors = re.findall(r'<a id="([^"]+)">', TEXT)
    assert len(anchors) == len(set(anchors)) == sum(len(one.names) for one in sections())
    assert {"spec.agent", "agent.timeout", "agent-command.command", "services.routes.match.query"} < set(anchors)


def test_every_section_has_a_heading_of_its_own_that_the_contents_lead_to() -> None:
    slugs = [one.slug for one in sections()]
    assert len(slugs) == len(set(slugs))
    assert all(f"](#{slug})" in TEXT for slug in slugs)
    assert all(one.prose for one in sections())
    assert StrictModel not in {one.model for one in sections() if one.names}


def test_it_leads_to_the_page_of_every_check_type() -> None:
    assert {f"](checks/{name}.md)" for name in check_types()} <= set(re.findall(r"\]\(checks/\w+\.md\)", TEXT))


def test_it_says_what_a_mysql_without_an_image_is() -> None:
    [said] = (one.prose for one in sections() if one.model is MysqlService)
    assert f"`{DEFAULT_IMAGE}`" in said
    assert "where there is no Docker engine, the MariaDB or MySQL that is installed on this machine" in said
    with pytest.raises(UsageError, match="service db needs a container engine"):
        Mysql.build(MysqlService(type="mysql", name="db", image=DEFAULT_IMAGE), NO_ENGINE)


NO_ENGINE = Surroundings(provider=cast(Any, None), directory=Path(), mocks=cast(Any, None))


def test_its_smallest_spec_passes(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    called = run_spec(tmp_path, block)
    assert called.code == 0, called.out + called.err
