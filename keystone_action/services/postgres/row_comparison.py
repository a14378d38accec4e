"""What was written into tables, sequences and large objects between two looks at a database, where no log tells.

Each row carries the number of the transaction that wrote it: rows with a number that had not been given out at the
first look were written since, and those that are missing then were removed. Nothing of a row is kept for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keystone_action.evidence.writes import DEFINITION, TableWrite

if TYPE_CHECKING:
    import psycopg

OF_USERS = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
"""Of a namespace `n`: not the server's own, nor one for temporary tables."""
_RELATIONS = f"""
    WITH RECURSIVE partitions (relation, top) AS (
        SELECT oid, oid FROM pg_class WHERE NOT relispartition
        UNION ALL
        SELECT i.inhrelid, p.top FROM partitions p JOIN pg_inherits i ON i.inhparent = p.relation
               JOIN pg_class k ON k.oid = i.inhrelid AND k.relispartition)
    SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, n.nspname, c.relname, tn.nspname || '.' || t.relname,
           concat_ws(' ', c.relacl::text, (SELECT string_agg(a.attname || a.attacl::text, ' ' ORDER BY a.attnum)
                                             FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL))
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           LEFT JOIN pg_index x ON x.indexrelid = c.oid
           LEFT JOIN pg_depend d ON c.relkind = 'S' AND d.classid = 'pg_class'::regclass AND d.objid = c.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
           JOIN partitions p ON p.relation = COALESCE(x.indrelid, d.refobjid, c.oid)
           JOIN pg_class t ON t.oid = p.top JOIN pg_namespace tn ON tn.oid = t.relnamespace
     WHERE {OF_USERS}
"""  # noqa: S608 - a condition of ours


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, view, index, sequence … as it stands."""

    oid: int
    kind: str
    """A letter of `pg_class.relkind`."""
    is_logged: bool
    """Whether what is written into it is in the server's log."""
    schema: str
    plain_name: str
    told: str
    """The name under which it is told: a partition's is that of its topmost parent, an index's that of its table."""
    rights: str = ""
    """As the server keeps them."""

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.schema}.{self.plain_name}"


def relations(session: psycopg.Connection[Any]) -> dict[int, Relation]:
    """All of a database's users, by their oid. Raises psycopg.Error."""
    rows = session.execute(_RELATIONS.encode()).fetchall()
    return {row[0]: Relation(row[0], row[1], row[2] == "p", *row[3:]) for row in rows}


LARGE_OBJECTS = "pg_catalog.pg_largeobject"
Defined = Mapping[tuple[int, int, int], str]
"""Texts that definitions hold, by catalog, object and column."""
_TEXTS = (
    (0, "pg_class", "adrelid", "adnum", "pg_get_expr(adbin, adrelid)", "pg_attrdef"),
    (0, "pg_class", "attrelid", "attnum", "attname", "pg_attribute"),
    (0, "pg_class", "indexrelid", "0", "pg_get_indexdef(indexrelid)", "pg_index"),
    (0, "pg_rewrite", "oid", "0", "pg_get_ruledef(oid)", "pg_rewrite"),
    (0, "pg_constraint", "oid", "0", "pg_get_constraintdef(oid)", "pg_constraint"),
    (0, "pg_trigger", "oid", "0", "pg_get_triggerdef(oid)", "pg_trigger"),
    (0, "pg_policy", "oid", "0", "pg_get_expr(polqual, polrelid)", "pg_policy"),
    (0, "pg_policy", "oid", "0", "pg_get_expr(polwithcheck, polrelid)", "pg_policy"),
    (0, "pg_proc", "oid", "0", "concat_ws(' ', prosrc, proargnames::text, proconfig::text)", "pg_proc"),
    (0, "pg_proc", "oid", "0", "pg_get_expr(proargdefaults, 0)", "pg_proc"),
    (140000, "pg_proc", "oid", "0", "pg_get_function_sqlbody(oid)", "pg_proc"),
    (0, "pg_proc", "aggfnoid", "0", "agginitval", "pg_aggregate"),
    (0, "pg_type", "oid", "0", "typdefault", "pg_type"),
    (0, "pg_type", "enumtypid", "0", "enumlabel", "pg_enum"),
)
"""Since which version of a server, and of which catalog, object and column, which text stands in which catalog. Nothing
of it runs what somebody made."""
_OF_USERS = "SELECT '{}'::regclass::oid::bigint, {}::oid::bigint, {}, {} FROM {} WHERE {}::oid >= 16384"
_COMMENTS = "SELECT classoid::bigint, objoid::bigint, objsubid, description FROM pg_description"
_AT_ONCE = 50
_NEW = "(age({0}.xmin) <= age(%(mark)s::text::xid) OR {0}.xmin::text = ANY(%(under_way)s))"


