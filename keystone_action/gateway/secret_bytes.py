"""Taking real keys out of what a provider sends, whatever pieces it comes in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from keystone_action.evidence.masking import MINIMUM


class SecretBytes:
    """Replaces every secret in a stream of bytes. Holds back only what may be the beginning of one.

    secrets: each with what stands there instead. Where several fit, the first one in the stream counts, and of those
    that begin at one place the longest: so the result does not depend on how the stream was split.
    """

    def __init__(self, secrets: Mapping[bytes, bytes]) -> None:
        self._instead = {secret: instead for secret, instead in secrets.items() if secret}
        longest_first = sorted(self._instead, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(secret) for secret in longest_first) or b"(?!)")
        self._longest = len(longest_first[0]) if longest_first else 0
        self._kept = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on by now."""
        return self._pass(self._kept + piece if self._kept else piece, is_last=False)

    def end(self) -> bytes:
        """What was held back: the stream is over."""
        return self._pass(self._kept, is_last=True)

    def replace(self, content: bytes) -> bytes:
        """Without the secrets that stand in it."""
        return self._pattern.sub(lambda found: self._instead[found.group()], content)

    def _pass(self, content: bytes, *, is_last: bool) -> bytes:
        end = len(content) if is_last else self._unclear(content, 0)
        passed, at = bytearray(), 0
        while (found := self._pattern.search(content, at)) and found.start() < end:
            passed += content[at : found.start()] + self._instead[found.group()]
            at = found.end()
            if at > end:
                end = self._unclear(content, at)
        passed += content[at:end]
        self._kept = content[end:]
        return bytes(passed)

    def _unclear(self, content: bytes, at: int) -> int:
        """Where the last bytes begin that may be the beginning of a secret; the end when there are none."""
        first = len(content)
        for secret in self._instead:
            place = content.find(secret[:1], max(at, len(content) - len(secret) + 1), first)
            while place >= 0:
                if secret.startswith(content[place:]):
                    first = place
                    break
                place = content.find(secret[:1], place + 1, first)
        return first


def shapes_of(keys: Iterable[str], instead: str) -> dict[bytes, bytes]:
    """Keys in the shapes in which a provider may echo them, each with what stands there instead. A key that is too
    short to be one is left out: it would spoil every answer."""
    shapes = {}
    for key in keys:
        if len(key) >= MINIMUM:
            escaped = json.dumps(key)[1:-1]
            for shape in (key, escaped, escaped.replace("/", "\\/"), quote(key, safe="")):
                shapes[shape.encode("utf-8", "replace")] = instead.encode()
    return shapes
