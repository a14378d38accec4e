"""5.2: "`image: postgres:*` without an engine runs the embedded server with `substituted` in results and the summary's
head", for the services block as the original system's users write it."""

from __future__ import annotations

import pytest
from support.command_line import NO_ENGINE, run_spec, spec

SERVICE = (
    "[{name: db, image: 'postgres:16', env: {POSTGRES_USER: app, POSTGRES_PASSWORD: s3cret, POSTGRES_DB: crm},"
    " ports: [5432], wait_for: 'pg_isready -U app'}]"
)


def test_an_image_of_postgres_is_stood_in_for_and_that_is_said(tmp_path):
    check = "{type: sql, service: db, query: 'SELECT 1', equals: 1}"
    called = run_spec(tmp_path, spec(check=check, services=SERVICE), environ=NO_ENGINE)
    assert called.code == 0, called.err
    (sentence,) = called.document["substituted"]
    assert "embedded PostgreSQL instead of the image postgres:16" in sentence
    assert "ports and wait_for have no effect" in sentence
    head = (called.output / "summary.md").read_text().partition("\n| ")[0]
    assert "postgres:16" in head


@pytest.mark.parametrize(
    ("field", "name"),
    [("command: [postgres, -c, fsync=on]", "command"), ("isolation: container", "isolation: container")],
)
def test_what_the_embedded_server_has_not_needs_an_engine(tmp_path, field, name):
    """5.1: "Exit 2, before anything runs: … an image without an engine"; the sentence names the ways out."""
    called = run_spec(tmp_path, spec(services=SERVICE.replace("ports: [5432]", field)), environ=NO_ENGINE)
    assert called.code == 2
    assert f"service db: {name} needs a container engine" in called.err
    assert f"leave {name} out" in called.err
    assert "not supported yet" not in called.err
    assert not (tmp_path / "out").exists()