@dataclass(frozen=True, slots=True)
class TransactionMark:
    """A moment in the numbers of transactions."""

    first: int
    """The first number that was not given out yet."""
    under_way: tuple[str, ...] = ()
    """Numbers given out before, of transactions that had not ended."""

    @classmethod
    def now(cls, session: psycopg.Connection[Any]) -> TransactionMark:
        """Raises psycopg.Error."""
        row = session.execute(
            "SELECT txid_snapshot_xmax(it), ARRAY(SELECT txid_snapshot_xip(it)) FROM txid_current_snapshot() it"
        ).fetchone()
        assert row is not None
        return cls(row[0] % 2**32, tuple(str(number % 2**32) for number in row[1]))

    @property
    def values(self) -> dict[str, Any]:
        """For queries."""
        return {"mark": str(self.first), "under_way": list(self.under_way)}


@dataclass(frozen=True, slots=True)
class TablesBefore:
    """Tables as they stood."""

    mark: TransactionMark
    wanted: Callable[[Relation], bool]
    """Which relations are compared."""
    tables: Mapping[int, Relation]
    """By oid."""
    rows: Mapping[int, int]
    """How many rows each had, by oid."""


def is_table(relation: Relation) -> bool:
    """Whether it has rows of its own: no view, no parent of partitions, no foreign table."""
    return relation.kind == "r"


def is_unlogged(relation: Relation) -> bool:
    """A table of which the server's log has nothing."""
    return is_table(relation) and not relation.is_logged


def look_at_tables(session: psycopg.Connection[Any], wanted: Callable[[Relation], bool]) -> TablesBefore:
    """Count the rows of the wanted tables. The session's role must be allowed to read them all, and see all rows.
    Raises psycopg.Error."""
    mark = TransactionMark.now(session)
    tables = {oid: one for oid, one in relations(session).items() if wanted(one)}
    return TablesBefore(mark, wanted, tables, {oid: _count(session, one) for oid, one in tables.items()})


def tables_written(session: psycopg.Connection[Any], before: TablesBefore, service: str) -> list[TableWrite]:
    """What differs: one for each table and operation. Tables that are gone count as dropped, new ones as created.
    Raises psycopg.Error."""
    now = {oid: one for oid, one in relations(session).items() if before.wanted(one) or oid in before.tables}
    found = [
        TableWrite(service, one.told, "drop", before.rows[oid], "comparison")
        for oid, one in before.tables.items()
        if oid not in now
    ]
    for oid, one in now.items():
        old = before.tables.get(oid)
        if old is None:
            found.append(TableWrite(service, one.told, "create", None, "comparison"))
        elif old.name != one.name:
            found.append(TableWrite(service, old.told, "alter", None, "comparison"))
        written, rows = _count(session, one, before.mark), _count(session, one)
        gone = before.rows.get(oid, 0) + written - rows
        told = (old or one).told
        if written or gone:
            operation = "insert" if not gone else "delete" if not written else "change"
            found.append(TableWrite(service, told, operation, max(written, gone), "comparison"))
    return merged(found)


