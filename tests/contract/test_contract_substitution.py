"""5.2: "`image: postgres:*` without an engine runs the embedded server with `substituted` in results and the summary's
head", for the services block as the original system's users write it."""

from __future__ import annotations

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


def test_a_command_of_its_own_would_be_another_server(tmp_path):
    services = SERVICE.replace("ports: [5432]", "command: [postgres, -c, fsync=on]")
    called = run_spec(tmp_path, spec(services=services), environ=NO_ENGINE)
    assert called.code == 2
    assert "command" in called.err
    assert "container engine" in called.err
