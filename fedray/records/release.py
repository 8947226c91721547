"""A run's releases under differential privacy, one line each, never taken back.

A line is written before the clients are asked: a resumed run counts what the killed process had
asked for, whether or not a checkpoint knows of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from fedray.errors import UserError, one_line
from fedray.files import write_atomic
from fedray.records.metric import RECORD


@dataclass(frozen=True, config=RECORD)
class Release:
    """One step in which clients upload something that noise covers.

    Attributes:
        round: the round.
        step: the client step.
        clients: ids of the clients that were asked.
        sample: how many clients the round drew.
        of: how many clients it drew them from; `sample` if everybody is asked.
        void: whether the step turned out to upload nothing that noise covers.
    """

    round: int
    step: str
    clients: tuple[int, ...]
    sample: int
    of: int
    void: bool = False


_RELEASE = TypeAdapter(Release)


def without_void(releases: Iterable[Release]) -> Sequence[Release]:
    """Return the releases that happened: a void one cancels the last of its round and step."""
    found: list[Release] = []
    for release in releases:
        step = release.round, release.step
        if release.void:
            del found[max(i for i, r in enumerate(found) if (r.round, r.step) == step)]
        else:
            found.append(release)
    return found


class ReleaseLog:
    """The file of a run's releases; it need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Sequence[Release]:
        """Return all releases, void ones too; remove a torn last line: nobody was asked yet.

        Raises:
            UserError: if the file is damaged.
        """
        if not self.path.exists():
            return ()
        try:
            whole, end, torn = self.path.read_text(encoding="utf-8").rpartition("\n")
            releases = [_RELEASE.validate_json(line) for line in whole.splitlines()]
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path} cannot be read ({one_line(error)}), so the clients' releases are not "
                "known; restore it, or start anew with another --out"
            ) from None
        if torn:
            write_atomic(self.path, whole + end)
        return releases

    def append(self, release: Release) -> None:
        """Append a line and wait until it is on the disk; make the folder if it is missing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_RELEASE.dump_json(release).decode() + "\n")
            file.flush()
            os.fsync(file.fileno())
