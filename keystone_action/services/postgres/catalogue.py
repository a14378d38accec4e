"""What stands in a PostgreSQL database: tables with what changes their reading, views, routines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keystone_action.services.redefinitions import ROUTINE, CatalogueEntry, Column, Name, Shadow

if TYPE_CHECKING:
    import psycopg

_KINDS = {
    "r": "table",
    "p": "table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
}
_OF_USERS = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
_RELATIONS = f"""
    SELECT n.nspname, c.relname, c.relkind,
           CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
           CASE WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) END
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND {_OF_USERS}
"""  # noqa: S608 - a condition of ours
# Each row: a table, what it has, and what that is made of. The last are rows of a foreign table, read by the name
# of its parent.
_TRAITS = f"""
    SELECT n.nspname, c.relname, 'the rule ' || w.rulename, pg_get_ruledef(w.oid)
      FROM pg_rewrite w JOIN pg_class c ON c.oid = w.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE w.rulename <> '_RETURN' AND {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'the policy ' || p.polname,
           concat_ws(' ', p.polcmd, p.polpermissive, pg_get_expr(p.polqual, p.polrelid))
      FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'row level security', ''
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE (c.relrowsecurity OR c.relforcerowsecurity) AND {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'the collation ' || l.collname || ' of column ' || a.attname, ''
      FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation
           JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE l.collnamespace <> 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'p') AND {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'the foreign child ' || k.relname, ''
      FROM (WITH RECURSIVE below (top, child) AS (
                SELECT inhparent, inhrelid FROM pg_inherits
                UNION SELECT b.top, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.child)
            SELECT top, child FROM below) i
           JOIN pg_class k ON k.oid = i.child AND k.relkind = 'f'
           JOIN pg_class c ON c.oid = i.top JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {_OF_USERS}
"""  # noqa: S608 - as above
_GENERATED = f"""
    UNION ALL
    SELECT n.nspname, c.relname, 'the generated column ' || a.attname, pg_get_expr(d.adbin, d.adrelid)
      FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
           JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE a.attgenerated <> '' AND {_OF_USERS}
"""  # noqa: S608 - as above
_SINCE_GENERATED = 120000
_COLUMNS = f"""
    SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, NULL),
           COALESCE((SELECT l.collname FROM pg_collation l WHERE l.oid = a.attcollation), '')
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p') AND {_OF_USERS}
"""  # noqa: S608 - as above
_ALIKE = {
    **dict.fromkeys(("smallint", "integer", "bigint"), "integer"),
    **dict.fromkeys(("character varying", "text"), "text"),
}
"""Types whose values compare alike, but for their collation."""
# What an extension brought is its superuser's; that it is an extension's is all that counts.
_ROUTINES = f"""
    SELECT n.nspname, p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
           CASE WHEN EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                              AND d.deptype = 'e') THEN ''
                WHEN p.prokind = 'a' THEN (SELECT concat_ws(' ', g.aggtransfn, g.aggfinalfn, g.agginitval)
                                             FROM pg_aggregate g WHERE g.aggfnoid = p.oid)
                ELSE pg_get_functiondef(p.oid) END
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE {_OF_USERS}
"""  # noqa: S608 - as above

# Overload resolution prefers an exact match in any schema of the path to a coercion to a built-in one, so a function
# or operator with a built-in's name changes what a query means (CVE-2018-1058). Those that a superuser
# has by an extension came with a trusted one.
_SHADOWS = """
    SELECT 'function', p.proname, n.nspname, p.oid::text || '/' || p.xmin::text
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_roles r ON r.oid = p.proowner
     WHERE n.nspname = ANY(%(schemas)s) AND NOT (r.rolsuper AND EXISTS (SELECT FROM pg_depend d
                 WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'))
       AND EXISTS (SELECT FROM pg_proc b WHERE b.pronamespace = 'pg_catalog'::regnamespace AND b.proname = p.proname)
    UNION ALL
    SELECT 'operator', o.oprname, n.nspname, o.oid::text || '/' || o.xmin::text
      FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace JOIN pg_roles r ON r.oid = o.oprowner
     WHERE n.nspname = ANY(%(schemas)s) AND NOT (r.rolsuper AND EXISTS (SELECT FROM pg_depend d
                 WHERE d.classid = 'pg_operator'::regclass AND d.objid = o.oid AND d.deptype = 'e'))
       AND EXISTS (SELECT FROM pg_operator b
                    WHERE b.oprnamespace = 'pg_catalog'::regnamespace AND b.oprname = o.oprname)
    UNION ALL
    SELECT 'cast', format('%%s to %%s', format_type(c.castsource, NULL), format_type(c.casttarget, NULL)), '',
           c.oid::text || '/' || c.xmin::text
      FROM pg_cast c
     WHERE c.oid >= 16384 AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_cast'::regclass
                                             AND d.objid = c.oid AND d.deptype = 'e')
"""


def look(session: psycopg.Connection[Any]) -> dict[Name, CatalogueEntry]:
    """The catalogue now; texts are comparable as long as the session's search_path is pg_catalog alone. Raises
    psycopg.Error."""
    traits: dict[Name, list[tuple[str, str]]] = {}
    query = _TRAITS + (_GENERATED if session.info.server_version >= _SINCE_GENERATED else "")
    for schema, name, trait, text in session.execute(query.encode()).fetchall():
        traits.setdefault((schema, name), []).append((trait, text or ""))
    columns: dict[Name, dict[str, Column]] = {}
    for schema, name, column, kind, collation in session.execute(_COLUMNS.encode()).fetchall():
        columns.setdefault((schema, name), {})[column] = Column(_ALIKE.get(kind, kind), collation)
    found = {}
    for schema, name, kind, text, size in session.execute(_RELATIONS.encode()).fetchall():
        its = sorted(traits.get((schema, name), ()))
        whole = "\n".join([text or "", *(one for _, one in its)])
        phrases, own = frozenset(trait for trait, _ in its), columns.get((schema, name), {})
        found[schema, name] = CatalogueEntry(_KINDS[_text(kind)], whole, phrases, size or 0, own)
    for schema, name, text in session.execute(_ROUTINES.encode()).fetchall():
        found[schema, name] = CatalogueEntry(ROUTINE, text or "")
    return found


def shadows(session: psycopg.Connection[Any], schemas: Sequence[str]) -> frozenset[Shadow]:
    """Those in the schemas that names are looked up in, and all casts. Raises psycopg.Error."""
    rows = session.execute(_SHADOWS, {"schemas": list(schemas)}).fetchall()
    return frozenset(Shadow(*map(str, row)) for row in rows)


def _text(kind: bytes | str) -> str:
    """PostgreSQL's "char" type comes as bytes."""
    return kind.decode() if isinstance(kind, bytes) else kind
