"""Just enough of PostgreSQL's wire protocol (version 3, SCRAM-SHA-256) for a demo that needs nothing but Python.

An agent of your own would use psycopg.
"""

import base64
import hashlib
import hmac
import os
import socket
import struct
from urllib.parse import unquote, urlsplit


def connect(url):
    """A connection to `postgresql://user:password@host:port/database`."""
    return Connection(urlsplit(url))


class Connection:
    def __init__(self, url):
        self._socket = socket.create_connection((url.hostname, url.port), timeout=30)
        self._stream = self._socket.makefile("rb")
        user, password = unquote(url.username), unquote(url.password)
        settings = f"user\0{user}\0database\0{url.path.lstrip('/')}\0\0".encode()
        self._send(b"", struct.pack("!i", 196608) + settings)
        self._authenticate(password)
        while self._receive()[0] != b"Z":
            pass

    def query(self, sql):
        """Run one statement; the rows as lists of text (None for null)."""
        self._send(b"Q", sql.encode() + b"\0")
        rows, failure = [], None
        while True:
            kind, body = self._receive()
            if kind == b"D":
                rows.append(_row(body))
            elif kind == b"E":
                failure = _error(body)
            elif kind == b"Z":
                if failure:
                    raise RuntimeError(failure)
                return rows

    def close(self):
        self._send(b"X", b"")
        self._socket.close()

    def _authenticate(self, password):
        nonce = base64.b64encode(os.urandom(18)).decode()
        first = f"n=,r={nonce}"
        while True:
            kind, body = self._receive()
            if kind == b"E":
                raise RuntimeError(_error(body))
            step = struct.unpack("!i", body[:4])[0]
            if step == 0:
                return
            if step == 10:
                payload = f"n,,{first}".encode()
                self._send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(payload)) + payload)
            elif step == 11:
                self._send(b"p", _proof(password, first, body[4:].decode()))

    def _send(self, kind, body):
        self._socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def _receive(self):
        kind, size = struct.unpack("!ci", self._stream.read(5))
        return kind, self._stream.read(size - 4)


def _proof(password, first, challenge):
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    last = f"c=biws,r={fields['r']}"
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{first},{challenge},{last}".encode(), "sha256")
    proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
    return f"{last},p={base64.b64encode(proof).decode()}".encode()


def _row(body):
    count, position, row = struct.unpack("!h", body[:2])[0], 2, []
    for _ in range(count):
        size = struct.unpack("!i", body[position : position + 4])[0]
        position += 4
        row.append(None if size < 0 else body[position : position + size].decode())
        position += max(size, 0)
    return row


def _error(body):
    return " ".join(part[1:].decode() for part in body.split(b"\0") if part[:1] in (b"S", b"M"))
