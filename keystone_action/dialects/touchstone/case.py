"""A Touchstone `case.yaml` → the tree of a Keystone spec (`004_722b8593dcd13c4e.txt`; spec.md 1.9 and 5.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml.nodes import MappingNode, Node

from keystone_action.dialects.nodes import build_node, without_expressions
from keystone_action.dialects.touchstone.graders import Graders, read_graders
from keystone_action.dialects.touchstone.harnesses import Harness, Harnesses, check_call, harness_agent
from keystone_action.dialects.touchstone.reading import CaseField, CaseReader
from keystone_action.dialects.touchstone.setup import CaseSetup, read_preparation
from keystone_action.dialects.touchstone.sources import Repositories, read_fixtures, read_source
from keystone_action.spec.loading.diagnostics import show_value
from keystone_action.spec.loading.loaded_spec import RunRules
from keystone_action.spec.loading.spec_source import Translation

if TYPE_CHECKING:
    from keystone_action.spec.loading.spec_source import TranslationSource

_KNOWN = (
    "artifacts",
    "availability",
    "container",
    "description",
    "environment",
    "expect",
    "fixtures",
    "graders",
    "id",
    "matrix",
    "observe",
    "setup",
    "source",
    "task",
)
_OUR_WORDS = {"base": "write `container: {image: …}`", "agent": "name harnesses and models in matrix"}
"""What our own messages name, where a case has another word for it."""
_ARTIFACTS = ("commands", "mcp", "plugins", "skills")
_IN_SOURCE = "put the files where the harness looks for them into source (.claude/skills, .mcp.json, …)"
_WITH_ARTIFACTS = "claude-code"
"""The known agent that reads them; Touchstone itself gives them to no other harness."""
_MCP_FILE = ".mcp.json"
_SPARE_SECONDS = 1800.0
"""Beside the limits of harness and graders, which Touchstone has none for: setup and commands."""
_EMPTY = CaseField("", MappingNode("", []), MappingNode("", []), None)


def translate_case(source: TranslationSource) -> Translation:
    """The case as a spec, with everything that is wrong with it. Raises SpecError for a file that can't be read."""
    return _Case(source).translation()


