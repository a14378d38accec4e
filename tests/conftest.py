"""Its place makes `tests/` importable: what several tests share is `support.…`."""