def values_written(session: psycopg.Connection[Any], before: TablesBefore) -> Iterator[tuple[str, str]]:
    """The values of the rows that were written since, with the table that they are told under. Raises
    psycopg.Error."""
    from psycopg import sql

    for oid, one in relations(session).items():
        if not before.wanted(one) and oid not in before.tables:
            continue
        told = before.tables.get(oid, one).told
        condition = sql.SQL(_NEW.format("it"))
        # By COPY, values become text by functions of the server's own, never by a cast that somebody made.
        query = sql.SQL("COPY (SELECT {} FROM ONLY {} it WHERE {}) TO STDOUT").format(
            _columns(session, oid), sql.Identifier(one.schema, one.plain_name), condition
        )
        with session.cursor() as cursor, cursor.copy(query, before.mark.values) as copy:
            for row in copy.rows():
                yield from ((told, _text(value)) for value in row if value is not None)


def merged(writes: Iterable[TableWrite]) -> list[TableWrite]:
    """One for each table, operation and kind of thing, in the order of the first; rows are added up."""
    found: dict[tuple[str, str, str], TableWrite] = {}
    for write in writes:
        key = (write.table, write.operation, write.what)
        other = found.get(key)
        rows = None if other is None or other.rows is None or write.rows is None else other.rows + write.rows
        found[key] = write if other is None else replace(other, rows=rows)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ObjectsBefore:
    """Sequences and large objects as they stood."""

    mark: TransactionMark
    sequences: Mapping[int, tuple[Any, ...]]
    """Their values, by oid."""
    names: Mapping[int, Relation] = field(default_factory=dict)
    """The sequences by oid."""
    large_objects: tuple[int, int] = (0, 0)
    """How many there were, and how many pages."""


def look_at_objects(session: psycopg.Connection[Any], *, large_objects: bool = True) -> ObjectsBefore:
    """large_objects: the session's role may read them all: a superuser's. Raises psycopg.Error."""
    mark = TransactionMark.now(session)
    names = {oid: one for oid, one in relations(session).items() if one.kind == "S"}
    pages = _large_objects(session) if large_objects else (0, 0)
    return ObjectsBefore(mark, _sequences(session, names.values()), names, pages)


def objects_written(
    session: psycopg.Connection[Any], before: ObjectsBefore, service: str, *, large_objects: bool = True
) -> list[TableWrite]:
    """Sequences whose value is another, and large objects. Raises psycopg.Error."""
    now = look_at_objects(session, large_objects=large_objects)
    found = [
        TableWrite(service, before.names[oid].told, "change", None, "comparison", what="sequence")
        for oid, value in before.sequences.items()
        if now.sequences.get(oid, value) != value
    ]
    if large_objects:
        changed = _changed_large_objects(session, before, now.large_objects)
        if changed:
            found.append(TableWrite(service, LARGE_OBJECTS, "change", changed, "comparison", what="large object"))
    return merged(found)


def large_objects_written(session: psycopg.Connection[Any], before: ObjectsBefore) -> Iterator[tuple[str, str]]:
    """What was written into them, each page with the one before it: a value may stand on two. Raises psycopg.Error."""
    rows = f"SELECT loid, data FROM pg_largeobject l WHERE {_NEW.format('l')} ORDER BY loid, pageno"  # noqa: S608
    query = f"COPY ({rows}) TO STDOUT (FORMAT binary)"
    last, page = 0, b""
    with session.cursor() as cursor, cursor.copy(query.encode(), before.mark.values) as copy:
        copy.set_types(["oid", "bytea"])
        for number, data in copy.rows():
            yield LARGE_OBJECTS, ((page if number == last else b"") + data).decode("utf-8", "replace")
            last, page = number, data


def look_at_texts(session: psycopg.Connection[Any]) -> Defined:
    """What defaults, bodies, conditions, names of columns and comments say. Raises psycopg.Error."""
    version = session.info.server_version
    queries = [_OF_USERS.format(*one, one[1]) for since, *one in _TEXTS if version >= since]
    found: dict[tuple[int, int, int], str] = {}
    for query in (*queries, _COMMENTS):
        for catalog, identifier, column, text in session.execute(query.encode()).fetchall():
            key = (catalog, identifier, column)
            if text:
                found[key] = f"{found[key]}\n{text}" if key in found else text
    return found


