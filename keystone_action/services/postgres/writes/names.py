"""The names under which things of a database are told: of what belongs to a table, the table's.

A partition is told as its topmost parent, an index or a sequence of a column as its table: who allows a table allows
what belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    """A table, view, index, sequence … as it stands. kind: a letter of `pg_class.relkind`. is_logged: whether what is
    written into it is in the server's log. told: the name under which it is told. rights: as the server keeps them."""

    oid: int
    kind: str
    is_logged: bool
    schema: str
    plain_name: str
    told: str
    rights: str = ""

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.schema}.{self.plain_name}"


def relations(session: psycopg.Connection[Any]) -> dict[int, Relation]:
    """All of a database's users, by their oid. Raises psycopg.Error."""
    rows = session.execute(_RELATIONS.encode()).fetchall()
    return {row[0]: Relation(row[0], row[1], row[2] == "p", *row[3:]) for row in rows}
