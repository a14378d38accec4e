"""What the author's own scripts find on the host: a copy of the checkout as it was before the first agent started, and
directories for their copies of a workspace."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.errors import HarnessError
from keystone_action.files.git.commits import CheckoutCopy, copy_checkout
from keystone_action.sandbox.processes import policy
from keystone_action.spec.loading.loader import enclosing_root


@dataclass
class Host:
    """area: a directory of ours that scripts' users may pass, and nobody but us list."""

    area: Path
    _copies: dict[Path, CheckoutCopy | HarnessError] = field(default_factory=dict)

    def add_all(self, directories: Iterable[Path], left_out: Collection[Path]) -> None:
        """Copy the checkouts that these directories of specs are in. Blocks. Never raises: the checks tell what went
        wrong."""
        for root in {_checkout_of(directory) for directory in directories}:
            place = self.area / f"checkout-{secrets.token_hex(8)}"
            try:
                # All of a home directory is more than a script needs to see: then it has what it was given.
                self._copies[root] = copy_checkout(root, place, [root] if _holds_home(root) else left_out)
            except HarnessError as error:
                self._copies[root] = error

    def checkout(self, directory: Path) -> CheckoutCopy:
        """The copy of the checkout that a spec's directory is in. Raises HarnessError."""
        found = self._copies[_checkout_of(directory)]
        if isinstance(found, HarnessError):
            raise found
        return found

    def readable(self, directory: Path) -> list[Path]:
        """What of the checkout itself scripts may read, as far as modes let their user. Raises HarnessError."""
        copy = self.checkout(directory)
        return policy.around(copy.source, copy.secret)

    def new_directory(self) -> Path:
        """For one check."""
        place = self.area / f"host-{secrets.token_hex(8)}"
        place.mkdir()
        place.chmod(0o711)
        return place


def _checkout_of(directory: Path) -> Path:
    """The workspace of the job, else the repository or working directory around a spec; never one that holds our home
    directory, which is full of what no script is to see."""
    directory, workspace = directory.resolve(), os.environ.get("GITHUB_WORKSPACE")
    if workspace and directory.is_relative_to(Path(workspace).resolve()):
        found = Path(workspace).resolve()
    else:
        found = enclosing_root(directory)
    return directory if _holds_home(found) else found


def _holds_home(directory: Path) -> bool:
    return Path("~").expanduser().resolve().is_relative_to(directory)
