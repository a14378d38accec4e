"""Ways of writing into MySQL and MariaDB, and what is told of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.images import MARIADB, MYSQL

Told = set[tuple[str, str, int | None]]
LOG, NO_LOG, MARIA = "MySQL's log", "MySQL without a log", "MariaDB"
SERVERS: dict[str, dict[str, Any]] = {
    LOG: {"image": MYSQL},
    NO_LOG: {"image": MYSQL, "command": ["mysqld", "--skip-log-bin"]},
    MARIA: {"image": MARIADB},
}
STANDING = """
CREATE TABLE customers (id int PRIMARY KEY AUTO_INCREMENT, email varchar(50), paid decimal(12, 3), KEY (email));
INSERT INTO customers (email, paid) VALUES ('a@b', 1.5), ('c@d', NULL);
CREATE TABLE plain (value int);
INSERT INTO plain VALUES (1), (1), (2);
CREATE TABLE parents (id int PRIMARY KEY);
INSERT INTO parents VALUES (1), (2);
CREATE TABLE old (value int) ENGINE=MyISAM;
CREATE TABLE parts (id int) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),
    PARTITION p1 VALUES LESS THAN MAXVALUE);
INSERT INTO parts VALUES (1), (20);
CREATE VIEW emails AS SELECT email FROM customers;
CREATE PROCEDURE fill() INSERT INTO plain VALUES (7);
"""


@dataclass(frozen=True)
class Way:
    """told: where the log has the rows. net: by comparison alone, where that is something else."""

    script: str
    told: Told
    net: Told | None = None
    only: tuple[str, ...] = field(default=(LOG, NO_LOG, MARIA))


WAYS = {
    "reading": Way("SELECT * FROM customers; SHOW TABLES", set()),
    "rolled back": Way("BEGIN; DELETE FROM customers; ROLLBACK", set()),
    "rolled back in part": Way(
        "BEGIN; INSERT INTO plain VALUES (5); SAVEPOINT s; DELETE FROM customers; ROLLBACK TO s; COMMIT",
        {("plain", "insert", 1)},
    ),
    "a temporary table": Way(
        "CREATE TEMPORARY TABLE t (a int); INSERT INTO t VALUES (1); DROP TEMPORARY TABLE t", set()
    ),
    "analyzed": Way("ANALYZE TABLE customers; OPTIMIZE TABLE old", set()),
    "made unless it is there": Way("CREATE TABLE IF NOT EXISTS plain (value int); DROP TABLE IF EXISTS nothing", set()),
    "numbered on": Way(
        "INSERT INTO customers (email) VALUES ('x'); DELETE FROM customers WHERE email = 'x'",
        {("customers", "insert", 1), ("customers", "delete", 1)},
        set(),
    ),
    "inserted": Way("INSERT INTO plain VALUES (8), (9)", {("plain", "insert", 2)}),
    "an equal row": Way("INSERT INTO plain VALUES (1)", {("plain", "insert", 1)}),
    "updated": Way(
        "UPDATE customers SET paid = 2.125 WHERE id = 1", {("customers", "update", 1)}, {("customers", "change", 1)}
    ),
    "updated to what it was": Way("UPDATE customers SET email = 'a@b' WHERE id = 1", set()),
    "deleted": Way("DELETE FROM plain WHERE value = 1", {("plain", "delete", 2)}),
    "undone": Way(
        "INSERT INTO plain VALUES (5); DELETE FROM plain WHERE value = 5",
        {("plain", "insert", 1), ("plain", "delete", 1)},
        set(),
    ),
    "made and dropped": Way(
        "CREATE TABLE gone (a int); INSERT INTO gone VALUES (1), (2); DROP TABLE gone",
        {("gone", "insert", 2)},
        set(),
    ),
    "made": Way(
        "CREATE TABLE made (a int); INSERT INTO made VALUES (1)", {("made", "create", None), ("made", "insert", 1)}
    ),
    "made of a query": Way(
        "CREATE TABLE made AS SELECT * FROM plain", {("made", "create", None), ("made", "insert", 3)}
    ),
    "dropped": Way("DROP TABLE plain, old", {("plain", "drop", None), ("old", "drop", None)}),
    "altered": Way("ALTER TABLE plain ADD COLUMN more text", {("plain", "alter", None)}),
    "indexed": Way("CREATE INDEX one ON plain (value)", {("plain", "alter", None)}),
    "truncated": Way("TRUNCATE plain", {("plain", "delete", 3)}),
    "renamed": Way(
        "RENAME TABLE plain TO plainer",
        {("plain", "drop", None), ("plainer", "create", None), ("plainer", "insert", 3)},
    ),
    "renamed by alter": Way(
        "/*!50000 ALTER TABLE `plain` */ RENAME AS plainer",
        {("plain", "drop", None), ("plainer", "create", None), ("plainer", "insert", 3)},
    ),
    "another name for a while": Way(
        "RENAME TABLE parents TO x; INSERT INTO x VALUES (5); RENAME TABLE x TO parents",
        {("x", "insert", 1), ("parents", "insert", 1)},
        {("parents", "insert", 1)},
    ),
    "made anew": Way(
        "DROP TABLE parents; CREATE TABLE parents (id int PRIMARY KEY)", {("parents", "delete", 2)}
    ),
    "replaced": Way(
        "REPLACE INTO customers VALUES (1, 'n', 3), (9, 'm', 4)",
        {("customers", "update", 1), ("customers", "insert", 1)},
        {("customers", "change", 2)},
    ),
    "on a duplicate key": Way(
        "INSERT INTO customers VALUES (1, 'n', 3) ON DUPLICATE KEY UPDATE email = 'dup'",
        {("customers", "update", 1)},
        {("customers", "change", 1)},
    ),
    "two tables at once": Way(
        "UPDATE customers, plain SET email = 'z', value = 5 WHERE id = 1 AND value = 2",
        {("customers", "update", 1), ("plain", "update", 1)},
        {("customers", "change", 1), ("plain", "change", 1)},
    ),
    "through a view": Way("INSERT INTO emails VALUES ('v')", {("customers", "insert", 1)}),
    "by a procedure": Way("CALL fill()", {("plain", "insert", 1)}),
    "by a prepared statement": Way(
        "SET @q = 'DELETE FROM plain'; PREPARE p FROM @q; EXECUTE p; DEALLOCATE PREPARE p", {("plain", "delete", 3)}
    ),
    "a trigger": Way(
        "CREATE TRIGGER t AFTER INSERT ON plain FOR EACH ROW DELETE FROM parents; INSERT INTO plain VALUES (3)",
        {("plain", "create", None), ("plain", "insert", 1), ("parents", "delete", 2)},
        only=(NO_LOG, MARIA),  # MySQL with its log lets no plain user make one
    ),
    "a trigger that is gone": Way(
        "CREATE TRIGGER t AFTER INSERT ON plain FOR EACH ROW DELETE FROM parents; INSERT INTO plain VALUES (3);"
        "DROP TRIGGER t; DELETE FROM plain WHERE value = 3",
        {("parents", "delete", 2)},
        only=(NO_LOG, MARIA),
    ),
    "a procedure": Way("CREATE PROCEDURE more() SELECT 1", {("more", "create", None)}),
    "another procedure": Way(
        "DROP PROCEDURE fill; CREATE PROCEDURE fill() SELECT 1",
        {("fill", "alter", None)},
    ),
    "an event": Way("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM plain", {("e", "create", None)}),
    "a view": Way(
        "CREATE OR REPLACE VIEW emails AS SELECT 1 AS email", {("emails", "alter", None)}
    ),
    "without transactions": Way("INSERT INTO old VALUES (1)", {("old", "insert", 1)}),
    "a merge table": Way(
        "CREATE TABLE m (value int) ENGINE=MERGE UNION=(old) INSERT_METHOD=LAST; INSERT INTO m VALUES (1);DROP TABLE m",
        {("m", "insert", 1), ("old", "insert", 1)},
        {("old", "insert", 1)},
    ),
    "a merge table without its part": Way(
        "CREATE TABLE m (value int) ENGINE=MERGE UNION=(old); DROP TABLE old",
        {("m", "create", None), ("old", "drop", None)},
    ),
    "a discarded tablespace": Way(
        "INSERT INTO plain VALUES (5); ALTER TABLE plain DISCARD TABLESPACE",
        {("plain", "insert", 1), ("plain", "change", None)},
        {("plain", "change", None)},
    ),
    "a library": Way(
        "CREATE LIBRARY l LANGUAGE JAVASCRIPT AS 'export function one() { return 1 }'", {("l", "create", None)},
        only=(LOG, NO_LOG),
    ),
    "a partition": Way("ALTER TABLE parts TRUNCATE PARTITION p0", {("parts", "delete", 1)}),
    "partitions": Way("UPDATE parts SET id = id + 10", {("parts", "update", 2)}, {("parts", "change", 2)}),
    "exchanged": Way(
        "CREATE TABLE mine (id int); INSERT INTO mine VALUES (2), (3);"
         "ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE mine",
        {("mine", "create", None), ("mine", "insert", 2), ("parts", "change", 2)},
        {("mine", "create", None), ("mine", "insert", 1), ("parts", "change", 2)},
    ),
    "a foreign key": Way(
        "CREATE TABLE children (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE);"
        "INSERT INTO children VALUES (1, 1), (2, 2); DELETE FROM parents WHERE id = 1",
        {("children", "create", None), ("children", "insert", 2), ("parents", "delete", 1), ("children", "delete", 1)},
        {("children", "create", None), ("children", "insert", 1), ("parents", "delete", 1)},
    ),
    "prepared and committed": Way(
        "XA START 'x'; DELETE FROM plain; XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'", {("plain", "delete", 3)}
    ),
    "prepared and rolled back": Way(
        "XA START 'x'; DELETE FROM plain; XA END 'x'; XA PREPARE 'x'; XA ROLLBACK 'x'", set()
    ),
    "prepared and left": Way("XA START 'x'; DELETE FROM plain; XA END 'x'; XA PREPARE 'x'", set()),
    "committed in one phase": Way(
        "XA START 'x'; DELETE FROM plain; XA END 'x'; XA COMMIT 'x' ONE PHASE", {("plain", "delete", 3)}
    ),
    "at another time": Way("SET timestamp = 1000000000; DELETE FROM plain", {("plain", "delete", 3)}),
    "with other quotes": Way(
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES';"
        "ALTER /* TABLE customers */ TABLE \"plain\" COMMENT 'it''s \\'",
        {("plain", "alter", None)},
    ),
    "the database": Way("ALTER DATABASE CHARACTER SET ucs2", {("", "alter", None)}),
    "a sequence": Way(
        "CREATE SEQUENCE s; SELECT nextval(s)", {("s", "create", None), ("s", "insert", 1)}, only=(MARIA,)
    ),
}  # fmt: skip
