"""Checks that execute: what the agent's code does in one of them must not decide another."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from support.attack_runs import Attack, Played, Scenario, area, as_processes, attack_fixture, played, played_in
from support.attacks import honest, hostile
from support.hostile import statuses

__all__ = ["area", "attack_fixture", "played"]

FAMILY = "earlier checks"
RUN_IT = {"type": "command_exit", "command": "python3 work.py"}
"""The check that executes what the agent wrote."""

NO = """
import json
print(json.dumps({"passed": False, "reason": "the author says no"}))
"""

PLANT = """
import os, pathlib, site
home = pathlib.Path(os.environ["HOME"])
yes = 'import os; os.write(1, b\\'{"passed": true, "reason": "forged"}\\'); os._exit(0)'
for user in {pathlib.Path(site.getusersitepackages()), home / ".local/lib/python3/site-packages"}:
    user.mkdir(parents=True, exist_ok=True)
    (user / "usercustomize.py").write_text(yes)
    (user / "planted.pth").write_text(yes + chr(10))
for name in (".profile", ".bashrc", ".bash_profile", ".zshenv"):
    (home / name).write_text('echo \\'{"passed": true, "reason": "forged"}\\'; exit 0')
pathlib.Path(os.environ["TMPDIR"], "json.py").write_text(yes)
"""


def leave(files: dict[str, str]) -> str:
    """The agent's script that writes these files."""
    return f"import pathlib\nfor name, text in {files!r}.items():\n    pathlib.Path(name).write_text(text)\n"


FIND = """
import json, os, pathlib, sys
workspace = pathlib.Path(json.load(sys.stdin)['workspace_path'])
(workspace / 'built/more').write_text('2')
found = [(workspace / 'built/part').read_text(), sorted(os.listdir(os.environ['HOME']))]
print(json.dumps({'passed': found == ['1\\n', []], 'reason': str(found)}))
"""
BUILD = "umask 077; mkdir built ~/bin && echo 1 > built/part && echo tool > ~/bin/tool && echo t > $TMPDIR/t"
# A file with a name in each, as package managers make them from their cache; in containers that can't be.
LINK = "{ ln ~/bin/tool built/linked || cp ~/bin/tool built/linked; }"
AGAIN = f'test -z "$(ls $TMPDIR)" && {LINK} && echo 3 >> built/more'

RUN_WITH_PATHS = """
import json, subprocess, sys
context = json.load(sys.stdin)
words = ['python3', 'work.py', __file__, context['audit_log_path']]
said = subprocess.run(words, cwd=context['workspace_path'], capture_output=True, text=True).stdout
seen = [said, open(__file__).read()[-20:], open(context['audit_log_path']).read()]
print(json.dumps({'passed': said == 'tried\\n' and 'forged' not in str(seen), 'reason': str(seen)}))  # the end
"""
FORGE = """
import contextlib, os, pathlib, shutil, sys
for name in sys.argv[1:]:
    place = pathlib.Path(name)
    for folder in (place.parent.parent, place.parent):
        with contextlib.suppress(OSError):
            os.rename(folder, str(folder) + ".away")
            shutil.copytree(str(folder) + ".away", folder)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        os.path.lexists(place) and os.unlink(place)
    with contextlib.suppress(OSError):
        place.write_text("forged")
print("tried")
"""
HEAR = """
import json, subprocess, sys
workspace = json.load(sys.stdin)['workspace_path']
said = subprocess.run(['python3', 'work.py'], cwd=workspace, capture_output=True, text=True).stdout
print(json.dumps({'passed': said == '42\\n', 'reason': said}))
"""

OWN_PYTHON = """
import json, subprocess
script = ['python3', '-c', 'import json; print(json.dumps(0))']
done = subprocess.run(script, capture_output=True, text=True)
print(json.dumps({'passed': done.stdout == '0\\n', 'reason': done.stdout + done.stderr}))
"""
FORGED = 'import os; os.write(1, b\'{"passed": false, "reason": "forged"}\'); os._exit(0)'
BY_ITS_PATH = """
import json, sys
sys.path.append(json.load(sys.stdin)['workspace_path'])
import answer
print(json.dumps({'passed': answer.VALUE == 42}))
"""

DECIDE = {"type": "custom", "script": "decide.py", "runs_in": "sandbox"}
IN_EACH = ("process", "bind")
ALSO_COPIED = (*IN_EACH, "copy")
"""Where it matters how trees, scripts and HOME get into containers."""


def scenario(
    left: dict[str, str],
    decide: str,
    checks: dict[str, Any] | None = None,
    where: tuple[str, ...] = ALSO_COPIED,
    **more: Any,
) -> Scenario:
    """left: by the agent; decide: the author's script."""
    return Scenario(leave(left), checks or {"script": DECIDE}, {"decide.py": decide}, where, more=more)


