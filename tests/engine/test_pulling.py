"""Pulling images from a registry of our own that answers as real ones do, by the real engine."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import secrets
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.docker_engine import Engine

from keystone_action.engine.connect import connect
from keystone_action.engine.pulling import ImageReference, Login, Pulling, cause_of, ensure_image
from keystone_action.errors import ServiceError
from keystone_action.spec.registry_names import parse_mirror

if TYPE_CHECKING:
    from docker import DockerClient

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


def error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


@dataclass
class Registry:
    """Holds `…:good`, an image of one small file, `…:other`, one of another architecture, and fails as asked: status
    and body for each next request of a manifest. Digests of blobs to bytes."""

    port: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    failures: list[tuple[int, bytes]] = field(default_factory=list)
    credentials: str | None = None
    asked: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return {"size": len(content), "digest": digest}

    def manifest(self, tag: str) -> tuple[str, bytes] | None:
        if tag == "other":
            entry = {**self.add(b"{}"), "mediaType": MANIFEST, "platform": {"architecture": "s390x", "os": "linux"}}
            return LIST, json.dumps({"schemaVersion": 2, "mediaType": LIST, "manifests": [entry]}).encode()
        if tag != "good":
            return None
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("hello"), io.BytesIO())
        layer = gzip.compress(packed.getvalue(), mtime=0)
        config = {
            "architecture": ARCHITECTURE, "os": "linux", "config": {"Cmd": ["/hello"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(packed.getvalue()).hexdigest()}"]},
        }  # fmt: skip
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json",
                       **self.add(json.dumps(config).encode())},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", **self.add(layer)}],
        }  # fmt: skip
        return MANIFEST, json.dumps(document).encode()


class Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        registry, parts = self.registry, self.path.strip("/").split("/")
        if registry.credentials is not None:
            wanted = "Basic " + base64.b64encode(registry.credentials.encode()).decode()
            given_header = self.headers.get("Authorization", "")
            if given_header:
                registry.seen.add(base64.b64decode(given_header.removeprefix("Basic ")).decode())
            if given_header != wanted:
                return self.reply(
                    401, error("UNAUTHORIZED", "authentication required"), ("WWW-Authenticate", 'Basic realm="r"')
                )
        if parts == ["v2"]:
            return self.reply(200, b"{}")
        if parts[-2] == "blobs":
            return self.reply(200, registry.blobs[parts[-1]])
        registry.asked.append("/".join(parts[1:-2]))
        if registry.failures:
            return self.reply(*registry.failures.pop(0))
        found = registry.manifest(parts[-1])
        if found is None and parts[-1] in registry.blobs:
            content = registry.blobs[parts[-1]]
            found = json.loads(content)["mediaType"], content
        if found is None:
            return self.reply(404, error("MANIFEST_UNKNOWN", "manifest unknown"))
        self.registry.add(found[1])
        return self.reply(200, found[1], ("Content-Type", found[0]))

    do_HEAD = do_GET

    def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        for name, value in headers:
            self.send_header(name, value)
        if not any(name == "Content-Type" for name, _ in headers):
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture
def registry() -> Iterator[Registry]:
    """On the loopback: engines speak plain HTTP with it."""
    made = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"registry": made}))
    made.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def name() -> str:
    return f"keystone-test/{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def _no_image_stays(request: pytest.FixtureRequest, name: str) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        for image in engine.images.list():
            for tag in image.tags:
                if name in tag:
                    engine.images.remove(tag, force=True)


def pull(engine: DockerClient, image: str, **fields: Any) -> list[str]:
    told: list[str] = []

    async def run() -> None:
        pauses = fields.pop("pauses", (0.01, 0.01))
        await ensure_image(engine, image, Pulling(on_progress=told.append, **fields), pauses=pauses)

    anyio.run(run)
    return told


def refused(engine: DockerClient, image: str, **fields: Any) -> ServiceError:
    with pytest.raises(ServiceError) as failed:
        pull(engine, image, **fields)
    return failed.value


@pytest.mark.docker
def test_an_image_that_is_there_is_not_asked_for(engine: DockerClient, registry: Registry, name: str) -> None:
    image = f"{registry.host}/{name}:good"
    assert pull(engine, image) == [f"pulling {image}"]
    assert engine.images.get(image).attrs["Config"]["Cmd"] == ["/hello"]
    registry.asked.clear()
    assert pull(engine, image) == []
    assert registry.asked == []


@pytest.mark.docker
def test_the_mirror_stands_for_docker_hub(engine: DockerClient, registry: Registry, name: str) -> None:
    pull(engine, f"{name}:good", mirror=f"http://{registry.host}/hub/")
    assert registry.asked[0] == f"hub/{name}"
    assert engine.images.get(f"{name}:good").attrs["Config"]["Cmd"] == ["/hello"]


@pytest.mark.docker
def test_the_mirror_does_not_stand_for_other_registries(engine: DockerClient, registry: Registry, name: str) -> None:
    pull(engine, f"{registry.host}/{name}:good", mirror="127.0.0.1:1")
    assert registry.asked[0] == name


@pytest.mark.docker
def test_a_login_opens_its_registry_and_is_sent_to_no_other(
    engine: DockerClient, registry: Registry, name: str
) -> None:
    registry.credentials = "ann:s3cret"
    image = f"{registry.host}/{name}:good"
    assert "private, or there is no such image" in refused(engine, image).message
    refused(engine, image, login=Login("ann", "s3cret"))
    refused(engine, image, login=Login("ann", "s3cret", registry="ghcr.io"))
    assert registry.seen <= {":"}
    wrong = refused(engine, image, login=Login("ann", "wrong", registry=registry.host))
    assert "registry-password" in wrong.help
    assert "wrong" not in wrong.message
    pull(engine, image, login=Login("ann", "s3cret", registry=registry.host))
    pull(engine, f"{name}:good", mirror=registry.host, login=Login("ann", "s3cret"))


def home_of(
    ann: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **config: Any
) -> DockerClient:
    """A client of the engine as a user has it who once said `docker login`."""
    kept = {"auths": {registry.host: {"auth": base64.b64encode(ann.encode()).decode()}}, **config}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return Engine(connect(os.environ))


@pytest.mark.docker
def test_the_users_own_login_counts_where_it_is_let(
    engine: DockerClient, registry: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.credentials = "ann:s3cret"
    image = f"{registry.host}/{name}:good"
    with closing(home_of("ann:s3cret", registry, tmp_path, monkeypatch)) as client:
        assert "private" in refused(client, image).message
        assert registry.seen == set()
        assert (
            "private"
            in refused(client, image, login=Login("bob", "x", registry=registry.host), user_logins=True).message
        )
        pull(client, image, user_logins=True)
    assert engine.images.get(image)


@pytest.mark.docker
def test_a_credential_helper_is_asked(
    engine: DockerClient, registry: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.credentials = "ann:s3cret"
    helper = tmp_path / "docker-credential-keystone-test"
    helper.write_text("""#!/bin/sh\ncat >/dev/null\necho '{"Username": "ann", "Secret": "s3cret"}'\n""")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    helpers = {registry.host: "keystone-test"}
    with closing(home_of("x:y", registry, tmp_path, monkeypatch, auths={}, credHelpers=helpers)) as client:
        pull(client, f"{registry.host}/{name}:good", user_logins=True)
    assert registry.seen == {"ann:s3cret"}


