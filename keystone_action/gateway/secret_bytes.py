"""Taking a real key out of what a provider sends, whatever pieces it comes in."""

from __future__ import annotations


class SecretBytes:
    """Replaces every secret in a stream of bytes. Holds back only what may be the beginning of one."""

    def __init__(self, secrets: dict[bytes, bytes]) -> None:
        self._secrets = {secret: instead for secret, instead in secrets.items() if secret}
        self._kept = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on by now."""
        content = self.replace(self._kept + piece)
        held = max((_overlap(content, secret) for secret in self._secrets), default=0)
        self._kept = content[len(content) - held :]
        return content[: len(content) - held]

    def end(self) -> bytes:
        """What was held back: the stream is over."""
        kept, self._kept = self._kept, b""
        return kept

    def replace(self, content: bytes) -> bytes:
        """Without the secrets that stand whole in it."""
        for secret, instead in self._secrets.items():
            content = content.replace(secret, instead)
        return content


def _overlap(content: bytes, secret: bytes) -> int:
    """How many bytes at its end are the beginning of the secret."""
    for size in range(min(len(content), len(secret) - 1), 0, -1):
        if content.endswith(secret[:size]):
            return size
    return 0
