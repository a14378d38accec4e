"""Certificates to trust besides the usual ones: a GitHub Enterprise Server, or a proxy that opens connections, is
often signed by a company's own authority (input `ca-bundle`)."""

from __future__ import annotations

import functools
import os
import re
import ssl
import stat
from pathlib import Path

from keystone_action.github.api.errors import BadSetting

MAX_BUNDLE = 4 * 1024 * 1024
"""Bytes; the whole of a system's authorities is 0.3 MB."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_HELP = "ca-bundle takes the path of a PEM file, or its text"


def read_ca_bundle(value: str, directory: Path) -> str:
    """The certificates of a PEM text, or of the file that it names, as PEM.

    directory: what paths are relative to. Call it before an agent runs, which could change the file. Raises
    BadSetting.
    """
    text = value if "-----BEGIN" in value else _read(directory / value.strip(), value)
    certificates = _CERTIFICATE.findall(text)
    if not certificates:
        raise BadSetting("the input ca-bundle holds no certificate", help=_HELP)
    pem = "\n".join(certificates) + "\n"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "malformed"
        raise BadSetting(f"a certificate of the input ca-bundle can't be read ({reason})", help=_HELP) from None
    return pem


def _read(path: Path, shown: str) -> str:
    try:
        # Without O_NONBLOCK a FIFO would keep us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadSetting(f"the input ca-bundle names {shown!r}, which is no file", help=_HELP)
            content = file.read(MAX_BUNDLE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise BadSetting(f"the input ca-bundle names {shown!r}, which can't be read: {reason}", help=_HELP) from None
    if len(content) > MAX_BUNDLE:
        raise BadSetting(f"the input ca-bundle names {shown!r}, which is larger than {MAX_BUNDLE} bytes", help=_HELP)
    return content.decode("utf-8", "replace")


def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """The usual authorities (SSL_CERT_FILE and SSL_CERT_DIR are honoured), and those of `read_ca_bundle`.

    A step makes several clients, and reading the authorities takes 30 ms each time.
    """
    return _context(ca_bundle, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.lru_cache(maxsize=4)
def _context(ca_bundle: str | None, _file: str | None, _directory: str | None) -> ssl.SSLContext:
    """One for all clients with equal settings. The last two are what httpx reads by itself."""
    import httpx

    context = httpx.create_ssl_context()
    if ca_bundle:
        context.load_verify_locations(cadata=ca_bundle)
    return context