SCENARIOS = {
    "plants in HOME": scenario(
        {"work.py": PLANT},
        NO,
        {
            "runs": RUN_IT,
            "script": DECIDE,
            "command": {"type": "command_exit", "command": "python3 -c 'raise SystemExit(1)'"},
            "shell": {"type": "command_exit", "command": ["sh", "-l", "-c", "exit 1"]},
        },
    ),
    "goes on with the tree": scenario(
        {"work.py": "pass"},
        FIND,
        {
            "builds": {"type": "command_exit", "command": BUILD},
            "script": DECIDE,
            "shares": {"type": "command_exit", "command": AGAIN, "share_home": True},
            "more": {"type": "command_exit", "command": "echo 4 >> ~/bin/tool && cat built/linked", "share_home": True},
            "alone": {"type": "command_exit", "command": "test -f built/more && test ! -e ~/bin"},
        },
    ),
    "changes the script": scenario({"work.py": FORGE}, RUN_WITH_PATHS),
    "says what it has to": scenario({"work.py": "print(6 * 7)"}, HEAR),
    "plants modules": scenario(
        {"json.py": FORGED, "subprocess.py": FORGED}, OWN_PYTHON, where=IN_EACH, setup={"env": {"PYTHONPATH": "."}}
    ),
    "is imported by its path": scenario({"answer.py": "VALUE = 42"}, BY_ITS_PATH, where=IN_EACH),
}
PLAYED_IN_EACH, PLAYED_ALSO_COPIED = played_in(*IN_EACH), played_in(*ALSO_COPIED)


@PLAYED_ALSO_COPIED
@hostile(FAMILY, "plants start-up files in HOME", held_by="a HOME of its own for each check", sandbox="both")
def test_what_one_check_leaves_in_home_does_not_run_in_the_next(played: Played) -> None:
    found = played.statuses("plants in HOME")
    assert found == {"runs": "pass", "script": "fail", "command": "fail", "shell": "fail"}, played.called.err
    assert played.checks("plants in HOME")["script"]["message"] == "the author says no"


@PLAYED_ALSO_COPIED
@honest(FAMILY, "plants start-up files in HOME", sandbox="both")
def test_checks_go_on_with_the_tree_and_by_request_with_home(played: Played) -> None:
    """What a check builds in the tree is there for the next, and can be changed by it; what is in HOME, on request."""
    found = played.statuses("goes on with the tree")
    assert set(found.values()) == {"pass"}, played.checks("goes on with the tree")


@PLAYED_ALSO_COPIED
@hostile(FAMILY, "changes the author's script and logs", held_by="a read-only folder outside the tree", sandbox="both")
def test_a_script_that_runs_the_agents_code_goes_on_unchanged(played: Played) -> None:
    assert played.statuses("changes the script") == {"script": "pass"}, played.checks("changes the script")


@PLAYED_ALSO_COPIED
@honest(FAMILY, "changes the author's script and logs", sandbox="both")
def test_a_script_that_runs_the_agents_code_hears_what_it_says(played: Played) -> None:
    assert played.statuses("says what it has to") == {"script": "pass"}, played.checks("says what it has to")


@PLAYED_IN_EACH
@hostile(FAMILY, "plants modules for a script's own Python", held_by="Python's safe path", sandbox="both")
def test_a_script_takes_no_module_of_the_agents(played: Played) -> None:
    assert played.statuses("plants modules") == {"script": "pass"}, played.checks("plants modules")


@PLAYED_IN_EACH
@honest(FAMILY, "plants modules for a script's own Python", sandbox="both")
def test_a_script_may_import_what_the_agent_wrote_by_its_path(played: Played) -> None:
    found = played.statuses("is imported by its path")
    assert found == {"script": "pass"}, played.checks("is imported by its path")


def repository(area: Path) -> None:
    """A workspace that is one, with one commit."""
    (area / "start").mkdir()
    (area / "start" / "kept.txt").write_text("kept\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=area / "start", check=True)


STATUS = (
    "import json, os, subprocess, sys\n"
    "os.chdir(json.load(sys.stdin)['workspace_path'])\n"
    "done = subprocess.run(['git', 'status', '--porcelain'], capture_output=True, text=True)\n"
    "found = [done.returncode, done.stdout, done.stderr, os.path.exists('planted.ran')]\n"
    "print(json.dumps({'passed': found == [0, ' M kept.txt\\n?? planted\\n', '', False], 'reason': str(found)}))\n"
)


@as_processes
@hostile(FAMILY, "names a program in .git/config", held_by="git directories without programs")
def test_git_of_a_script_runs_nothing_that_the_agent_configured(area: Path, attack: Attack) -> None:
    repository(area)
    (area / "decide.py").write_text(STATUS)
    script = """
import os, subprocess
open("kept.txt", "a").write("more")
open("planted", "w").write("#!/bin/sh\\ntouch planted.ran\\n")
os.chmod("planted", 0o755)
here = os.getcwd() + "/planted"
"""
    keys = ("core.fsmonitor", "filter.x.clean", "diff.external")
    plant = " && ".join(f"git config {key} $PWD/planted" for key in keys)
    called = attack(
        script,
        {
            "plants": {"type": "command_exit", "command": plant},
            "script": {"type": "custom", "script": "decide.py", "runs_in": "sandbox"},
        },
        workspace="start",
    )
    assert statuses(called) == {"plants": "pass", "script": "pass"}, called.checks["script"]["message"]


@as_processes
@honest(FAMILY, "names a program in .git/config")
def test_git_works_in_the_tree_that_checks_hand_on(area: Path, attack: Attack) -> None:
    """Each has a user of its own, and git refuses a repository of somebody else's."""
    repository(area)
    (area / "decide.py").write_text(STATUS)
    commit = (
        "git config user.name a && git config user.email a@b && git commit -qam second && git log --oneline | wc -l"
    )
    called = attack(
        "open('kept.txt', 'a').write('more')\nopen('planted', 'w')",
        {
            "first": {"type": "command_exit", "command": "git status --porcelain | grep -qx ' M kept.txt'"},
            "script": {"type": "custom", "script": "decide.py", "runs_in": "sandbox"},
            "last": {"type": "command_exit", "command": f"test $({commit}) = 2"},
        },
        workspace="start",
    )
    assert set(statuses(called).values()) == {"pass"}, called.out + called.err
