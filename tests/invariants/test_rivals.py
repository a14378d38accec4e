"""Which files of an agent's would run in place of an injected or protected one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.files.snapshot import Change, FileState
from keystone_action.invariants.test_runs.stand_ins import Held, taken_away_sentence


def added(path: str, kind: str = "file") -> Change:
    return Change(path, "added", None, FileState(kind, 0o644))  # type: ignore[arg-type]


def changed(path: str) -> Change:
    return Change(path, "modified", FileState("file", 0o644), FileState("file", 0o644, 1))


def rivals(held: list[str], changes: list[Change], authors: tuple[str, ...] = ()) -> dict[str, str]:
    return Held.of(held).rivals(changes, authors, lambda _: False)


@pytest.mark.parametrize(
    ("held", "path", "instead_of"),
    [
        ("test_x.py", "test_x/__init__.py", "test_x.py"),
        ("test_x.py", "test_x/__init__.cpython-311-x86_64-linux-gnu.so", "test_x.py"),
        ("test_x.py", "test_x.cpython-311-x86_64-linux-gnu.so", "test_x.py"),
        ("a/test_x.py", "a/test_x.abi3.so", "a/test_x.py"),
        ("a/test_x.py", "a/__init__.py", "a/"),
        ("a/b/test_x.py", "a/__init__.py", "a/"),
        ("a/b/test_x.py", "a/b.py", "a/b/"),
        ("a/b/test_x.py", "a.cpython-311-x86_64-linux-gnu.so", "a/"),
        ("pkg/__init__.py", "pkg/__init__.abi3.so", "pkg/__init__.py"),
        ("helpers.js", "helpers", "helpers.js"),
        ("a/helpers.cjs", "a/helpers", "a/helpers.cjs"),
        ("helpers.ts", "helpers.js", "helpers.ts"),
        ("data.json", "data.js", "data.json"),
        ("lib/index.js", "lib/package.json", "lib/index.js"),
        ("lib/index.mjs", "lib.json", "lib/index.mjs"),
        ("src/test/java/FooTest.java", "target/test-classes/FooTest.class", "src/test/java/FooTest.java"),
        ("FooTest.kt", "out/FooTest$inner$1.class", "FooTest.kt"),
        ("FooTest.kt", "FooTestKt.class", "FooTest.kt"),
        ("t/Helper.pm", "t/Helper.pmc", "t/Helper.pm"),
    ],
)
def test_what_comes_first_is_a_rival(held: str, path: str, instead_of: str) -> None:
    assert rivals([held], [added(path)]) == {path: instead_of}


def test_a_link_in_the_name_of_a_module_is_a_rival() -> None:
    assert rivals(["helpers.py", "a/test_x.py"], [added("helpers", "link"), added("a", "link")]) == {
        "helpers": "helpers.py",
        "a": "a/",
    }


@pytest.mark.parametrize(
    ("held", "path"),
    [
        ("test_x.py", "test_x/data.txt"),
        ("test_x.py", "test_x/sub.py"),
        ("test_x.py", "a/test_x.py"),
        ("test_x.py", "test_y.so"),
        ("a/test_x.py", "a/b/__init__.py"),
        ("a/test_x.py", "b/__init__.py"),
        ("a/test_x.py", "__init__.py"),
        ("a/__init__.py", "a.py"),
        ("helpers.py", "helpers"),
        ("helpers.js", "helpers/index.js"),
        ("helpers.js", "package.json"),
        ("a/helpers.js", "a/package.json"),
        ("helpers.js", "helpers.ts"),
        ("index.js", "package.json"),
        ("Foo.java", "FooBar.class"),
        ("notes.txt", "notes"),
    ],
)
def test_what_stands_for_nothing_is_let_be(held: str, path: str) -> None:
    assert rivals([held], [added(path)]) == {}


def test_a_package_of_the_authors_comes_first_but_not_what_the_agent_made_of_it() -> None:
    assert rivals(["x.py"], [changed("x/__init__.py")]) == {"x/__init__.py": "x.py"}
    # The package that a test lies in may be what the task is about.
    assert rivals(["a/test_x.py"], [changed("a/__init__.py")]) == {}
    assert rivals(["a/test_x.py"], [added("a.py")], ("a/__init__.py",)) == {}


def test_what_is_held_or_gone_or_exempt_is_no_rival() -> None:
    held = Held.of(["x.py", "x/__init__.py"])
    gone = Change("x.so", "removed", FileState("file", 0o644), None)
    assert held.rivals([changed("x/__init__.py"), gone], (), lambda _: False) == {}
    assert Held.of(["x.py"]).rivals([added("x.so")], (), lambda path: path == "x.so") == {}


NAMES = st.sampled_from(["a", "b", "__init__", "index", "x.test"])
PATHS = st.builds(
    lambda folders, name, suffix: "/".join([*folders, name + suffix]),
    st.lists(st.sampled_from(["a", "b"]), max_size=3),
    NAMES,
    st.sampled_from([".py", ".so", ".pyc", ".js", ".json", ".ts", ".class", ".java", ".txt", ""]),
)


@given(st.lists(PATHS, min_size=1, max_size=4), st.lists(PATHS, max_size=6, unique=True))
def test_a_rival_lies_where_what_it_stands_for_is_looked_for(held: list[str], paths: list[str]) -> None:
    """Beside it, beside a folder above it, or in its folder; a class anywhere. Never a held file itself."""
    for path, instead_of in rivals(held, [added(path) for path in paths]).items():
        assert path not in held
        assert instead_of in held or any(one.startswith(instead_of) for one in held)
        # An index.js is found by the name of its folder, too.
        names = {part.split(".")[0] for part in instead_of.rstrip("/").split("/")[-2:]}
        assert path.endswith((".class", "/package.json")) or names & {part.split(".")[0] for part in path.split("/")}


def test_the_sentence_names_the_first_three() -> None:
    assert taken_away_sentence({}) == ""
    said = taken_away_sentence({"x.so": "x.py", "tests.py": "tests/"})
    assert "x.so (in place of x.py), tests.py (in place of tests/) (protect: ['!x.so'] lets it be)" in said
    assert "and 2 more" in taken_away_sentence({f"{number}.so": "x.py" for number in range(5)})
