"""What we need to know of an image, asked of a container of it: its search path, its shell, its programs, its paths."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keystone_action.command import Completed
from keystone_action.engine.container import Run
from keystone_action.engine.errors import Refused, engine_errors
from keystone_action.engine.plan import ContainerPlan, Mount
from keystone_action.errors import SandboxError
from keystone_action.files.search_path import DEFAULT_PATH

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient

PROBING_USER = 65532
_LINK_PLACE = "E/workspace"
_PROBE_TIMEOUT = 60.0

# Each argument is a letter and a path: P the programs of a directory, D is it a directory, E is there anything,
# X is it a program, N read the nonce there and write the answer beside it.
_SCRIPT = r"""
for question; do
  path=${question#?}
  case $question in
    P*) for file in "$path"/*; do if [ -f "$file" ] && [ -x "$file" ]; then printf 'X%s\n' "$file"; fi; done ;;
    D*) if [ -d "$path" ]; then printf 'D%s\n' "$path"; fi ;;
    E*) if [ -e "$path" ] || [ -L "$path" ]; then printf 'E%s\n' "$path"; fi ;;
    X*) if [ -f "$path" ] && [ -x "$path" ]; then printf 'X%s\n' "$path"; fi ;;
    N*) IFS= read -r nonce <"$path/nonce" && printf '%s\n' "$nonce" >"$path/answer" && printf 'N%s\n' "$nonce" ;;
  esac
done
printf 'end\n'
"""


@dataclass
class Image:
    """One image on one engine. identifier: its content's, so that a tag that moves meanwhile changes nothing.

    init: whether the engine brings a program that reaps as process 1.
    """

    client: EngineClient
    name: str
    identifier: str
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    """Of the containers that are asked."""
    init: bool = True
    _programs: set[str] = field(default_factory=set)
    _listed: set[str] = field(default_factory=set)
    _others: dict[str, bool] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def search_path(self) -> str:
        """The PATH that it gives, or the usual one."""
        return self.environment.get("PATH") or DEFAULT_PATH

    @property
    def learned(self) -> bool:
        """Whether `learn` has been called, and was answered."""
        return _LINK_PLACE in self._others

    def learn(self, *questions: str, user: int = PROBING_USER, mounts: tuple[Mount, ...] = ()) -> set[str]:
        """Ask what every sandbox will want to know, and these questions, of one container; returns its answers.
        Blocks. Raises SandboxError (an image without `sh` among them)."""
        with self._lock:
            places = [place for place in self.search_path.split(":") if place.startswith("/")]
            common = [*(f"P{place}" for place in places), _LINK_PLACE]
            answers = self.ask(*common, *questions, user=user, mounts=mounts)
            self._note_programs(places, answers)
            self._others[_LINK_PLACE] = _LINK_PLACE in answers
        return answers

    def list_programs(self, directories: Sequence[str]) -> None:
        """Make `has_program` know these directories of the image. Blocks. Raises SandboxError."""
        with self._lock:
            new = [place for place in directories if place.startswith("/") and place not in self._listed]
            if new:
                self._note_programs(new, self.ask(*(f"P{place}" for place in new)))

    def _note_programs(self, places: Sequence[str], answers: set[str]) -> None:
        self._programs |= {answer[1:] for answer in answers if answer.startswith("X")}
        self._listed |= set(places)

    def has_program(self, path: str) -> bool:
        """Whether this absolute path is a program. Blocks when its directory has not been listed."""
        if path in self._programs or path.rpartition("/")[0] in self._listed:
            return path in self._programs
        return self.exists("X", [path])[0]

    def exists(self, kind: str, paths: Sequence[str]) -> list[bool]:
        """For each path: is it a directory (kind D), is there anything (E), is it a program (X)? Blocks.
        Raises SandboxError."""
        with self._lock:
            questions = [f"{kind}{path}" for path in paths]
            new = [question for question in questions if question not in self._others]
            if new:
                answers = self.ask(*new)
                self._others.update((question, question in answers) for question in new)
            return [self._others[question] for question in questions]

    def lacks(self, path: str) -> bool:
        """Whether it is known that there is no such directory."""
        return self._others.get(f"D{path}") is False

    def ask(self, *questions: str, user: int = PROBING_USER, mounts: tuple[Mount, ...] = ()) -> set[str]:
        """The answers of a container of the image to these questions. Blocks. Raises SandboxError."""
        done = self._run(("sh", "-c", _SCRIPT, "sh", *questions), user, mounts)
        if done.exit_code in (126, 127):
            raise SandboxError(
                f"the image {self.name} has no `sh` that can be run: {done.stderr.text().strip()}",
                help="take an image with a shell as `base`, a Debian or Alpine one for example",
            )
        lines = done.stdout.text().split("\n")
        if done.exit_code != 0 or "end" not in lines:
            raise SandboxError(
                f"a first container of the image {self.name} failed (exit code {done.shell_code}):"
                f" {done.stderr.text().strip()[-500:]}"
            )
        return set(lines)

    def _run(self, argv: tuple[str, ...], user: int, mounts: tuple[Mount, ...]) -> Completed:
        plan = ContainerPlan(self.identifier, argv, user, "/", self.labels, mounts=mounts, init=self.init)
        try:
            return Run(self.client, plan, timeout=_PROBE_TIMEOUT).execute()
        except SandboxError as error:
            if not self.init or "docker-init" not in error.message:
                raise
        # Some packages of the engine lack the program that it wants to start first.
        self.init = False
        return self._run(argv, user, mounts)


def find_image(client: EngineClient, name: str, labels: Mapping[str, str]) -> Image:
    """An image that the engine has. Blocks. Raises SandboxError when it has none of that name."""
    with engine_errors(f"can't look at the image {name}"):
        try:
            described = client.inspect_image(name)
        except Refused as error:
            if error.status != 404:
                raise
            raise SandboxError(
                f"the image {name} is not on the Docker engine", help=f"`docker pull {name}`, or correct its name"
            ) from error
    pairs = (described.get("Config") or {}).get("Env") or []
    environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return Image(client, name, str(described["Id"]), environment, labels)
