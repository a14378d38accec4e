"""What an agent made of the tables, views and routines that stood before it: a name that a query reads may stand for
something else by now.

A catalogue is taken down before the agent starts and looked up again when a check asks. Which entries a query reads is
told by names: those in its text, those in the text of the views and routines that it names, and so on. That may be one
too many (a column of the same name), never one too few, however the database plans the query.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

_WORD = re.compile(r"\w+")
ROUTINE = "function"


@dataclass(frozen=True, slots=True)
class Column:
    """How the values of a table's column compare."""

    kind: str
    """Of its type: types have the same one when their values compare alike (`integer`)."""
    collation: str = ""
    """Empty where it has none."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One thing that a query can name."""

    kind: str
    """`table`, `view`, `function` …"""
    text: str = ""
    """What a view or routine is made of; names of others stand in it."""
    traits: frozenset[str] = frozenset()
    """What a table has that changes what is read of it, as phrases (`a rule (hide)`)."""
    bytes: int = 0
    """How much is in it, as far as that is known."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Of a table."""

    def changed_column(self, before: CatalogueEntry) -> str:
        """A phrase for a column that stood before and compares otherwise now; empty when there is none."""
        for name, column in sorted(self.columns.items()):
            was = before.columns.get(name, column)
            if column.kind != was.kind:
                return f"the column {name} the type {column.kind or 'none'} (it was {was.kind or 'none'})"
            if column.collation != was.collation:
                return f"the column {name} the collation {column.collation} (it was {was.collation})"
        return ""


@dataclass(frozen=True, slots=True, order=True)
class Shadow:
    """A function or operator with the name of a built-in one, or a cast."""

    kind: str
    """`function`, `operator` or `cast`."""
    name: str
    schema: str
    version: str
    """Another one when it is replaced."""

    def sentence(self, query: str) -> str | None:
        """What is said of a query that it may give another meaning; None where it does not."""
        if self.kind == "cast":
            return f"the agent created the cast of {self.name}; the query may not mean what it says"
        # An operator can be meant without being written (IN, BETWEEN, USING), a function only by its name.
        if self.kind == "operator" or self.name.casefold() in query.casefold():
            return (
                f"the agent created the {self.kind} {self.schema}.{self.name}, which stands in for a "
                f"built-in {self.kind} of that name; the query would not mean what it says"
            )
        return None


def stand_in(shadows: Iterable[Shadow], query: str) -> str | None:
    """A sentence when one of them would give a query another meaning; None when none does."""
    return next((sentence for shadow in shadows if (sentence := shadow.sentence(query))), None)


CatalogueName = tuple[str, str]
"""Schema, or database, and name."""
Catalogue = Mapping[CatalogueName, CatalogueEntry]
CatalogueLook = tuple[Catalogue, tuple[str, ...], frozenset[Shadow]]
"""A catalogue, the schemas that a name without one is looked up in, and what stands in for something built-in."""
_NONE = CatalogueEntry("")


