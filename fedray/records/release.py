"""What a run's clients have released under differential privacy, one line each, never taken back.

It is written before the clients are asked: a run that is killed and goes on has released what the
killed one had asked for, whether or not a checkpoint knows of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedray.errors import UserError
from fedray.files import write_atomic


@dataclass(frozen=True)
class Release:
    """One step in which clients upload something that noise covers.

    Attributes:
        round: the round.
        step: the client step.
        clients: who was asked.
        sample: how many clients the round had drawn.
        of: how many it had drawn them from; `sample` where everybody is asked.
        void: that the step turned out to upload nothing that noise covers.
    """

    round: int
    step: str
    clients: tuple[int, ...]
    sample: int
    of: int
    void: bool = False

    def to_line(self) -> str:
        """One line of releases.jsonl."""
        return json.dumps(vars(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Release:
        """What `to_line` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it is anything else.
        """
        tree: dict[str, Any] = json.loads(line)
        return cls(**{**tree, "clients": tuple(tree["clients"])})


def without_void(releases: Iterable[Release]) -> Sequence[Release]:
    """The releases that happened: one that is void takes back the last like it."""
    found: list[Release] = []
    for release in releases:
        if not release.void:
            found.append(release)
            continue
        same = [
            i for i, r in enumerate(found) if (r.round, r.step) == (release.round, release.step)
        ]
        del found[same[-1]]
    return found


class ReleaseLog:
    """The file of a run's releases.

    Args:
        path: releases.jsonl in the run's folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Sequence[Release]:
        """All lines, void ones too; a torn last one is removed: nobody had been asked yet.

        Raises:
            UserError: when the file is damaged.
        """
        if not self.path.exists():
            return ()
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            releases = [Release.from_line(line) for line in whole]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.path} cannot be read ({error}), so what the clients have released is not "
                "known; restore it, or start anew with another --out"
            ) from None
        if len(whole) < len(lines):
            write_atomic(self.path, "".join(whole))
        return releases

    def append(self, release: Release) -> None:
        """Write one more line, to the disk; the folder is made when missing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(release.to_line())
            file.flush()
            os.fsync(file.fileno())