@pytest.mark.docker
def test_a_credential_helper_that_is_missing_is_said_and_done_without(
    engine: DockerClient, registry: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers = {registry.host: "that-nobody-has"}
    with closing(home_of("x:y", registry, tmp_path, monkeypatch, auths={}, credHelpers=helpers)) as client:
        told = pull(client, f"{registry.host}/{name}:good", user_logins=True)
    assert any("your `docker login` can't be used" in line for line in told)


@pytest.mark.docker
def test_a_rate_limit_passes_or_is_said(engine: DockerClient, registry: Registry, name: str) -> None:
    limit = (429, error("TOOMANYREQUESTS", "You have reached your pull rate limit."))
    image = f"{registry.host}/{name}:good"
    registry.failures = [limit] * 40
    failed = refused(engine, image, pauses=())
    assert f"{registry.host} refuses to send image {image}: too many pulls (rate limit)" in failed.message
    assert "registry-mirror" in failed.help
    # As many answers as the engine asks for in one try.
    registry.failures = [limit] * (40 - len(registry.failures))
    told = pull(engine, image)
    assert told.count(f"pulling {image}") == 2
    assert any("the next try is in 0.01 s" in line for line in told)


@pytest.mark.docker
def test_a_missing_tag_is_said_at_once(engine: DockerClient, registry: Registry, name: str) -> None:
    image = f"{registry.host}/{name}:nonesuch"
    failed = refused(engine, image, pauses=(0.01,))
    assert f"{registry.host} has no image {image}" in failed.message
    assert "tag" in failed.help


@pytest.mark.docker
def test_an_image_for_another_architecture_is_said(engine: DockerClient, registry: Registry, name: str) -> None:
    failed = refused(engine, f"{registry.host}/{name}:other", pauses=(0.01,))
    assert "not for this machine's architecture" in failed.message


@pytest.mark.docker
def test_a_registry_that_is_not_there_is_said(engine: DockerClient, name: str) -> None:
    failed = refused(engine, f"127.0.0.1:1/{name}:good")
    assert "127.0.0.1:1 can't be reached" in failed.message
    assert "network" in failed.help


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("toomanyrequests: You have reached your pull rate limit.", "rate limit"),
        ("received unexpected HTTP status: 429 Too Many Requests", "rate limit"),
        ("manifest for postgres:99 not found: manifest unknown: manifest unknown", "missing"),
        ("no matching manifest for linux/s390x in the manifest list entries", "architecture"),
        ('image operating system "windows" cannot be used on this platform', "architecture"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", "unauthorized"),
        ("Head https://ghcr.io/v2/a/b/manifests/c: denied", "unauthorized"),
        ("unauthorized: authentication required", "unauthorized"),
        ("Get https://registry-1.docker.io/v2/: dial tcp: lookup registry-1.docker.io: no such host", "unreachable"),
        ("Get https://r.example/v2/: net/http: TLS handshake timeout", "unreachable"),
        ("Get https://r.example/v2/: x509: certificate signed by unknown authority", "unreachable"),
        ("received unexpected HTTP status: 503 Service Unavailable", "unreachable"),
        ("failed to register layer: write /x: no space left on device", "disk"),
        ("something new", "other"),
    ],
)
def test_what_engines_say_is_told_apart(words: str, cause: str) -> None:
    assert cause_of(words) == cause


