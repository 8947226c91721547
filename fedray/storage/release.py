"""The releases of a run under differential privacy, one line each; lines are never removed.

A line is written before the clients start, so that a resumed run also counts releases that are
missing in the last checkpoint of the killed process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from fedray.errors import UserError, one_line
from fedray.storage.files import read_regular, write_atomic
from fedray.storage.metric import RECORD


@dataclass(frozen=True, config=RECORD)
class Release:
    """One step in which clients upload a payload with noise.

    Attributes:
        round: the round.
        step: the client step.
        clients: ids of the participating clients.
        sample: number of clients that the round drew.
        of: number of clients that it drew from; equal to `sample` under full participation.
        void: whether the step turned out to upload no payload with noise.
    """

    round: int
    step: str
    clients: tuple[int, ...]
    sample: int
    of: int
    void: bool = False


_RELEASE = TypeAdapter(Release)


def without_void(releases: Iterable[Release]) -> Sequence[Release]:
    """Return the actual releases: a void entry cancels the last one of its round and step."""
    counted: list[Release] = []
    for release in releases:
        step = release.round, release.step
        if release.void:
            del counted[max(i for i, r in enumerate(counted) if (r.round, r.step) == step)]
        else:
            counted.append(release)
    return counted


class ReleaseLog:
    """The file of a run's releases; may be missing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Sequence[Release]:
        """Return all releases, void ones included; remove an incomplete last line.

        An incomplete line is removed because its clients had not started.

        Raises:
            UserError: if the file is damaged.
        """
        if not self.path.exists():
            return ()
        try:
            whole, end, torn = read_regular(self.path).decode().rpartition("\n")
            releases = [_RELEASE.validate_json(line) for line in whole.splitlines()]
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path} cannot be read ({one_line(error)}), so the clients' releases are not "
                "known; restore the file, or start a new run with another --out"
            ) from None
        if torn:
            write_atomic(self.path, whole + end)
        return releases

    def append(self, release: Release) -> None:
        """Append a release and flush it to the disk; create the folder if missing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_RELEASE.dump_json(release).decode() + "\n")
            file.flush()
            os.fsync(file.fileno())
