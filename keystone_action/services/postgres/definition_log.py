"""A log of the statements that change definitions in one database, kept by event triggers of its server's superuser.

The agent owns the database and not the triggers: it can neither drop nor disable them, nor read or write the log. What
a transaction logged goes with it when that is rolled back. Statements without event triggers, or with such that don't
say what they are about (GRANT), are told by comparison.

A comparison of definitions alone would not do. It would not see what was taken back: a table or an index that was made
and dropped again, another table's name for a while. And honest agents need the triggers: each table that they make must
be given a replica identity, or the server would refuse to update or delete its rows while `pgoutput` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from keystone_action.evidence.audit import shown_time
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.postgres.row_comparison import LARGE_OBJECTS, OF_USERS, Relation, merged, relations

if TYPE_CHECKING:
    import psycopg

RELATION, PROCEDURE, NAMESPACE, TYPE, LARGE_OBJECT = 1259, 1255, 2615, 1247, 2613
"""Catalogs, by their own oid, which is the same on every server."""
UNWATCHED = "UNWATCHED"
"""The tag of an entry of our own: updates of this table can't be had."""
_OPERATIONS = {"CREATE": "create", "SELECT": "create", "IMPORT": "create", "REFRESH": "change"}
"""By the first word of a statement's tag; others alter."""
_OF_A_TABLE = frozenset({"table column", "table constraint", "default value"})
_RIGHTS = ("GRANT", "REVOKE", "ALTER DEFAULT PRIVILEGES")
_NO_WRITES = "'{REINDEX}'"
"""Statements that have event triggers and change neither data nor definitions."""

_INSTALL = r"""
CREATE SCHEMA {schema};
CREATE TABLE {schema}.marks (mark text);
CREATE TABLE {schema}.log (
    number bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT clock_timestamp(), tag text, kind text,
    class oid, object oid, name text, of_table text,
    is_logged boolean DEFAULT true);

CREATE FUNCTION {schema}.table_of(class oid, object oid) RETURNS text LANGUAGE plpgsql STABLE AS $body$
DECLARE
    its oid := CASE class
        WHEN 'pg_class'::regclass THEN COALESCE(
            (SELECT i.indrelid FROM pg_index i WHERE i.indexrelid = object),
            (SELECT d.refobjid FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
              WHERE d.classid = 'pg_class'::regclass AND d.objid = object AND d.refclassid = 'pg_class'::regclass
                AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i') LIMIT 1),
            object)
        WHEN 'pg_trigger'::regclass THEN (SELECT t.tgrelid FROM pg_trigger t WHERE t.oid = object)
        WHEN 'pg_policy'::regclass THEN (SELECT p.polrelid FROM pg_policy p WHERE p.oid = object)
        WHEN 'pg_rewrite'::regclass THEN (SELECT r.ev_class FROM pg_rewrite r WHERE r.oid = object)
        WHEN 'pg_constraint'::regclass THEN (SELECT k.conrelid FROM pg_constraint k WHERE k.oid = object)
        WHEN 'pg_statistic_ext'::regclass THEN (SELECT s.stxrelid FROM pg_statistic_ext s WHERE s.oid = object)
    END;
    above oid;
BEGIN
    LOOP
        SELECT i.inhparent INTO above FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
         WHERE i.inhrelid = its LIMIT 1;
        EXIT WHEN above IS NULL;
        its := above;
    END LOOP;
    RETURN (SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.oid = its);
END $body$;

CREATE FUNCTION {schema}.note() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    statements text;
BEGIN
    GET DIAGNOSTICS statements = PG_CONTEXT;
    statements := current_query() || ';' || statements;
    INSERT INTO {schema}.log (tag, kind, class, object, name, of_table, is_logged)
    SELECT d.command_tag, d.object_type, d.classid, d.objid,
           COALESCE((SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                      WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid),
                    (SELECT n.nspname || '.' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                      WHERE d.classid = 'pg_proc'::regclass AND p.oid = d.objid),
                    d.object_identity),
           t.of_table,
           NOT EXISTS (SELECT FROM pg_class c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid
                        AND c.relkind = 'r' AND c.relpersistence = 'u')
      FROM pg_event_trigger_ddl_commands() d
           CROSS JOIN LATERAL (SELECT {schema}.table_of(d.classid, d.objid) AS of_table OFFSET 0) t
     WHERE d.schema_name IS DISTINCT FROM 'pg_temp' AND NOT d.in_extension
       AND d.command_tag <> ALL ({no_writes}::text[]) AND COALESCE(t.of_table, '') NOT LIKE 'pg\_temp%';
    PERFORM {schema}.identify(d.objid, statements) FROM pg_event_trigger_ddl_commands() d
      WHERE d.object_type = 'table' AND d.schema_name IS DISTINCT FROM 'pg_temp';
END $body$;

-- What goes with something else is left out, but for what holds data: a table can be made a part of an extension.
CREATE FUNCTION {schema}.note_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    INSERT INTO {schema}.log (tag, kind, class, object, name, of_table)
    SELECT 'DROP', d.object_type, d.classid, d.objid,
           COALESCE(NULLIF(array_to_string(d.address_names[1:2], '.'), ''), d.object_identity),
           CASE WHEN d.objsubid <> 0
                  OR d.object_type IN ('trigger', 'policy', 'rule', 'table constraint', 'default value')
                THEN array_to_string(d.address_names[1:2], '.') END
      FROM pg_event_trigger_dropped_objects() d
     WHERE (d.original OR d.object_type IN ('table', 'materialized view') OR d.normal AND NOT EXISTS (
               SELECT FROM pg_event_trigger_dropped_objects() e WHERE e.object_type = 'extension'))
       AND NOT d.is_temporary
       AND d.schema_name IS DISTINCT FROM 'pg_temp';
END $body$;
"""
_TRIGGERS = """
CREATE EVENT TRIGGER {schema} ON ddl_command_end EXECUTE PROCEDURE {schema}.note();
CREATE EVENT TRIGGER {drops} ON sql_drop EXECUTE PROCEDURE {schema}.note_drop();
"""

