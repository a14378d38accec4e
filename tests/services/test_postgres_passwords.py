"""Passwords that are stored as we computed them let in who has them, and nobody else."""

from __future__ import annotations

import secrets

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from support.databases import PostgresCell, PostgresForTests

from keystone_action.services.postgres.connections import scram_verifier
from keystone_action.services.postgres.embedded_server import MAINTENANCE

PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)
VERIFIER = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$YQ==:Yg=="


def test_every_printable_password_lets_in_and_another_does_not(postgres: PostgresForTests) -> None:
    server = postgres.service._server
    role = f"role_{secrets.token_hex(6)}"

    def log_in(password: str) -> None:
        psycopg.connect(**server.address(role, password, MAINTENANCE)).close()

    @settings(max_examples=25)
    @given(PLAIN | st.sampled_from(["md5" + "0" * 32, VERIFIER, "pässwörd", "\u2168", "a\tb"]), st.booleans())
    def check(password: str, private: bool) -> None:
        with server.admin() as admin:
            statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
            admin.execute(
                statement.format(sql.Identifier(role), sql.Literal(scram_verifier(password, private=private)))
            )
        log_in(password)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            log_in(password + "x")

    with server.admin() as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        admin.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(MAINTENANCE), sql.Identifier(role))
        )
    try:
        check()
    finally:
        with server.admin() as admin:
            admin.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(sql.Identifier(role), sql.Identifier(role)))


def test_what_is_stored_is_not_the_password_and_not_twice_the_same() -> None:
    first, second = scram_verifier("s3cret"), scram_verifier("s3cret")
    assert first.startswith("SCRAM-SHA-256$")
    assert "s3cret" not in first
    assert first != second


def test_clients_that_ask_for_the_usual_number_of_iterations_can_log_in(cell: PostgresCell) -> None:
    """RFC 7677, 4, has servers ask for 4,096; most releases of the JDBC driver refuse to log in with fewer."""
    with cell.service._server.admin() as admin:
        query = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
        row = admin.execute(query, (cell.place.for_agent.user,)).fetchone()
    assert row is not None
    assert row[0].startswith("SCRAM-SHA-256$4096:")