@dataclass(frozen=True)
class CatalogueChanges:
    """What differs between two catalogues."""

    before: Catalogue
    now: Catalogue
    path: tuple[str, ...]
    """The schemas in which a name without one is looked up."""
    shadows: tuple[Shadow, ...] = ()
    """Those that the agent made."""
    redefinitions: Mapping[CatalogueName, str] = field(init=False)
    """A sentence for each thing that is no longer what stood there."""
    names_by_agent: Set[CatalogueName] = field(init=False)
    """What is new, redefined, or has more in it than before."""

    def __post_init__(self) -> None:
        redefined = {name: sentence for name in self.now if (sentence := self._difference(name))}
        for gone in self.before.keys() - self.now.keys():
            for name in self._later_on_the_path(gone, self.now):
                redefined[name] = (
                    f"the agent removed {_show_name(gone)}, so that {_show_name(name)} is read in its place"
                )
        object.__setattr__(self, "redefinitions", redefined)
        filled = {name for name, entry in self.now.items() if entry.bytes > self.before.get(name, _NONE).bytes}
        object.__setattr__(self, "names_by_agent", filled | redefined.keys() | (self.now.keys() - self.before.keys()))

    def _difference(self, name: CatalogueName) -> str:
        now, before = self.now[name], self.before.get(name)
        what = f"{now.kind} {_show_name(name)}"
        if before is None:
            hidden = self._later_on_the_path(name, self.before) or self._overloads_of(name)
            return f"the agent made {what}, which can be read in the place of {_show_name(hidden[0])}" if hidden else ""
        if before.kind != now.kind:
            return f"the agent replaced the {before.kind} {_show_name(name)} by a {now.kind}"
        if added := sorted(now.traits - before.traits):
            return f"the agent gave the {what} {', '.join(added)}"
        if recast := now.changed_column(before):
            return f"the agent gave, in the {what}, {recast}"
        return f"the agent redefined the {what}" if before.text != now.text else ""

    def _later_on_the_path(self, name: CatalogueName, catalogue: Catalogue) -> list[CatalogueName]:
        """Entries of this name that another schema has, and that are found without one where this is not."""
        if name[0] not in self.path:
            return []
        later = self.path[self.path.index(name[0]) + 1 :]
        return [(schema, name[1]) for schema in later if (schema, name[1]) in catalogue]

    def _overloads_of(self, name: CatalogueName) -> list[CatalogueName]:
        """Routines of this name with other arguments, that stood before: a call of them may mean this one now."""
        if self.now[name].kind != ROUTINE:
            return []
        return sorted(
            one
            for one, entry in self.before.items()
            if entry.kind == ROUTINE and plain_name(one) == plain_name(name) and one[0] in (name[0], *self.path)
        )

    def names_in(self, query: str) -> set[CatalogueName]:
        """All that a query names, and what that is made of."""
        by_word: dict[str, list[CatalogueName]] = {}
        others: list[CatalogueName] = []
        for name in self.now:
            own = plain_name(name)
            if _WORD.fullmatch(own):
                by_word.setdefault(own.casefold(), []).append(name)
            else:
                others.append(name)
        found: set[CatalogueName] = set()
        texts = [query]
        while texts:
            text = texts.pop().casefold()
            named = [name for word in set(_WORD.findall(text)) for name in by_word.get(word, ())]
            named += [name for name in others if plain_name(name).casefold() in text]
            for name in named:
                if name not in found:
                    found.add(name)
                    texts.append(self.now[name].text)
        return found

    def redefinition(self, read: Set[CatalogueName]) -> str | None:
        """A sentence when the agent redefined some of what is read; None when it did not."""
        return next((sentence for name, sentence in sorted(self.redefinitions.items()) if name in read), None)

    def is_by_agent(self, read: Set[CatalogueName]) -> bool:
        """Whether some of what is read is new, filled or redefined: what is slow about it may be the agent's doing."""
        return not read.isdisjoint(self.names_by_agent)


def _show_name(name: CatalogueName) -> str:
    return ".".join(name)


def plain_name(name: CatalogueName) -> str:
    """As a query writes it: of a function without its arguments, `total(integer)`."""
    return name[1].partition("(")[0]


NO_CHANGES = CatalogueChanges({}, {}, ())


class CatalogueWatch:
    """One cell's view of a database whose catalogue can be looked up: taken down by `seal`, looked up once more when a
    check asks. look: what it raises comes through. It is told the path of the first look by the second."""

    def __init__(self, look: Callable[[tuple[str, ...] | None], CatalogueLook]) -> None:
        self._look = look
        self._before: CatalogueLook | None = None
        self._changes: CatalogueChanges | None = None
        self._lock = threading.Lock()
        self.path: tuple[str, ...] = ()

    def seal(self) -> None:
        """What stands now stood before the agent."""
        self._before = self._look(None)
        self.path, self._changes = self._before[1], None

    def changes(self) -> CatalogueChanges:
        """What differs since then; nothing where it was never sealed."""
        with self._lock:
            if self._changes is None:
                self._changes = NO_CHANGES if self._before is None else self._compare(self._before)
            return self._changes

    def stand_in(self, query: str) -> str | None:
        """A sentence when the agent made something that gives this query another meaning; None otherwise."""
        return stand_in(self.changes().shadows, query)

    def _compare(self, before: CatalogueLook) -> CatalogueChanges:
        catalogue, _, shadows = self._look(self.path)
        return CatalogueChanges(before[0], catalogue, self.path, tuple(sorted(shadows - before[2])))