# `pgoutput` refuses updates and deletes of a table without a key, unless the whole old row stands in the log. This does
# what `ALTER TABLE … REPLICA IDENTITY FULL` does, but without locks and without event triggers of its own. With columns
# that are computed when they are read (virtual ones, since PostgreSQL 18) it is not possible: such a table needs a
# primary key.
#
# `was` is what the table has without us, by its last entry. Where a table no longer has what we gave it (`given`), the
# agent set that itself. FULL, which it has anyhow, is known by the words of the statement, or of the one that calls it.
_IDENTIFY = """
CREATE TABLE {schema}.identities (
    relation oid, number bigint GENERATED ALWAYS AS IDENTITY, was "char", given "char", PRIMARY KEY (relation, number));
CREATE FUNCTION {schema}.identify(changed oid, statements text) RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    wanted "char" := 'f';
    own "char";
    its record;
    known record;
BEGIN
    SELECT relreplident, regexp_replace(relname, '[^[:alnum:]_]', '.', 'g') AS name INTO its
      FROM pg_class WHERE oid = changed AND relkind = 'r';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    {virtual}
    SELECT was, given INTO known FROM {schema}.identities WHERE relation = changed ORDER BY number DESC LIMIT 1;
    own := CASE WHEN its.relreplident IS DISTINCT FROM known.given THEN its.relreplident
                WHEN length(statements) < 100000 AND statements ~* ('(^|[^[:alnum:]_])' || its.name
                     || '[^[:alnum:]_;][^;]*replica[[:space:]]+identity[[:space:]]+full') THEN 'f'
                ELSE known.was END;
    IF own IS DISTINCT FROM known.was OR wanted IS DISTINCT FROM known.given THEN
        INSERT INTO {schema}.identities (relation, was, given) VALUES (changed, own, wanted);
    END IF;
    UPDATE pg_class SET relreplident = wanted WHERE oid = changed AND relreplident <> wanted;
END $body$;
SELECT {schema}.identify(c.oid, '') FROM pg_class c JOIN pg_namespace n
    ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname !~ '^pg_'
    AND n.nspname NOT IN ('information_schema', '{schema}');
CREATE PUBLICATION {schema} FOR ALL TABLES{options};
"""
_UNLESS_VIRTUAL = """
    PERFORM FROM pg_attribute WHERE attrelid = changed AND attgenerated = 'v' AND NOT attisdropped;
    IF FOUND THEN
        wanted := 'd';
        PERFORM FROM pg_index WHERE indrelid = changed AND indisprimary AND indisvalid AND indimmediate;
        IF NOT FOUND THEN
            INSERT INTO {schema}.log (tag, kind, class, object, name, of_table)
            VALUES ('{unwatched}', 'table', 'pg_class'::regclass, changed, changed::regclass::text, '');
        END IF;
    END IF;
"""
_SINCE_VIRTUAL_COLUMNS = 180000
_RESTORE = """
UPDATE pg_class c SET relreplident = i.was
  FROM (SELECT DISTINCT ON (relation) relation, was FROM {schema}.identities ORDER BY relation, number DESC) i
 WHERE c.oid = i.relation AND c.relreplident <> i.was;
DROP PUBLICATION {schema};
"""
_REMOVE = "DROP EVENT TRIGGER {schema}; DROP EVENT TRIGGER {drops}; DROP SCHEMA {schema} CASCADE;"
_LOG = """
    SELECT min(at) AT TIME ZONE 'UTC', tag, kind, class::bigint, object::bigint, name, of_table, is_logged
      FROM {schema}.log GROUP BY tag, kind, class, object, name, of_table, is_logged ORDER BY min(number)
"""
_OTHERS = f"""
    SELECT {NAMESPACE}::bigint, oid::bigint, nspname, nspacl::text FROM pg_namespace n WHERE {OF_USERS}
    UNION ALL
    SELECT {PROCEDURE}::bigint, p.oid::bigint, n.nspname || '.' || proname, proacl::text
      FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE {OF_USERS}
    UNION ALL
    SELECT {TYPE}::bigint, t.oid::bigint, n.nspname || '.' || typname, typacl::text
      FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace WHERE {OF_USERS} AND typtype IN ('e', 'd', 'r')
"""  # noqa: S608 - conditions of ours


