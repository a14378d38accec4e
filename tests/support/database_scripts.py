"""What a fixture of MySQL's does to its own database, which is to come to the same whatever the cell's is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keystone_action.errors import ServiceError

OF_DUMPS = "CREATE DATABASE /*!32312 IF NOT EXISTS*/ `{0}` /*!40100 DEFAULT CHARACTER SET latin1 */ {1};\nUSE `{0}`;"
ENCRYPTION = "/*!80016 DEFAULT ENCRYPTION='N' */"  # as MySQL's own dumps have it
ANEW = """
/*!40000 DROP DATABASE IF EXISTS `{0}`*/;
CREATE DATABASE {0} COLLATE utf8mb4_bin;
USE {0};
CREATE TABLE t (a varchar(9));
INSERT INTO t VALUES ('a'), ('A');
"""


def makes_its_database(name: str, load: Callable[[str], tuple[str, ...]], agent: Callable[[], Any]) -> None:
    """load: runs a fixture, and gives its notices. agent: a session of the agent's."""

    def ask(statement: str) -> list[tuple[Any, ...]]:
        with agent() as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    there = "passed over 1 statements that make the database, which is there"
    (notice,) = load(f"CREATE DATABASE {name}; USE {name}; CREATE TABLE kept (a int);")
    assert notice.endswith(there)
    assert load(f"CREATE DATABASE IF NOT EXISTS {name};") == ()
    assert load(OF_DUMPS.format(name, ENCRYPTION) + "CREATE TABLE of_dump (a text);") == ()
    assert ask("SHOW TABLES") == [("kept",), ("of_dump",)]
    assert "latin1" in ask("SHOW CREATE TABLE of_dump")[0][1]
    (notice,) = load(f"CREATE DATABASE {name} COLLATE utf8mb4_general_ci;")
    assert notice.endswith(there)
    assert ask("SELECT @@collation_database") == [("utf8mb4_general_ci",)]

    assert load(ANEW.format(name)) == ()
    assert ask("SHOW TABLES") == [("t",)]
    assert ask("SELECT a FROM t WHERE a = 'A'") == [("A",)]
    with pytest.raises(ServiceError, match=r"CREATE DATABASE .*\(error 1064\)") as failure:
        load(f"CREATE DATABASE {name} NONSENSE;")
    assert "MYSQL_DATABASE" not in failure.value.sentences  # it has that name
    assert ask("SHOW TABLES") == [("t",)]


def does_not_leave_it_dropped(name: str, load: Callable[[str], tuple[str, ...]]) -> None:
    with pytest.raises(ServiceError, match="it drops the database, and does not make it again") as failure:
        load(f"DROP DATABASE {name};")
    assert "lacks a CREATE DATABASE" in failure.value.help