@pytest.mark.parametrize(
    ("image", "registry_name", "repository", "version"),
    [
        ("postgres", "docker.io", "library/postgres", "latest"),
        ("postgres:16", "docker.io", "library/postgres", "16"),
        ("docker.io/library/postgres:16", "docker.io", "library/postgres", "16"),
        ("org/app:1", "docker.io", "org/app", "1"),
        ("ghcr.io/org/app:1", "ghcr.io", "org/app", "1"),
        ("localhost/app", "localhost", "app", "latest"),
        ("localhost:5000/app", "localhost:5000", "app", "latest"),
        ("r.example:5000/a/b/c:x", "r.example:5000", "a/b/c", "x"),
        ("postgres:16@sha256:" + "0" * 64, "docker.io", "library/postgres", "sha256:" + "0" * 64),
    ],
)
def test_names_of_images(image: str, registry_name: str, repository: str, version: str) -> None:
    assert ImageReference.parse(image) == ImageReference(registry_name, repository, version)


@pytest.mark.parametrize(
    ("text", "mirror"),
    [
        ("mirror.example", "mirror.example"),
        ("https://mirror.example:5000/hub/", "mirror.example:5000/hub"),
        ("localhost", "localhost"),
        ("registry:5000", "registry:5000"),
        ("", None),
        ("mirror", None),
        ("ftp://mirror.example", None),
        ("user:secret@mirror.example", None),
        ("mirror.example/Hub", None),
        ("mirror.example:port", None),
        ("mirror.example/hub:tag", None),
        ("mirror .example", None),
        ("-mirror.example", None),
    ],
)
def test_mirrors_are_registries(text: str, mirror: str | None) -> None:
    assert parse_mirror(text) == mirror


@given(st.text())
def test_any_name_is_taken_apart_and_any_words_are_some_cause(text: str) -> None:
    assert ImageReference.parse(text).registry
    assert cause_of(text)


def test_a_login_never_shows_its_password() -> None:
    assert "s3cret" not in repr(Login("ann", "s3cret"))
