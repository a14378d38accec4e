"""What stands in databases of MySQL or MariaDB: tables with what changes their reading, views, routines."""

from __future__ import annotations

from typing import Any

from keystone_action.services.redefinitions import ROUTINE, CatalogueEntry, Column, Name

SYSTEM = "('mysql', 'information_schema', 'performance_schema', 'sys')"
_KINDS = {"VIEW": "view", "SEQUENCE": "sequence"}
OWN_ENGINES = frozenset({"", "innodb", "myisam", "aria", "memory", "archive", "csv", "rocksdb", "tokudb", "ndbcluster"})
"""Storage engines whose tables have their own rows. Others read another table, another server or a file."""
_TABLES = f"""
    SELECT table_schema, table_name, table_type, engine, data_length
      FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM}
"""  # noqa: S608 - a list of ours
_VIEWS = f"""
    SELECT table_schema, table_name, view_definition
      FROM information_schema.views WHERE table_schema NOT IN {SYSTEM}
"""  # noqa: S608 - as above
_COLUMNS = f"""
    SELECT table_schema, table_name, column_name, data_type, collation_name, generation_expression
      FROM information_schema.columns WHERE table_schema NOT IN {SYSTEM}
"""  # noqa: S608 - as above
_ALIKE = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "integer"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
}
"""Types whose values compare alike, but for their collation."""
_ROUTINES = f"""
    SELECT routine_schema, routine_name, routine_definition
      FROM information_schema.routines WHERE routine_type = 'FUNCTION' AND routine_schema NOT IN {SYSTEM}
"""  # noqa: S608 - as above


def look(cursor: Any) -> dict[Name, CatalogueEntry]:
    """The catalogue now, as far as this user sees it. Raises pymysql's errors."""
    if "mariadb" not in cursor.connection.get_server_info().lower():
        cursor.execute("SET SESSION information_schema_stats_expiry = 0")  # sizes as they are, not as they were
    traits: dict[Name, list[tuple[str, str]]] = {}
    columns: dict[Name, dict[str, Column]] = {}
    for schema, table, column, kind, collation, text in _rows(cursor, _COLUMNS):
        one = Column(_ALIKE.get(_text(kind), _text(kind)), _text(collation))
        columns.setdefault((schema, table), {})[column.lower()] = one
        if text:
            traits.setdefault((schema, table), []).append((f"the generated column {column}", _text(text)))
    texts = {(schema, view): _text(text) for schema, view, text in _rows(cursor, _VIEWS)}
    found: dict[Name, CatalogueEntry] = {}
    for schema, table, kind, engine, size in _rows(cursor, _TABLES):
        name = schema, table
        its = sorted(traits.get(name, ()))
        whole = "\n".join([texts.get(name, ""), *(text for _, text in its)])
        phrases = {trait for trait, _ in its}
        if kind not in _KINDS and str(engine or "").lower() not in OWN_ENGINES:
            phrases.add(f"the storage engine {engine}")
        own = {} if kind in _KINDS else columns.get(name, {})
        found[name] = CatalogueEntry(_KINDS.get(kind, "table"), whole, frozenset(phrases), int(size or 0), own)
    for schema, routine, text in _rows(cursor, _ROUTINES):
        found[schema, f"{routine}()"] = CatalogueEntry(ROUTINE, _text(text))
    return found


def _rows(cursor: Any, query: str) -> list[tuple[Any, ...]]:
    cursor.execute(query)
    return list(cursor.fetchall())


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
