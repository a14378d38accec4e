"""The database behind a URL, whatever is installed: psycopg, PyMySQL, or (with neither) a client of our own."""

from urllib.parse import unquote, urlsplit

from postgres import connect as connect_plainly


def connect(url):
    """A connection with `query(sql)`, which gives rows as lists of text, and `close()`."""
    if url.startswith("mysql"):
        return Driver(_pymysql(urlsplit(url)))
    try:
        import psycopg
    except ImportError:
        return connect_plainly(url)
    return Driver(psycopg.connect(url, autocommit=True, connect_timeout=30))


class Driver:
    """A connection of a driver with Python's database interface."""

    def __init__(self, connection):
        self._connection = connection

    def query(self, sql):
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            rows = cursor.fetchall() if cursor.description else []
        return [[None if value is None else str(value) for value in row] for row in rows]

    def close(self):
        self._connection.close()


def _pymysql(url):
    import pymysql

    return pymysql.connect(
        host=url.hostname,
        port=url.port,
        user=unquote(url.username),
        password=unquote(url.password),
        database=url.path.lstrip("/"),
        autocommit=True,
        connect_timeout=30,
    )
