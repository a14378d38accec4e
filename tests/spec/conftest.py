"""Specs written into a directory of their own."""

from support.spec_files import directory, errors_of, load_text, write

__all__ = ["directory", "errors_of", "load_text", "write"]
