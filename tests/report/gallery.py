"""Pictures of six runs as they happen, to be looked at: `PYTHONPATH=tests:. python tests/report/gallery.py FOLDER`.

A run that passed, a gate that failed, replicas that disagree, a service that is not there, forty specs beside a
baseline, and the replay of a fork. Comment and summary of each, in light and dark, on a desktop and on a phone.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.command_line import NO_ENGINE, ROOT, Called, keystone
from support.model_agents import behind, calls, says, spec_of
from support.repositories import commit, git

from keystone_action.report.comment.history import LastResult, Marker
from keystone_action.report.comment.render import CommentFacts, render_comment
from keystone_action.report.summary import render_summary
from keystone_action.scoring.document import run_from_document
from keystone_action.scoring.results import RunResult
from tools.github_page import DESKTOP, PHONE, Page, draw

SITE = "https://github.com/octo/agents"
RUN_URL = f"{SITE}/actions/runs/6001/attempts/1"
OUT = ("--output", "out")
ORIGIN = (
    "This is what a run of code from mallory/agents, without secrets of this repository, says of itself, its verdict "
    "and any change of its own gate included. GitHub says that the run ended with success."
)
AREAS = ("billing", "catalog", "checkout", "search", "support")
TASKS = ("add", "export", "import", "list", "merge", "remove", "rename", "sync")
BROKEN = {"billing-export": "a receipt of 0.00", "search-sync": "", "support-merge": "two customers"}


def passed(folder: Path) -> Called:
    return _reconcile(folder, "agent.py")


def gate_failed(folder: Path) -> Called:
    return _reconcile(folder, "careless_agent.py")


def _reconcile(folder: Path, agent: str) -> Called:
    example = folder / "evals" / "reconcile"
    shutil.copytree(ROOT / "examples" / "reconcile", example)
    text = (example / "keystone.yaml").read_text("utf-8").replace("/agent.py", f"/{agent}")
    (example / "keystone.yaml").write_text(text, "utf-8")
    return _run(folder, "evals/reconcile/keystone.yaml")


def flaky(folder: Path) -> Called:
    """Two models, three tasks, five replicas: a small model forgets something now and then."""
    work = """
    r="{{ cell.replica }}"; echo "renamed the field in 3 files"
    echo '- Rename the field' > CHANGES.md; echo '{"fields": ["id", "full_name"]}' > schema.json
    if [ "{{ params.model }}" = small ]; then
      if [ "$KEYSTONE_PROMPT" = rename ] && [ "$r" -gt 2 ]; then rm CHANGES.md; fi
      if [ "$KEYSTONE_PROMPT" = remove ] && [ "$r" = 1 ]; then echo '{' > schema.json; fi
    fi
    """
    spec = {
        "version": 1,
        "id": "migrate-schema",
        "description": "Small changes of a schema, noted for those who upgrade",
        "task": {"prompt": "{{ record.input }}"},
        "agent": {"type": "command", "command": work},
        "parallelism": {"replicas": 5, "matrix": {"model": ["small", "large"]}},
        "scenarios": [{"id": name, "input": name} for name in ("add", "remove", "rename")],
        "scoring": {"pass_threshold": 0.9, "replica_aggregation": "majority"},
        "invariants": {
            "schema_is_json": {
                "gate": True,
                "description": "The schema can be read",
                "check": {"type": "command_exit", "command": "python3 -m json.tool schema.json | grep -q full_name"},
            },
            "change_is_noted": {
                "description": "Who upgrades is told",
                "check": {"type": "file_content", "path": "CHANGES.md", "pattern": "(?m)^- (Add|Remove|Rename)"},
            },
        },
    }
    return _run(folder, _write(folder, "evals/migrate-schema/keystone.yaml", spec))


def service_error(folder: Path) -> Called:
    """A database that is not there, for three replicas, beside a spec that needs none."""
    agent = {"type": "command", "command": "echo done | tee ANSWER.md"}
    check = {"answered": {"check": {"type": "file_exists", "path": "ANSWER.md"}}}
    url = "postgresql://app:app@127.0.0.1:9/app"
    common = {"version": 1, "task": {"prompt": "Answer."}, "agent": agent, "invariants": check}
    service = {"name": "db", "type": "external", "url": url, "ready_timeout": "1s"}
    _write(folder, "evals/answer.keystone.yaml", {**common, "id": "answer"})
    more = {"id": "clean-up", "services": [service], "parallelism": {"replicas": 3}}
    _write(folder, "evals/clean-up.keystone.yaml", {**common, **more})
    return _run(folder, "evals")


def regression(folder: Path) -> Called:
    """Forty specs, of which three passed on the base branch and fail here."""
    names = [f"{area}-{task}" for area in AREAS for task in TASKS]
    for kind in ("base", "head"):
        for name in names:
            area, task = name.split("-")
            answer = BROKEN.get(name, "a receipt") if kind == "head" else "a receipt"
            spec = {
                "version": 1,
                "id": name,
                "task": {"prompt": f"{task} the {area} records, then write a receipt"},
                "agent": {"type": "command", "command": f"echo '{answer}' > receipt.txt"},
                "invariants": {
                    "receipt": {
                        "gate": True,
                        "description": "The receipt is as agreed",
                        "check": {"type": "file_content", "path": "receipt.txt", "pattern": "^a receipt$"},
                    },
                    "no_leftovers": {"check": {"type": "file_absent", "path": "*.tmp"}},
                },
            }
            _write(folder, f"evals/{area}/{task}.keystone.yaml", spec)
        if kind == "base":
            keystone("run", "evals", "--output", "base", directory=folder, environ=NO_ENGINE)
    return _run(folder, "evals", "--baseline", "base")


def fork_replayed(folder: Path) -> Called:
    """Recorded with a model, then replayed without any key."""
    script = """
