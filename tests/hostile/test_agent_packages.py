"""`custom` with `agent_packages`: the script imports what the agent installed, and nothing that the agent calls so."""

from __future__ import annotations

from typing import Any

from support.attack_runs import Played, Scenario, played, played_in
from support.attacks import honest, hostile

__all__ = ["played"]

FAMILY = "agent's packages"
IN_EACH = ("process", "bind", "copy")
DECIDE = {"type": "custom", "script": "decide.py", "runs_in": "sandbox", "agent_packages": True}
SAFE = {**DECIDE, "agent_packages": False}

PLANT = r"""
import os, pathlib, site, sys
yes = "import os; os.write(1, b'{\"passed\": true, \"reason\": \"forged\"}'); os._exit(0)\n"
version = "python%d.%d" % sys.version_info[:2]
for place in (pathlib.Path(site.getusersitepackages()), pathlib.Path(".venv/lib", version, "site-packages")):
    place.mkdir(parents=True)
    for name in ("json.py", "subprocess.py", "sitecustomize.py", "usercustomize.py", "planted.pth", "pip.py"):
        (place / name).write_text(yes)
    (place / "argparse").mkdir()
    (place / "argparse" / "__init__.py").write_text(yes)
    # Distributions that have pytest, or whoever looks for plug-ins, load a module of theirs.
    (place / "plug-1.0.dist-info").mkdir()
    (place / "plug-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (place / "plug-1.0.dist-info" / "entry_points.txt").write_text("[pytest11]\nplug = plug\n")
    (place / "outside.py").symlink_to("/etc/passwd")
    (place / "everything").symlink_to("/")
    (place / "rounds").symlink_to(place)
    (place / "good.py").write_text("VALUE = 42\n")
"""
LOOK = """
import argparse, importlib, json, os, pathlib, subprocess, sys
from importlib.metadata import entry_points
import good, pip
started = subprocess.run(["python3", "-c", "import json; print(json.dumps(7))"], capture_output=True, text=True)
linked = [name for name in ("outside", "everything", "rounds") if importlib.util.find_spec(name)]
found = {
    "value": good.VALUE,
    "started": started.stdout,
    "linked": linked,
    "plugs": [one.name for one in entry_points(group="pytest11") if one.name == "plug"],
    "writes": os.access(good.__file__, os.W_OK) or os.access(os.path.dirname(good.__file__), os.W_OK),
}
wanted = {"value": 42, "started": "7\\n", "linked": [], "plugs": [], "writes": False}
print(json.dumps({"passed": found == wanted, "reason": str(found), "details": {"mine": 1}}))
"""
UNASKED = r"""
import pathlib, site
yes = "import os; os.write(1, b'{\"passed\": true, \"reason\": \"forged\"}'); os._exit(0)\n"
place = pathlib.Path(site.getusersitepackages())
place.mkdir(parents=True)
for name in ("org", "java", "msvcrt", "_winapi", "asked_by_ours"):
    (place / name).mkdir()
    (place / name / "__init__.py").write_text(yes)
for part in ("python", "python/core"):
    (place / "org" / part).mkdir()
    (place / "org" / part / "__init__.py").write_text(yes)
"""
IMPORT = """
import copy, copyreg, ctypes, getpass, importlib, json, mimetypes, pathlib, pickle, platform, subprocess, sys, uuid
library = pathlib.Path("site-packages").resolve()
library.mkdir()
(library / "ours.py").write_text("try: import asked_by_ours\\nexcept ImportError: pass\\n")
sys.path.append(str(library))
import ours
print(json.dumps({"passed": False, "reason": "by the script"}))
"""
ASK = r"""
import json, subprocess, sys
import importlib, importlib.util
import org.python.core
named = importlib.import_module("java")
sought = importlib.util.find_spec("asked_by_ours")
started = subprocess.run(["python3", "-m", "asked_by_ours"], capture_output=True, text=True).stdout
found = [org.python.core.VALUE, named.__name__, sought is not None, started]
print(json.dumps({"passed": found == [1, "java", True, "run\n"], "reason": str(found)}))
"""
ASKED = UNASKED.replace(UNASKED[UNASKED.index("yes = ") : UNASKED.index("place = ")], 'yes = "VALUE = 1\\n"\n') + (
    '(place / "asked_by_ours" / "__main__.py").write_text("print(\'run\')")\n'
)
INSTALL = r"""
import os, pathlib, subprocess, sys, zipfile, site
about = "greeting-1.0.dist-info/"
with zipfile.ZipFile("greeting-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("greeting/__init__.py", "from importlib.metadata import version\nfrom . import words\n"
        "TEXT = words.HELLO + ' ' + version('greeting')\n")
    wheel.writestr("greeting/words.py", "HELLO = 'hello'\n")
    wheel.writestr("shared/part/of_agent.py", "WORD = 'namespace'\n")
    wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(about + "RECORD", "")
words = [sys.executable, "-m", "pip", "install", "-q", "--user", "--no-index", "--break-system-packages"]
if subprocess.run([*words, wheel.filename]).returncode:  # a machine without pip
    zipfile.ZipFile(wheel.filename).extractall(site.getusersitepackages())
place = pathlib.Path(".venv/lib", "python%d.%d" % sys.version_info[:2], "site-packages")
place.mkdir(parents=True)
(place / "other.py").write_text("VALUE = 3\n")
"""
GREET = """
import json, subprocess
import greeting, other
from shared.part import of_agent
words = ["python3", "-c", "import greeting; print(greeting.TEXT)"]
said = subprocess.run(words, capture_output=True, text=True).stdout.strip()
found = [greeting.TEXT, other.VALUE, of_agent.WORD, said]
print(json.dumps({"passed": found == ["hello 1.0", 3, "namespace", "hello 1.0"], "reason": str(found)}))
"""


