"""What is written into a PostgreSQL database on a server that somebody else runs, with no more rights than its URL has:
by comparison of definitions, rows and sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.postgres import row_comparison as comparison
from keystone_action.services.postgres.row_comparison import OF_USERS, relations
from keystone_action.services.service import one_line

if TYPE_CHECKING:
    import psycopg

_LARGE_OBJECTS = "large objects are looked at only where the user of its url is a superuser"
_Key = tuple[str, int]
"""What it is, and its oid."""

# Each gives: what it is, its oid, the relation or the name that it is told under, and what it is made of.
_DEFINITIONS = f"""
    SELECT 'table', c.oid::bigint, c.oid::bigint, '', concat_ws(' ', c.relkind, c.relpersistence, c.relreplident,
           c.reloptions::text, c.relrowsecurity, c.relforcerowsecurity, c.relacl::text, c.relispartition,
           pg_get_expr(c.relpartbound, c.oid), (SELECT array_agg(i.inhparent::regclass::text ORDER BY i.inhseqno)::text
                                                  FROM pg_inherits i WHERE i.inhrelid = c.oid),
           (SELECT string_agg(concat_ws(' ', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                   a.attcollation, a.attidentity, a.attacl::text, pg_get_expr(d.adbin, d.adrelid)), ',' ORDER BY attnum)
              FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'f', 'c') AND {OF_USERS}
    UNION ALL
    SELECT CASE c.relkind WHEN 'v' THEN 'view' ELSE 'materialized view' END, c.oid::bigint, c.oid::bigint, '',
           concat_ws(' ', pg_get_viewdef(c.oid), c.reloptions::text, c.relacl::text)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('v', 'm') AND {OF_USERS}
    UNION ALL
    SELECT 'sequence', c.oid::bigint, c.oid::bigint, '', concat_ws(' ', s.*::text, c.relacl::text)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_sequence s ON s.seqrelid = c.oid
     WHERE {OF_USERS}
    UNION ALL
    SELECT 'index', x.indexrelid::bigint, x.indrelid::bigint, '', pg_get_indexdef(x.indexrelid)
      FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {OF_USERS}
    UNION ALL
    SELECT 'constraint', k.oid::bigint, k.conrelid::bigint, '', concat_ws(' ', k.conname, pg_get_constraintdef(k.oid))
      FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {OF_USERS}
    UNION ALL
    SELECT 'trigger', t.oid::bigint, t.tgrelid::bigint, '', concat_ws(' ', t.tgenabled, pg_get_triggerdef(t.oid))
      FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE NOT t.tgisinternal AND {OF_USERS}
    UNION ALL
    SELECT 'rule', r.oid::bigint, r.ev_class::bigint, '', concat_ws(' ', r.ev_enabled, pg_get_ruledef(r.oid))
      FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE r.rulename <> '_RETURN' AND {OF_USERS}
    UNION ALL
    SELECT 'policy', p.oid::bigint, p.polrelid::bigint, '', concat_ws(' ', p.polname, p.polcmd, p.polpermissive,
           p.polroles::text, pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
      FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {OF_USERS}
    UNION ALL
    SELECT 'function', p.oid::bigint, NULL, n.nspname || '.' || p.proname,
           concat_ws(' ', p.prokind, p.prosrc, p.probin, pg_get_function_arguments(p.oid),
                     pg_get_function_result(p.oid), p.prolang, p.prosecdef, p.proconfig::text, p.proacl::text)
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {OF_USERS}
    UNION ALL
    SELECT 'type', t.oid::bigint, NULL, n.nspname || '.' || t.typname, concat_ws(' ', t.typtype, t.typacl::text,
           t.typnotnull, t.typdefault, format_type(t.typbasetype, t.typtypmod),
           (SELECT string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid))
      FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
     WHERE t.typtype IN ('e', 'd', 'r') AND {OF_USERS}
    UNION ALL
    SELECT 'schema', n.oid::bigint, NULL, n.nspname, concat_ws(' ', n.nspowner::regrole, n.nspacl::text)
      FROM pg_namespace n WHERE {OF_USERS}
    UNION ALL
    SELECT 'event trigger', e.oid::bigint, NULL, e.evtname, concat_ws(' ', e.evtevent, e.evtenabled, e.evtfoid::regproc)
      FROM pg_event_trigger e
    UNION ALL
    SELECT 'extension', e.oid::bigint, NULL, e.extname, e.extversion FROM pg_extension e
    UNION ALL
    SELECT 'foreign server', f.oid::bigint, NULL, f.srvname, f.srvoptions::text FROM pg_foreign_server f
"""  # noqa: S608 - conditions of ours


@dataclass(frozen=True, slots=True)
class _Before:
    definitions: Mapping[_Key, tuple[str, str, str]]
    tables: comparison.TablesBefore
    objects: comparison.ObjectsBefore
    texts: comparison.Defined


@dataclass
class ComparedPostgres:
    """A `WriteLog`. keywords: what psycopg connects with."""

    service: str
    keywords: Mapping[str, Any]
    not_seen: Sequence[str] = ()
    _before: _Before | None = None
    _writes: tuple[TableWrite, ...] | None = None
    _all_rights: bool = field(default=False)

    def seal(self) -> None:
        """What stands now stood before the agent. Blocking. Raises ServiceError."""
        self._writes = None
        with self._session() as session:
            row = session.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
            self._all_rights = bool(row and row[0])
            self.not_seen = tuple(one for one in self.not_seen if one != _LARGE_OBJECTS)
            if not self._all_rights:
                self.not_seen = (*self.not_seen, _LARGE_OBJECTS)
            self._before = _Before(
                _definitions(session),
                comparison.look_at_tables(session, comparison.is_table),
                comparison.look_at_objects(session, large_objects=self._all_rights),
                comparison.look_at_texts(session),
            )

    def settle(self) -> None:
        """What stands now is what the agent left. Blocking. Raises ServiceError."""
        before = self._sealed()
        with self._session() as session:
            rows = comparison.tables_written(session, before.tables, self.service)
            others = comparison.objects_written(session, before.objects, self.service, large_objects=self._all_rights)
            defined = _changes(before.definitions, _definitions(session), self.service)
        self._writes = tuple(comparison.merged([*defined, *(one for one in rows if one.rows is not None), *others]))

    def writes(self) -> Sequence[TableWrite]:
        """See WriteLog."""
        if self._writes is None:
            raise ServiceError(f"service {self.service}: what stands in it after the agent was not looked at yet")
        return self._writes

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog."""
        self.writes()
        with self._session() as session:
            yield from comparison.values_written(session, self._sealed().tables)
            if self._all_rights:
                yield from comparison.large_objects_written(session, self._sealed().objects)
            yield from comparison.texts_defined(session, self._sealed().texts)

    def _sealed(self) -> _Before:
        if self._before is None:
            raise ServiceError(f"service {self.service}: what stood in it before the agent was never looked at")
        return self._before

    @contextmanager
    def _session(self) -> Iterator[psycopg.Connection[Any]]:
        """One moment of the database, whatever others do; where rows are hidden from the role, reading fails."""
        import psycopg

        options = "-c search_path=pg_catalog -c row_security=off -c default_transaction_isolation=repeatable\\ read"
        limits = "-c default_transaction_read_only=on -c statement_timeout=0 -c lock_timeout=60s"
        own = " ".join(filter(None, (str(self.keywords.get("options") or ""), options, limits)))
        try:
            with psycopg.connect(**{"connect_timeout": 10, **self.keywords, "options": own}) as session:
                yield session
        except psycopg.Error as error:
            raise ServiceError(
                f"service {self.service}: what is written into it can't be told: {one_line(error)}",
                help="Give the user of its url the right to read all tables and sequences of the database.",
            ) from None


def _definitions(session: psycopg.Connection[Any]) -> dict[_Key, tuple[str, str, str]]:
    """Each with the name that it is told under, its own name, and what it is made of."""
    known = relations(session)
    found = {}
    for what, oid, relation, name, text in session.execute(_DEFINITIONS.encode()).fetchall():
        if relation is not None and relation not in known:
            continue
        told = name if relation is None else known[relation].told
        own = known[oid].name if oid in known else name
        found[what, oid] = told, own, text
    return found


def _changes(
    before: Mapping[_Key, tuple[str, str, str]], now: Mapping[_Key, tuple[str, str, str]], service: str
) -> Iterator[TableWrite]:
    whole = {one[0] for key in before.keys() ^ now.keys() if key[0] == "table" for one in _of(key, before, now)}
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        is_part = key[0] in ("index", "constraint", "trigger", "rule", "policy")
        operation = "create" if old is None else "drop" if new is None else "alter"
        for name in dict.fromkeys(one[0] for one in _of(key, before, now)):
            if is_part and name in whole:
                continue  # it came, or went, with its table
            what = "table" if key[0] in ("index", "constraint") else key[0]
            told = "alter" if key[0] in ("index", "constraint") else operation
            yield TableWrite(service, name, told, None, "comparison", what=what)


def _of(
    key: _Key, before: Mapping[_Key, tuple[str, str, str]], now: Mapping[_Key, tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    """It before and now, as far as it was there."""
    return [one for one in (before.get(key), now.get(key)) if one is not None]