status, answer = ask([user("Which invoices are overdue?")])
asked = user("Which invoices are overdue?")
used = [part for part in answer["content"] if part["type"] == "tool_use"]
status, answer = ask([asked, {"role": "assistant", "content": answer["content"]}, result(used[0]["id"], "17, 23")])
print(answer["content"][0]["text"])
"""
    spec = spec_of(script, id="overdue-invoices", task={"prompt": "Which invoices are overdue?"})
    spec["invariants"] = {
        "names_all": {"gate": True, "check": {"type": "regex", "pattern": "17.*23"}},
        "within_budget": {"check": {"type": "budget", "max_tokens": 5000, "max_tool_calls": 3, "max_cost_usd": 0.05}},
    }
    path = _write(folder, "evals/overdue/keystone.yaml", spec)
    answers = calls(("toolu_1", "Bash", {"command": "sqlite3 books.db 'select id from overdue'"}))
    with behind(answers, says("Overdue are 17 and 23.", (1400, 30))) as (_, environ):
        keystone("run", path, "--output", "recorded", "--gateway", "record", directory=folder, environ=environ)
    return _run(folder, path, "--gateway", "replay")


RUNS: Mapping[str, Callable[[Path], Called]] = {
    "1-pass": passed,
    "2-gate-failed": gate_failed,
    "3-flaky-matrix": flaky,
    "4-service-error": service_error,
    "5-regression-40-specs": regression,
    "6-fork-replay": fork_replayed,
}


def record(folder: Path) -> dict[str, dict[str, Any]]:
    """Runs all of them below a folder; the documents of their results, by name."""
    documents = {}
    for name, play in RUNS.items():
        checkout = folder / name
        checkout.mkdir(parents=True)
        git(checkout, "init", "--quiet")
        documents[name] = play(checkout).document
    return documents


def texts(name: str, document: dict[str, Any]) -> dict[str, str]:
    """Comment and summary of a run, as the action writes them."""
    run = run_from_document(document)
    sha = "9f3c2ab1d0e84b7a96f5c1b2a3d4e5f60718293a"
    links = {spec.id: f"{SITE}/blob/{sha}/{spec.path}" for spec in run.specs if spec.verdict != "pass"}
    before = None if name in ("1-pass", "6-fork-replay") else LastResult("pass", 1.0, "1" * 40, None)
    facts = CommentFacts(sha=sha, run_url=RUN_URL, before=before, links=links)
    if name == "6-fork-replay":
        facts = CommentFacts(sha=sha, run_url=RUN_URL, origin=ORIGIN, reporter="a fork")
    return {"comment": render_comment(run, Marker.of_key("gallery"), facts), "summary": _summary(run, links)}


def _summary(run: RunResult, links: Mapping[str, str]) -> str:
    return render_summary(run, links=links)


def pages(documents: Mapping[str, dict[str, Any]]) -> dict[str, Page]:
    """File name → what it shows."""
    return {
        f"{name}-{kind}-{place}-{theme}.png": Page(text, width, theme, scale=1)
        for name, document in documents.items()
        for kind, text in texts(name, document).items()
        for place, width in (("desktop", DESKTOP), ("phone", PHONE))
        for theme in ("light", "dark")
    }


def _run(folder: Path, *words: str) -> Called:
    commit(folder, {})
    return keystone("run", *words, *OUT, directory=folder, environ=NO_ENGINE)


def _write(folder: Path, name: str, spec: Mapping[str, Any]) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(spec, indent=1), "utf-8")
    return name


def main(words: Sequence[str]) -> None:
    """FOLDER: where the pictures go. The results of the runs are kept beside them, and used again where they are."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    folder = Path(words[0])
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "runs.json"
    if not kept.exists():
        with TemporaryDirectory() as made:
            kept.write_text(json.dumps(record(Path(made))))
    drawn = pages(json.loads(kept.read_text()))
    draw([replace(page, picture=str(folder / name)) for name, page in drawn.items()])


if __name__ == "__main__":
    main(sys.argv[1:])