def scenario(agent: str, decide: str, **checks: Any) -> Scenario:
    return Scenario(agent, checks, {"decide.py": decide}, IN_EACH)


SCENARIOS = {
    "plants": scenario(PLANT, LOOK, script=DECIDE),
    "waits": scenario(UNASKED, IMPORT, script=DECIDE),
    "is asked": scenario(ASKED, ASK, script=DECIDE),
    "installs": scenario(INSTALL, GREET, script=DECIDE, safe=SAFE),
}


@played_in(*IN_EACH)
@hostile(FAMILY, "plants modules, .pth and links in site-packages", held_by="a filtered copy, looked into last")
def test_a_script_imports_no_name_that_was_taken(played: Played) -> None:
    script = played.checks("plants")["script"]
    assert script["status"] == "pass", script["message"]
    assert script["details"]["mine"] == 1
    notices = "\n".join(played.cell("plants")["notices"])
    for name in ("argparse", "json.py", "planted.pth"):
        assert name in notices


@played_in(*IN_EACH)
@honest(FAMILY, "plants modules, .pth and links in site-packages")
def test_a_script_imports_what_the_agent_installed(played: Played) -> None:
    checks = played.checks("installs")
    assert checks["script"]["status"] == "pass", checks["script"]["message"]
    assert "The script could import what the agent installed" in checks["script"]["message"]
    assert checks["script"]["details"]["agent_packages"] == ["greeting", "other", "shared"]
    assert checks["safe"]["status"] == "error"
    assert "found no module greeting" in checks["safe"]["message"]
    assert "`agent_packages: true`" in checks["safe"]["message"]


@played_in(*IN_EACH)
@hostile(FAMILY, "names that only Python's own library tries", held_by="who imports is looked at")
def test_only_what_the_script_asks_for_is_imported(played: Played) -> None:
    script = played.checks("waits")["script"]
    assert (script["status"], script["message"].splitlines()[0]) == ("fail", "by the script")


@played_in(*IN_EACH)
@honest(FAMILY, "names that only Python's own library tries")
def test_a_script_may_import_the_same_names_by_itself(played: Played) -> None:
    script = played.checks("is asked")["script"]
    assert script["status"] == "pass", script["message"]
