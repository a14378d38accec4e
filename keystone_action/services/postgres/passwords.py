"""Passwords as PostgreSQL stores them, computed here: a server that is given the text hashes it 4,096 times, and so
does every client at each login.

Nobody but our superuser reads what is stored, and what protects a database of a cell is that its agent's is the only
sandbox that knows the password: slowness would protect nothing. But clients of others (most releases of the JDBC driver
among them) take fewer than 4,096 times for an attack and refuse to log in, so only what no one but us uses is
`private`. Form: PostgreSQL, "pg_authid"; RFC 5803; the 4,096: RFC 7677, 4.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

_ITERATIONS = 4096
_SALT_BYTES = 16
_METHOD = "sha256"


def scram_verifier(password: str, *, private: bool = False) -> str:
    """What to write after PASSWORD: the verifier `SCRAM-SHA-256$…`, which servers since version 10 keep as it is; for
    a password that a client changes first (RFC 4013), the password itself. private: of a role that is only ours."""
    if not (password.isascii() and password.isprintable() and password):
        return password
    iterations = 1 if private else _ITERATIONS
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(_METHOD, password.encode(), salt, iterations)
    client = hmac.digest(salted, b"Client Key", _METHOD)
    keys = hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", _METHOD)
    text_salt, text_stored, text_server = (base64.b64encode(part).decode() for part in (salt, *keys))
    return f"SCRAM-SHA-256${iterations}:{text_salt}${text_stored}:{text_server}"
