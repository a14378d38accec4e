"""A stand-in for the package of that name, which is too large to be installed for tests: a text's embedding counts its
words. Models whose names say so can't be had, or give what no model should."""

from __future__ import annotations

import zlib

MADE: list[str] = []


class SentenceTransformer:
    """As much of the real one as the check uses."""

    def __init__(self, name: str) -> None:
        if name == "gone":
            raise OSError("gone is not a local folder and is not a valid model identifier")
        self.name = name
        MADE.append(name)

    def encode(self, sentences: list[str], *, show_progress_bar: bool) -> list[list[float]]:
        assert not show_progress_bar
        if self.name == "not-a-number":
            return [[float("nan")] * 4] * len(sentences)
        if self.name == "opposite":
            return [[1.0, 0.0], [-1.0, 0.0]]
        return [_counts(sentence) for sentence in sentences]


def _counts(sentence: str) -> list[float]:
    found = [0.0] * 512
    for word in sentence.lower().split():
        found[zlib.crc32(word.encode()) % 512] += 1.0
    return found