class _Case:
    def __init__(self, source: TranslationSource) -> None:
        document = source.merged.document
        self.reader = CaseReader(document)
        self.root = source.root
        self.directory = source.path.parent.resolve()
        self.path = source.path.resolve()
        self.whole = CaseField("", document.node, document.node, source.merged.data)
        required = ("id", "task", "matrix", "graders")
        self.fields = self.reader.fields(self.whole, _KNOWN, _OUR_WORDS, required)
        self.repositories = Repositories(self.directory, source.clone)
        self.read: list[Path] = []

    def translation(self) -> Translation:
        reader, fields = self.reader, self.fields
        case = reader.text(fields.get("id"), "case")
        fixtures = read_fixtures(reader, fields.get("fixtures"), case, self.repositories)
        graders = read_graders(reader, fields["graders"], fixtures.asset) if "graders" in fields else Graders()
        if fixtures.declared is not None and not fixtures.used:
            reader.warning(fixtures.declared.key, "fixtures: no grader names a file of it, so it is not cloned")
        prepared = read_preparation(reader, fields, self.directory, self.root)
        prompt, prompt_node = self._task()
        turns = self._turns()
        pairs, trials = self._matrix()
        harnesses = Harnesses.nearest(self.directory, self.root)
        found = self._harnesses(harnesses, pairs, [(prompt, prompt_node), *((one.value, one.node) for one in turns)])
        self._observe(found, graders)
        self._refuse_unsupported()
        hidden = [self.path, *([harnesses.file] if harnesses.file else []), *self._hidden_paths()]
        start = read_source(reader, fields.get("source"), self.repositories, hidden, fixtures)
        said = None if turns else prompt
        agents = {pair: harness.agent(pair[1], said, self.directory) for pair, harness in found.items()}
        prepared.files += self._artifacts(found)
        plugins = [file["path"] for file in prepared.files if file["path"].startswith(".claude/plugins/")]
        for document in agents.values() if plugins else ():
            document["args"] = [without_expressions(f"--plugin-dir={path}") for path in plugins]
        description = fields.get("description")
        if description is not None and description.value == "":
            description = None
        keys: dict[str, Any] = {
            "version": 1,
            "id": self._id(case),
            "task": build_node(
                {"prompt": prompt_node, **({"turns": [one.node for one in turns]} if turns else {})}, prompt_node
            ),
            "agent": build_node(next(iter(agents.values()), {"type": "none"}), self._at("matrix")),
            "parallelism": self._parallelism(pairs, trials),
            **({"description": description.node} if description is not None and reader.text(description) else {}),
            **start.keys,
            **prepared.keys(self._at("setup")),
            "resources": build_node(
                {"timeout": self._seconds(found, 1 + len(turns), graders, prepared)}, self.whole.node
            ),
            "scoring": self._scoring(),
            "invariants": _mapping(graders.invariants, self._at("graders")),
        }
        problems = [*reader.problems, *(harnesses.reader.problems if harnesses.reader else ())]
        return Translation(
            node=self._tree(keys),
            rules=RunRules(
                has_expressions=False,
                names_keys=False,
                agents={pair: harness_agent(document) for pair, document in agents.items()},
                agent_parameters=("harness", "model"),
                stubs=tuple(prepared.stubs),
                workspace_left_out=start.left_out,
                # With problems nothing runs, and graders that could not be read are not missed twice.
                only_gates=graders.only_gates or bool(problems),
                further_roots=tuple(self.repositories.roots),
            ),
            warnings=(*reader.warnings, *(harnesses.reader.warnings if harnesses.reader else ())),
            files=(harnesses.file.resolve(),) if harnesses.file else (),
            visible=tuple(path.resolve() for path in (*self.read, *prepared.read)),
            problems=tuple(problems),
        )

    def _at(self, name: str) -> Node:
        return self.fields[name].node if name in self.fields else self.whole.node

    def _tree(self, keys: Mapping[str, Any]) -> MappingNode:
        """Each key stands where that of the case stands which it comes from, so that an error about it does."""
        origins = {"invariants": "graders", "parallelism": "matrix", "scoring": "expect", "workspace": "source"}
        root = self.whole.node
        pairs = []
        for name, value in keys.items():
            origin = self.fields.get(origins.get(name, name))
            at = origin.key if origin is not None else root
            pairs.append((build_node(name, at), build_node(value, origin.node if origin is not None else root)))
        return MappingNode(root.tag, pairs, root.start_mark, root.end_mark)

    def _id(self, case: str) -> Node:
        """The case's id in kebab case, with a warning when it was none."""
        node = self._at("id")
        slug = re.sub(r"[^a-z0-9]+", "-", case.lower()).strip("-")[:128].strip("-") or "case"
        if slug == case:
            return node if "id" in self.fields and self.fields["id"].value == case else build_node(case, node)
        self.reader.warning(
            node, f"the id {show_value(case)} is {show_value(slug)} in results: a-z, 0-9 and single dashes"
        )
        return build_node(slug, node)

    def _task(self) -> tuple[str, Node]:
        """The prompt as a harness gets it, and its node: the system prompt before it, the files after it."""
        task = self.fields.get("task")
        if task is None:
            return "-", build_node("-", self.whole.node)
        reader = self.reader
        fields = reader.fields(task, ("instruction_files", "prompt", "system_prompt", "turns"), required=("prompt",))
        if "prompt" not in fields:
            return "-", build_node("-", task.node)
        prompt = reader.text(fields["prompt"], "-")
        for item in reader.texts(fields.get("instruction_files")):
            file = reader.file(item, self.directory, self.root)
            if file is not None:
                path, text = file
                self.read.append(path)
                prompt += f"\n\n## {path.name}\n{text}"
        if "system_prompt" in fields:
            prompt = f"{reader.text(fields['system_prompt'])}\n\n{prompt}"
        node = fields["prompt"].node
        return prompt, node if prompt == fields["prompt"].value else build_node(prompt, node)

    def _turns(self) -> list[CaseField]:
        """What is said after the prompt."""
        task = self.fields.get("task")
        turns = task.value.get("turns") if task is not None and isinstance(task.value, dict) else None
        if task is None or turns is None:
            return []
        return self.reader.texts(self.reader.fields(task, tuple(task.value)).get("turns"))

    def _matrix(self) -> tuple[dict[tuple[str, str], tuple[CaseField, CaseField]], Node | int]:
        """(harness, model) → their fields, each pair once, in the order of the file; and the number of trials."""
        matrix = self.fields.get("matrix")
        if matrix is None:
            return {}, 1
        reader = self.reader
        fields = reader.fields(matrix, ("entries", "harnesses", "models", "trials"))
        trials = self._trials(fields.get("trials"))
        pairs: dict[tuple[str, str], tuple[CaseField, CaseField]] = {}
        crossed = "harnesses" in fields or "models" in fields
        if crossed == ("entries" in fields):
            reader.problem(matrix.key, "matrix: expected either harnesses and models, or entries")
        elif crossed:
            missing = next((name for name in ("harnesses", "models") if not (fields.get(name) or _EMPTY).value), None)
            if missing is not None:
                reader.problem(matrix.key, f"matrix: there are no {missing}", expected="harnesses and models")
            models = reader.texts(fields.get("models"))
            for harness in reader.texts(fields.get("harnesses")):
                for model in models:
                    pairs.setdefault((harness.value, model.value), (harness, model))
        else:
            self._entries(fields["entries"], pairs)
        return pairs, trials

    def _trials(self, trials: CaseField | None) -> Node | int:
        if trials is None:
            return 1
        if isinstance(trials.value, int) and not isinstance(trials.value, bool) and trials.value >= 1:
            return trials.node
        message = "matrix.trials: expected how often each cell is run"
        self.reader.problem(trials.node, message, found=show_value(trials.value), expected="a number of at least 1")
        return 1

    def _entries(self, entries: CaseField, pairs: dict[tuple[str, str], tuple[CaseField, CaseField]]) -> None:
        items = self.reader.items(entries)
        if entries.value == []:
            self.reader.problem(entries.node, "matrix.entries: expected at least one entry")
        for item in items:
            of = self.reader.fields(item, ("harness", "models"), required=("harness", "models"))
            if "models" in of and of["models"].value == []:
                self.reader.problem(of["models"].node, f"{item.name}.models: expected at least one model")
            for model in self.reader.texts(of.get("models")):
                if self.reader.text(of.get("harness")):
                    pairs.setdefault((of["harness"].value, model.value), (of["harness"], model))

    def _parallelism(self, pairs: Mapping[tuple[str, str], tuple[CaseField, CaseField]], trials: Node | int) -> Node:
        at = self._at("matrix")
        include = [{"harness": harness.node, "model": model.node} for harness, model in pairs.values()]
        return build_node({"replicas": trials, "include": include}, at)

    def _harnesses(
        self,
        harnesses: Harnesses,
        pairs: Mapping[tuple[str, str], tuple[CaseField, CaseField]],
        said: Sequence[tuple[str, Node]],
    ) -> dict[tuple[str, str], Harness]:
        """The harness of each pair; each is looked up, and its problems are told, once."""
        by_name: dict[str, Harness | None] = {}
        for (name, _), (field, model) in pairs.items():
            if name not in by_name:
                by_name[name] = harnesses.find(self.reader, field)
            harness = by_name[name]
            if harness is not None:
                check_call(self.reader, harness, model, said)
        return {pair: harness for pair in pairs if (harness := by_name[pair[0]]) is not None}

    def _observe(self, found: Mapping[tuple[str, str], Harness], graders: Graders) -> None:
        """Traces are kept of every harness that has one; what is asked of one that has none is said."""
        observe = self.fields.get("observe")
        silent = sorted({harness.name for harness in found.values() if not harness.leaves_trace})
        words = f"the harness {', '.join(silent)} leaves no trace"
        if observe is not None:
            fields = self.reader.fields(observe, ("interaction", "tracing"))
            if self.reader.boolean(fields.get("tracing")) and silent:
                self.reader.warning(fields["tracing"].key, f"observe.tracing: {words}")
            self._interaction(fields.get("interaction"))
        for grader in graders.traced if silent else ():
            self.reader.warning(grader.node, f"{words}: this grader is skipped there")

    def _interaction(self, interaction: CaseField | None) -> None:
        if interaction is None:
            return
        advice = "harnesses run without asking, which is what auto-approve means"
        others = dict.fromkeys(("rules", "guidelines", "guidelines_file", "model", "fallback", "default"), advice)
        policy = self.reader.fields(interaction, ("policy",), others).get("policy")
        if policy is not None and policy.value != "auto-approve":
            message = f"the interaction policy {show_value(policy.value)} can't be honoured here"
            self.reader.problem(policy.node, message, expected="auto-approve", help=advice)

    def _refuse_unsupported(self) -> None:
        reader, fields = self.reader, self.fields
        availability = fields.get("availability")
        if reader.choice(availability, ("required", "optional"), "required") == "optional" and availability is not None:
            message = "availability: optional is not honoured: a repository that can't be reached is an error"
            reader.warning(availability.node, message)

    def _artifacts(self, found: Mapping[tuple[str, str], Harness]) -> list[dict[str, str]]:
        """What is put into the workspace for its agent, by the keys of `setup.files`."""
        artifacts, reader = self.fields.get("artifacts"), self.reader
        if artifacts is None:
            return []
        if not found or any(harness.preset != _WITH_ARTIFACTS for harness in found.values()):
            reader.fields(artifacts, (), dict.fromkeys(_ARTIFACTS, _IN_SOURCE))
            return []
        fields = reader.fields(artifacts, _ARTIFACTS)
        files: dict[str, dict[str, str]] = {}
        for kind in ("skills", "commands", "plugins"):
            for item in reader.texts(fields.get(kind)):
                name = Path(item.value).name
                alone = kind == "skills" and name.endswith(".md")
                place = f"{Path(name).stem}/SKILL.md" if alone else name
                self._put(files, f".claude/{kind}/{place}", item, is_folder=kind == "plugins")
        if "mcp" in fields and reader.text(fields["mcp"]):
            self._put(files, _MCP_FILE, fields["mcp"], is_folder=False)
        return list(files.values())

    def _put(self, files: dict[str, dict[str, str]], place: str, item: CaseField, *, is_folder: bool) -> None:
        path, shown = self.directory / str(item.value), show_value(item.value)
        if not path.resolve().is_relative_to(self.root):
            self.reader.problem(item.node, f"{item.name}: {shown} leaves {self.root}")
        elif not (path.is_dir() if is_folder or not path.is_file() else path.exists()):
            what = "directory" if is_folder else "file or directory"
            self.reader.problem(item.node, f"{item.name}: there is no {what} {shown}")
        elif place == _MCP_FILE and path.is_dir():
            self.reader.problem(item.node, f"{item.name}: {shown} is a directory", expected="a file of JSON")
        elif place in files:
            self.reader.problem(item.node, f"{item.name}: there are two that would be {place}")
        else:
            files[place] = {"path": place, "from": str(item.value)}

    def _hidden_paths(self) -> list[Path]:
        """What graders name of the author's, beside the case."""
        found: list[str] = []
        graders = self.fields["graders"].value if "graders" in self.fields else None
        for grader in graders if isinstance(graders, list) else ():
            if isinstance(grader, dict):
                inject = grader.get("inject")
                entries = inject if isinstance(inject, list) else []
                named = [grader.get("rubric"), grader.get("expect_dir"), *entries]
                named += [entry.get("src") for entry in entries if isinstance(entry, dict)]
                found += [one for one in named if isinstance(one, str)]
        return [self.directory / one for one in found]

    def _seconds(
        self, found: Mapping[tuple[str, str], Harness], turns: int, graders: Graders, prepared: CaseSetup
    ) -> float:
        """Touchstone limits no cell as a whole: the sum of all limits, and time to set up."""
        slowest = max((harness.timeout for harness in found.values()), default=0.0)
        return turns * slowest + graders.seconds + prepared.seconds + _SPARE_SECONDS

    def _scoring(self) -> dict[str, Any]:
        expect = self.fields.get("expect")
        threshold = self.reader.fields(expect, ("pass_threshold",)).get("pass_threshold") if expect else None
        return {"pass_threshold": threshold.node} if threshold is not None else {}


def _mapping(pairs: list[tuple[Node, Node]], at: Node) -> MappingNode:
    return MappingNode("tag:yaml.org,2002:map", pairs, at.start_mark, at.end_mark)
