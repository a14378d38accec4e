"""The stand-ins behave like the official images in what services, sandboxes and their tests rely on."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from support import database_images as servers
from support.database_images import (
    DATABASE,
    INIT_FOLDER,
    USER,
    Server,
    address,
    created,
    ended,
    log,
    rows,
    until,
)
from support.images import BASE, EXITS_AT_ONCE, MARIADB, MEMORY_HOG, MYSQL, NO_SHELL, POSTGRES, PYTHON

pytestmark = pytest.mark.docker

HERE = Path(__file__).parent
SERVERS = {
    POSTGRES: servers.postgres,
    MARIADB: lambda: servers.mysql(MARIADB, "MARIADB", "mariadb"),
    MYSQL: lambda: servers.mysql(MYSQL, "MYSQL", "mysql"),
}
GATE = "until [ -e /tmp/gate-is-open ]; do sleep 0.1; done\n"


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, image: Callable[[str], str]) -> Server:
    name = image(request.param)
    return SERVERS[name]()


def port_is_open(host: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex((host, port)) == 0


def test_a_server_is_filled_behind_a_closed_port_and_keeps_its_data(server: Server, engine: DockerClient) -> None:
    """All that a server of the usual kind must do, at one start, since filling it takes seconds: its arguments are the
    server's, its secrets are files, and its data is in a volume that goes with the container."""
    arguments, limit = server.limit
    variables = {f"{name}_FILE": f"/{name}" for name in server.variables}
    files = {
        **{f"/{name}": f"{value}\n" for name, value in server.variables.items()},
        f"{INIT_FOLDER}/10-table.sql": "CREATE TABLE t (n INT);",
        f"{INIT_FOLDER}/20-gate.sh": GATE,
        f"{INIT_FOLDER}/30-row.sql": "INSERT INTO t VALUES (42);",
        f"{INIT_FOLDER}/notes.txt": "not for the server",
    }
    with created(engine, server.image, command=arguments, variables=variables, files=files) as container:
        container.start()
        until(lambda: "20-gate.sh" in log(container), container)
        assert container.exec_run(list(server.ask_inside)).exit_code == 0
        assert not port_is_open(address(container), server.port)
        container.exec_run(["touch", "/tmp/gate-is-open"])
        assert rows(server, container, "SELECT n FROM t") == [[42]]
        assert "ready for start up" in log(container).lower()

        with pytest.raises(server.refused):
            server.connect(address(container), USER, "wrong", DATABASE)
        if server.roots:
            user, password = server.roots
            assert rows(server, container, "SELECT n FROM t", user=user, password=password) == [[42]]
            with pytest.raises(server.refused):
                server.connect(address(container), user, "", DATABASE)
        assert [str(value) for [value] in rows(server, container, limit)] == ["17"]
        if server.image == MYSQL:
            is_the_real_one(server, container)

        # Process 1 is the server: it stops when asked, and what it stored is there after the next start.
        container.stop(timeout=60)
        assert ended(container)[0] == 0
        container.start()
        assert rows(server, container, "SELECT n FROM t") == [[42]]
        assert log(container).count("20-gate.sh") == 1

        container.reload()
        [mount] = container.attrs["Mounts"]
        assert (mount["Type"], mount["Destination"]) == ("volume", server.data)
        assert engine.volumes.get(mount["Name"]).name == mount["Name"]
    with pytest.raises(NotFound):
        engine.volumes.get(mount["Name"])


def is_the_real_one(server: Server, container: Container) -> None:
    """It is MySQL, and asks for MySQL's own kind of password."""
    query = "SELECT VERSION(), plugin FROM mysql.user WHERE user = 'app'"
    [[version, plugin]] = rows(server, container, query, user="root", password=servers.ROOT_PASSWORD)
    assert rows(server, container, f"SELECT CURRENT_USER(), '{USER}'") == [[f"{USER}@%", USER]]
    assert int(version.split(".")[0]) >= 9
    assert plugin == "caching_sha2_password"


def test_a_start_without_a_password_ends_and_says_why(server: Server, engine: DockerClient) -> None:
    with created(engine, server.image) as container:
        container.start()
        code, said = ended(container)
    assert code == 1
    assert "is uninitialized" in said
    assert server.password_variable in said


def test_an_init_script_that_fails_ends_the_start(server: Server, engine: DockerClient) -> None:
    files = {f"{INIT_FOLDER}/10-wrong.sql": "SELECT * FROM no_such_table;"}
    with created(engine, server.image, variables=server.variables, files=files, tmpfs={server.data: ""}) as container:
        container.start()
        code, said = ended(container)
    assert code != 0
    assert "no_such_table" in said


def test_another_command_runs_instead_of_the_server(server: Server, engine: DockerClient) -> None:
    with created(engine, server.image, command=("echo", "instead")) as container:
        container.start()
        assert ended(container) == (0, "instead\n")