@dataclass(frozen=True, slots=True)
class DefinitionEntry:
    """A line of the log."""

    at: datetime
    tag: str
    """Of the statement, as PostgreSQL names it (`CREATE TABLE`); `DROP` for all that drop."""
    kind: str
    """What it is about, as PostgreSQL names it (`table`, `table column`, `policy` …)."""
    catalog: int
    """The oid of the catalog in which it stands."""
    oid: int
    name: str | None
    """None where PostgreSQL does not say it."""
    of_table: str | None
    """The table to which it belongs; of a table the same as `name`."""
    is_logged: bool = True
    """False for an unlogged table."""


@dataclass(frozen=True, slots=True)
class DefinedObjects:
    """What stands in a database."""

    relations: Mapping[int, Relation]
    """By oid."""
    others: Mapping[tuple[int, int], tuple[str, str | None]] = field(default_factory=dict)
    """Schemas, functions and types, by catalog and oid: the name and the rights."""


def read_objects(session: psycopg.Connection[Any]) -> DefinedObjects:
    """Raises psycopg.Error."""
    others = session.execute(_OTHERS.encode()).fetchall()
    return DefinedObjects(relations(session), {(row[0], row[1]): (row[2], row[3]) for row in others})


def install(session: psycopg.Connection[Any], schema: str) -> None:
    """Keep a log of definitions from now on, and publish all tables with whole old rows for logical decoding. schema: a
    name of ours, also of the publication. Raises psycopg.Error."""
    names = {"schema": schema, "drops": f"{schema}_drops", "no_writes": _NO_WRITES, "unwatched": UNWATCHED}
    has_virtual = session.info.server_version >= _SINCE_VIRTUAL_COLUMNS
    names["options"] = " WITH (publish_generated_columns = stored)" if has_virtual else ""
    names["virtual"] = _UNLESS_VIRTUAL.format_map(names) if has_virtual else ""
    with session.transaction():
        session.execute((_INSTALL + _IDENTIFY + _TRIGGERS).format_map(names).encode())


def read_entries(session: psycopg.Connection[Any], schema: str) -> list[DefinitionEntry]:
    """The log, each kind of entry once. Raises psycopg.Error."""
    rows = session.execute(_LOG.format(schema=schema).encode()).fetchall()
    return [DefinitionEntry(row[0].replace(tzinfo=UTC), *row[1:]) for row in rows]


