"""Certificates for servers of tests that speak TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, names: str = "IP:127.0.0.1,DNS:localhost") -> Path:
    """A key and a certificate that it signed itself, in one PEM file; names: the server's, as openssl takes them."""
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-keyout", "key.pem", "-out", "certificate.pem", "-days", "2", "-subj", "/CN=github.example"]
    make += ["-addext", f"subjectAltName={names}"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "certificate.pem").read_bytes())
    return both


def pem(certificate: Path) -> str:
    """The certificate alone."""
    return certificate.with_name("certificate.pem").read_text()