def test_postgres_passes_arguments_on_to_initdb_names_the_database_after_the_user_and_can_trust_everybody(
    image: Callable[[str], str], engine: DockerClient
) -> None:
    server = servers.postgres()
    variables = {
        "POSTGRES_USER": DATABASE,
        "POSTGRES_HOST_AUTH_METHOD": "trust",
        "POSTGRES_INITDB_ARGS": "--data-checksums --locale-provider='libc'",
    }
    with created(engine, image(POSTGRES), variables=variables, tmpfs={server.data: ""}) as container:
        container.start()
        assert rows(server, container, "SELECT current_database()", user=DATABASE, password="any") == [[DATABASE]]
        assert rows(server, container, "SHOW data_checksums", user=DATABASE, password="any") == [["on"]]


def test_mariadb_knows_the_names_from_before_the_fork(image: Callable[[str], str], engine: DockerClient) -> None:
    server = SERVERS[image(MARIADB)]()
    variables = {name.replace("MARIADB_", "MYSQL_"): value for name, value in server.variables.items()}
    with created(engine, MARIADB, variables=variables, tmpfs={server.data: ""}) as container:
        container.start()
        [[version]] = rows(server, container, "SELECT VERSION()")
    assert "MariaDB" in version


def test_python_has_what_graders_need_for_any_user(image: Callable[[str], str], engine: DockerClient) -> None:
    script = "set -ex; python --version; python -m pytest --version; git --version; pip --version"
    with created(engine, image(PYTHON), command=("sh", "-c", script), user="4321:4321") as container:
        container.start()
        code, said = ended(container)
    assert code == 0, said


def test_an_image_without_a_shell(image: Callable[[str], str], engine: DockerClient) -> None:
    with created(engine, image(NO_SHELL), command=("/bin/busybox", "echo", "runs")) as container:
        container.start()
        assert ended(container) == (0, "runs\n")
    with created(engine, NO_SHELL, command=("sh", "-c", "true")) as container, pytest.raises(APIError) as refused:
        container.start()
    assert "sh" in str(refused.value)


def test_an_image_that_ends_at_once(image: Callable[[str], str], engine: DockerClient) -> None:
    with created(engine, image(EXITS_AT_ONCE)) as container:
        container.start()
        assert ended(container) == (3, "fatal: LICENSE_KEY is not set\n")


def test_an_image_that_takes_more_memory_than_it_may(image: Callable[[str], str], engine: DockerClient) -> None:
    with created(engine, image(MEMORY_HOG), mem_limit="64m", memswap_limit="64m") as container:
        container.start()
        assert ended(container)[0] == 137
        container.reload()
        assert container.attrs["State"]["OOMKilled"] is True


def build(folder: Path, name: str) -> str:
    made = subprocess.run([folder / "build-all", name], capture_output=True, text=True, timeout=600, check=False)
    assert made.returncode == 0, made.stderr
    return made.stderr


@pytest.fixture
def private(tmp_path: Path, engine: DockerClient) -> Iterator[tuple[Path, str]]:
    """A copy of this folder, whose image that ends at once has inputs and a name of its own: (folder, name)."""
    name = f"keystone-test-{uuid.uuid4().hex[:12]}:1"
    folder = tmp_path / "images"
    shutil.copytree(HERE, folder)
    (folder / "build-all").write_text((folder / "build-all").read_text().replace(EXITS_AT_ONCE, name))
    with (folder / "stand-ins" / "exits" / "Dockerfile").open("a") as dockerfile:
        dockerfile.write(f"LABEL name={name}\n")
    yield folder, name
    for tag in (name, f"{name}-kept"):
        with contextlib.suppress(NotFound):
            engine.images.remove(tag, force=True)


def test_only_what_changed_is_made_again(
    image: Callable[[str], str], engine: DockerClient, private: tuple[Path, str]
) -> None:
    image(BASE)
    folder, name = private
    assert f"{name} made" in build(folder, name)
    first = engine.images.get(name).id
    assert build(folder, name) == ""
    assert engine.images.get(name).id == first

    dockerfile = folder / "stand-ins" / "exits" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("exit 3", "exit 4"))
    assert f"{name} made" in build(folder, name)
    second = engine.images.get(name)
    assert second.id != first
    with pytest.raises(NotFound):
        engine.images.get(first)

    # One that somebody gave another name is not taken away.
    kept = f"{name}-kept"
    second.tag(kept)
    dockerfile.write_text(dockerfile.read_text().replace("exit 4", "exit 5"))
    build(folder, name)
    assert engine.images.get(kept).id == second.id != engine.images.get(name).id


def test_an_image_of_others_stays(engine: DockerClient, private: tuple[Path, str], tmp_path: Path) -> None:
    folder, name = private
    empty = tmp_path / "empty.tar"
    subprocess.run(["tar", "-cf", empty, "-T", "/dev/null"], check=True)
    subprocess.run(["docker", "import", empty, name], check=True, capture_output=True)
    theirs = engine.images.get(name).id
    assert "stays as it is" in build(folder, name)
    assert engine.images.get(name).id == theirs


def test_an_unknown_name_is_refused_with_those_there_are(engine: DockerClient) -> None:
    made = subprocess.run([HERE / "build-all", "postgres:99"], capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "postgres:99 is unknown" in made.stderr
    assert POSTGRES in made.stderr