def remove(session: psycopg.Connection[Any], schema: str) -> None:
    """All that was installed, and what was done to tables for it. Raises psycopg.Error."""
    with session.transaction():
        session.execute((_RESTORE + _REMOVE).format(schema=schema, drops=f"{schema}_drops").encode())


def definitions_written(
    entries: list[DefinitionEntry], before: DefinedObjects, now: DefinedObjects, service: str
) -> list[TableWrite]:
    """What was done to which table, or to what has no table. A thing that stood before is told under the name that it
    had, and under the one that it got."""
    made = {entry.oid: entry.of_table for entry in entries if entry.catalog == RELATION and entry.tag != "DROP"}
    whole = {entry.name for entry in entries if _is_made_or_gone(entry, before)}
    found = []
    for entry in entries:
        if entry.name is None or entry.tag == UNWATCHED:
            continue
        if _table_of_part(entry, before) in whole:
            continue  # it came, or went, with its table
        for name in _told(entry, before, made):
            what = _what(entry, name, before)
            found.append(TableWrite(service, name, _operation(entry), None, "log", shown_time(entry.at), what))
    if any(entry.tag in _RIGHTS for entry in entries):
        found += _rights_written(entries, before, now, service)
    return merged(found)


def row_names(entries: list[DefinitionEntry], before: DefinedObjects) -> dict[str, str]:
    """Of each partition by its own name, the name that it is told under."""
    told = {one.name: one.told for one in before.relations.values()}
    for entry in entries:
        if entry.catalog == RELATION and entry.oid not in before.relations and entry.name and entry.of_table:
            told[entry.name] = entry.of_table
    return {name: table for name, table in told.items() if name != table}


def _is_made_or_gone(entry: DefinitionEntry, before: DefinedObjects) -> bool:
    is_whole = entry.kind == "table" and not _table_of_part(entry, before)
    return is_whole and _operation(entry) in ("create", "drop")


def _table_of_part(entry: DefinitionEntry, before: DefinedObjects) -> str:
    """The table that it belongs to; empty for what belongs to none."""
    known = before.relations.get(entry.oid) if entry.catalog == RELATION else None
    if known is not None and known.told != known.name:
        return known.told
    return entry.of_table if entry.of_table is not None and entry.of_table != entry.name else ""


def _told(entry: DefinitionEntry, before: DefinedObjects, made: Mapping[int, str | None]) -> Iterator[str]:
    assert entry.name is not None
    if entry.catalog == LARGE_OBJECT:
        yield LARGE_OBJECTS
        return
    known, old = before.relations.get(entry.oid), before.others.get((entry.catalog, entry.oid))
    if entry.catalog == RELATION and known is not None:
        yield known.told
        if known.name == entry.name or entry.tag == "DROP":
            return
    elif old is not None:
        yield old[0]
        if old[0] == entry.name or entry.tag == "DROP":
            return
    yield entry.of_table or (made.get(entry.oid) if entry.catalog == RELATION else None) or entry.name


def _what(entry: DefinitionEntry, name: str, before: DefinedObjects) -> str:
    if entry.kind in _OF_A_TABLE:
        return "table"
    known = before.relations.get(entry.oid)
    own_name = known.name if known is not None else entry.name
    is_partition = entry.kind == "table" and name not in (own_name, entry.name)
    return "partition" if is_partition else entry.kind


def _operation(entry: DefinitionEntry) -> str:
    if entry.tag == "DROP":
        return "alter" if entry.kind in _OF_A_TABLE else "drop"
    return _OPERATIONS.get(entry.tag.partition(" ")[0], "alter")


def _rights_written(
    entries: list[DefinitionEntry], before: DefinedObjects, now: DefinedObjects, service: str
) -> Iterator[TableWrite]:
    for oid, old in before.relations.items():
        if oid in now.relations and now.relations[oid].rights != old.rights:
            yield TableWrite(service, old.told, "alter", None, "comparison", what="rights")
    for key, (name, rights) in before.others.items():
        if key in now.others and now.others[key][1] != rights:
            yield TableWrite(service, name, "alter", None, "comparison", what="rights")
    if at := [entry.at for entry in entries if entry.tag == "ALTER DEFAULT PRIVILEGES"]:
        yield TableWrite(service, "default privileges", "alter", None, "log", shown_time(min(at)), "rights")
