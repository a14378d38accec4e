"""Names of the format that lead to the class in the file of that name."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from keystone_action.spec.named_classes import class_of_file


class Base(ABC):
    @abstractmethod
    def answer(self) -> int: ...


IMPORTED = "from test_named_classes import Base\n"
SHARED = "class Shared(Base): ...\n"
ONE = "class One(Shared):\n    def answer(self): return 1\n"
TWO = "class Two(One): ...\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_named_classes", sys.modules[__name__])
    monkeypatch.delitem(sys.modules, "kind_of_test", raising=False)
    return tmp_path / "kind_of_test.py"


def test_what_is_imported_or_abstract_is_not_the_class(file: Path) -> None:
    file.write_text(IMPORTED + SHARED + ONE)
    assert class_of_file("kind_of_test", Base).__name__ == "One"  # type: ignore[type-abstract]


@pytest.mark.parametrize(("classes", "found"), [("", "none"), (SHARED + ONE + TWO, "One, Two")])
def test_a_file_with_no_class_or_several_is_named(file: Path, classes: str, found: str) -> None:
    file.write_text(IMPORTED + classes)
    with pytest.raises(TypeError, match=rf"expected one class of Base in {file}, found {found}"):
        class_of_file("kind_of_test", Base)  # type: ignore[type-abstract]


def test_a_class_that_lacks_a_method_is_told_which(file: Path) -> None:
    file.write_text(IMPORTED + SHARED)
    with pytest.raises(
        TypeError, match=rf"the class in {file} is not complete: Shared lacks answer, which Base demands"
    ):
        class_of_file("kind_of_test", Base)  # type: ignore[type-abstract]


def test_a_name_without_a_file_is_told_and_a_missing_package_is_not_mistaken_for_it(file: Path) -> None:
    with pytest.raises(TypeError, match="a class of Base is expected in kind_of_test, which is not there"):
        class_of_file("kind_of_test", Base)  # type: ignore[type-abstract]
    file.write_text("import no_such_package_of_test")
    with pytest.raises(ModuleNotFoundError, match="no_such_package_of_test"):
        class_of_file("kind_of_test", Base)  # type: ignore[type-abstract]
