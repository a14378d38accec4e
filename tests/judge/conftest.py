"""What the judge's tests share."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest


@pytest.fixture(scope="session")
def _one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    end = "-----END CERTIFICATE-----\n"
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(Path(certifi.where()).read_text("utf-8").partition(end)[0] + end, "utf-8")
    return path


@pytest.fixture(autouse=True)
def _few_certificates(_one_certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients load all certificates that they trust, though no test's server has one: that takes longer than asking."""
    monkeypatch.setenv("SSL_CERT_FILE", str(_one_certificate))
