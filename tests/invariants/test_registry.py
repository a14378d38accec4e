"""The check types a spec can name: ours, and those of packages that somebody installed beside us."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.context import grade

from keystone_action.errors import UsageError
from keystone_action.invariants.check import Check, CheckContext, Outcome, passed
from keystone_action.invariants.registry import BUILT_IN, GROUP, CheckTypes

PACKAGE = Path(__file__).parent.parent / "data" / "plugin_package"


class Good(Check):
    type_name: ClassVar[str] = "good"
    aliases: ClassVar[tuple[str, ...]] = ("fine",)

    async def evaluate(self, context: CheckContext) -> Outcome:
        return passed("Good.")


class NotAsync(Check):
    type_name: ClassVar[str] = "not_async"

    def evaluate(self, context: CheckContext) -> Any:
        return passed("Too soon.")


class NoEvaluate(Check):
    type_name: ClassVar[str] = "no_evaluate"


class OddPhase(Good):
    type_name: ClassVar[str] = "odd_phase"
    phase: ClassVar[Any] = "whenever"


class OddTimeout(Good):
    type_name: ClassVar[str] = "odd_timeout"
    default_timeout: ClassVar[float] = float("nan")


class Thief(Good):
    type_name: ClassVar[str] = "thief"
    aliases: ClassVar[tuple[str, ...]] = ("sql",)


not_a_class = "just a text"


def types(*entries: tuple[str, str]) -> CheckTypes:
    here = __name__
    found = [
        EntryPoint(name=name, value=value if ":" in value else f"{here}:{value}", group=GROUP)
        for name, value in entries
    ]
    return CheckTypes(lambda: found)


def test_each_built_in_name_leads_to_a_check_that_has_it() -> None:
    found = types()
    assert set(found) == set(BUILT_IN)
    for name in found:
        assert name in (found[name].type_name, *found[name].aliases)


def test_aliases_lead_to_the_same_class() -> None:
    found = types()
    assert found["command"] is found["command_exit"]
    assert found["model_judge"] is found["llm_as_judge"]


def test_every_name_of_the_contract_is_there() -> None:
    """spec.md 1.7"""
    names = """
        command_exit command file_exists file_absent file_content files sql http_mock_assertions custom llm_as_judge
        model_judge tests pytest swebench implemented trace efficiency tool_correctness passfail exact regex similarity
        diff json http budget
    """
    assert set(names.split()) <= BUILT_IN


def test_an_unknown_name_is_no_key() -> None:
    found = types()
    assert "nonsense" not in found
    assert found.get("nonsense") is None
    with pytest.raises(KeyError):
        found["nonsense"]


def test_naming_a_built_in_type_asks_for_no_entry_points_and_imports_no_other() -> None:
    """In an interpreter of its own, so that nothing is imported yet."""
    script = (
        "import sys\n"
        "from keystone_action.invariants.registry import CheckTypes\n"
        "def never():\n    raise AssertionError('asked')\n"
        "CheckTypes(never)['file_exists']\n"
        "assert 'keystone_action.invariants.types.sql' not in sys.modules\n"
        "assert 'httpx' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_plug_in_is_loaded_by_name_and_alias() -> None:
    found = types(("good", "Good"), ("fine", "Good"))
    assert {"good", "fine"} <= set(found)
    assert found["good"] is Good
    assert found["fine"] is Good


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("gone", "no_such_module_of_ours:X", "can't be imported: ModuleNotFoundError"),
        ("gone", "NoSuchClass", "can't be imported: AttributeError"),
        ("text", "not_a_class", "is not a subclass of Check"),
        ("text", "Path", "is not a subclass of Check"),
        ("other", "Good", "has the type_name 'good', expected 'other'"),
        ("no_evaluate", "NoEvaluate", "has no evaluate"),
        ("not_async", "NotAsync", "is not async"),
        ("odd_phase", "OddPhase", "has the phase 'whenever'"),
        ("odd_timeout", "OddTimeout", "has the default_timeout nan"),
        ("thief", "Thief", "takes the built-in name 'sql'"),
    ],
)
def test_an_unfit_plug_in_is_refused_only_when_it_is_named(name: str, value: str, problem: str) -> None:
    found = types((name, value), ("good", "Good"))
    assert found["good"] is Good
    assert name in found
    with pytest.raises(UsageError, match=problem) as refused:
        found[name]
    assert f"the check type {name!r} of an unknown package" in refused.value.message
    assert refused.value.exit_code == 2


def test_no_plug_in_takes_a_name_of_ours() -> None:
    found = types(("sql", "Good"), ("tests", "Good"))
    assert found["sql"].__module__ == "keystone_action.invariants.types.sql"
    assert found["tests"].__module__ == "keystone_action.invariants.types.tests"
    assert len(found.shadowing()) == 2
    assert "the check type 'sql', which is built in" in found.shadowing()[0]


def test_two_packages_with_one_name_are_refused() -> None:
    found = types(("good", "Good"), ("good", "Thief"))
    with pytest.raises(UsageError, match=r"is registered by .* and "):
        found["good"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Path]:
    """The package laid out as an installer does: its modules, and metadata with its entry points."""
    site = tmp_path_factory.mktemp("site")
    (site / "acme_checks").symlink_to(PACKAGE / "src" / "acme_checks")
    metadata = site / "acme_checks-1.2.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-checks\nVersion: 1.2.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{GROUP}]\nword_count = acme_checks:WordCount\nbroken = acme_checks:Missing\n"
    )
    sys.path.insert(0, str(site))
    yield site
    sys.path.remove(str(site))
    sys.modules.pop("acme_checks", None)


@pytest.mark.usefixtures("installed")
def test_an_installed_package_is_found_listed_and_graded_with(tmp_path: Path) -> None:
    assert "word_count" in set(CheckTypes())
    (tmp_path / "note.txt").write_text("three small words")
    check = {"type": "word_count", "path": "note.txt", "at_most": 3}
    assert grade(check, tmp_path).status == "pass"
    assert grade({**check, "at_most": 2}, tmp_path).message == "note.txt has 3 words, expected at most 2."


@pytest.mark.usefixtures("installed")
def test_a_broken_installed_plug_in_names_its_distribution() -> None:
    with pytest.raises(UsageError, match=r"'broken' of acme-checks 1\.2\.0 can't be imported"):
        CheckTypes()["broken"]