def texts_defined(session: psycopg.Connection[Any], before: Defined) -> Iterator[tuple[str, str]]:
    """The lines of definitions that were not there before, with what they define: as they stand, and as the literals in
    them are read. Raises psycopg.Error."""
    identity = "SELECT concat_ws(' ', type, identity) FROM pg_identify_object(%s::oid, %s::oid, %s)"
    for key, text in look_at_texts(session).items():
        known = set(before.get(key, "").splitlines())
        added = "\n".join(line for line in text.splitlines() if line not in known)
        if not added:
            continue
        row = session.execute(identity, key).fetchone()
        name = f"{DEFINITION}{row[0] if row and row[0] else 'something'}"
        yield name, added
        if (read := added.replace("''", "'").replace("\\\\", "\\")) != added:
            yield name, read


def _changed_large_objects(session: psycopg.Connection[Any], before: ObjectsBefore, now: tuple[int, int]) -> int:
    query = f"""
        SELECT (SELECT count(*) FROM pg_largeobject_metadata m WHERE {_NEW.format("m")}),
               (SELECT count(*) FROM pg_largeobject l WHERE {_NEW.format("l")}),
               (SELECT count(*) FROM (SELECT oid FROM pg_largeobject_metadata m WHERE {_NEW.format("m")}
                                      UNION SELECT loid FROM pg_largeobject l WHERE {_NEW.format("l")}) any_of_both)
    """  # noqa: S608 - conditions of ours
    row = session.execute(query.encode(), before.mark.values).fetchone()
    assert row is not None
    objects, pages, written = row
    gone = before.large_objects[0] + objects - now[0]
    lost_pages = before.large_objects[1] + pages - now[1]
    return int(max(written, gone, 1 if lost_pages else 0))


def _large_objects(session: psycopg.Connection[Any]) -> tuple[int, int]:
    row = session.execute(
        "SELECT (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_largeobject)"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def _sequences(session: psycopg.Connection[Any], names: Iterable[Relation]) -> dict[int, tuple[Any, ...]]:
    from psycopg import sql

    found = {}
    every = list(names)
    for some in (every[at : at + _AT_ONCE] for at in range(0, len(every), _AT_ONCE)):
        each = [
            sql.SQL("SELECT {}::bigint, last_value, is_called FROM {}").format(
                sql.Literal(one.oid), sql.Identifier(one.schema, one.plain_name)
            )
            for one in some
        ]
        for oid, *value in session.execute(sql.SQL(" UNION ALL ").join(each)).fetchall():
            found[oid] = tuple(value)
    return found


def _count(session: psycopg.Connection[Any], table: Relation, mark: TransactionMark | None = None) -> int:
    from psycopg import sql

    query = sql.SQL("SELECT count(*) FROM ONLY {} it").format(sql.Identifier(table.schema, table.plain_name))
    if mark is not None:
        query += sql.SQL(" WHERE " + _NEW.format("it"))
    row = session.execute(query, mark.values if mark is not None else None).fetchone()
    assert row is not None
    return int(row[0])


def _columns(session: psycopg.Connection[Any], oid: int) -> Any:
    from psycopg import sql

    # Those that are computed when they are read run somebody's expressions; what they show is written elsewhere.
    computed = " AND attgenerated <> 'v'" if session.info.server_version >= 120000 else ""
    names = session.execute(
        b"SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
        + computed.encode()
        + b" ORDER BY attnum",
        (oid,),
    ).fetchall()
    columns: Sequence[Any] = [sql.SQL("it.{}").format(sql.Identifier(name)) for (name,) in names]
    return sql.SQL(", ").join(columns or [sql.SQL("NULL")])


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
