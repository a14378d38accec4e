"""Certificates of the host, copied for `setup`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from support.certificates import make_certificate, pem

from keystone_action.runner.roots import Certificates, copy_certificates


def test_files_and_folders_are_copied_without_what_is_no_certificate(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    both = make_certificate(home)
    (home / "folder/0a1b.0").symlink_to("../certificate.pem")
    (home / "folder/README").write_text("no certificate")
    (home / "folder/key.pem").symlink_to("../key.pem")
    home.chmod(0o700)
    environ = {
        "SSL_CERT_FILE": str(both),
        "REQUESTS_CA_BUNDLE": str(both),
        "SSL_CERT_DIR": f"{home}/folder:{home}/missing",
        "GITHUB_TOKEN": str(both),
    }
    old = os.umask(0o077)
    try:
        found = copy_certificates(environ, tmp_path / "copies")
    finally:
        os.umask(old)
    assert found.folders == (tmp_path / "copies",)
    assert set(found.variables) == {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR"}
    assert found.variables["SSL_CERT_FILE"] == found.variables["REQUESTS_CA_BUNDLE"]
    copy, folder = Path(found.variables["SSL_CERT_FILE"]), Path(found.variables["SSL_CERT_DIR"])
    assert copy.read_text().strip() == pem(both).strip()
    assert [file.name for file in folder.iterdir()] == ["0a1b.0"]
    everything = [tmp_path / "copies", *(tmp_path / "copies").rglob("*")]
    assert not any("PRIVATE" in path.read_text() for path in everything if path.is_file())
    assert {stat.S_IMODE(path.stat().st_mode) for path in everything} == {0o755, 0o644}


def test_what_names_no_certificate_is_left_out(tmp_path: Path) -> None:
    key = make_certificate(tmp_path).with_name("key.pem")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * (5 << 20))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    names = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"]
    places = [key, tmp_path / "empty", tmp_path / "pipe", tmp_path / "large", tmp_path / "loop", tmp_path / "missing"]
    environ = {name: str(place) for name, place in zip(names, places, strict=True)}
    environ |= {"NODE_EXTRA_CA_CERTS": "", "GIT_SSL_CAPATH": "x" * 5000}
    assert copy_certificates(environ, tmp_path / "copies") == Certificates()
    assert not (tmp_path / "copies").exists()
