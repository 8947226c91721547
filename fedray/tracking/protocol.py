"""What a run asks of a tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedray.records import Round, Status
from fedray.tracking.describe import DataInput


class Tracker(Protocol):
    """Somewhere that shows runs while they happen; no call waits for it or fails because of it."""

    def start(
        self,
        key: str,
        name: str,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        data: Sequence[DataInput] = (),
    ) -> str | None:
        """Open the run of this key, or the one that an earlier process opened for it.

        Args:
            key: what identifies the run; see `run_key`.
            name: what people call it.
            params: its configuration, flat, by dotted key.
            tags: what it is found by.
            data: what it is run on, as far as that is known.

        Returns:
            The tracker's own id of the run, or None while that is not known.
        """
        ...

    def round(self, key: str, done: Round) -> None:
        """Log one round.

        After a resume pass the earlier rounds too: those that are there already are skipped.
        """
        ...

    def finish(
        self,
        key: str,
        status: Status,
        artifacts: Sequence[Path] = (),
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        """Close the run.

        Args:
            key: as given to `start`.
            status: how it ended.
            artifacts: files to keep with it; those that do not exist are left out.
            metrics: final numbers by name.
            note: its description in Markdown; `artifact:NAME` stands for one of the files.
        """
        ...

    def close(self) -> None:
        """Write what is still to be written; waits some seconds at most."""
        ...


class NullTracker:
    """Tracks nothing."""

    def start(
        self,
        key: str,
        name: str,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        data: Sequence[DataInput] = (),
    ) -> str | None:
        """Do nothing."""
        return None

    def round(self, key: str, done: Round) -> None:
        """Do nothing."""

    def finish(
        self,
        key: str,
        status: Status,
        artifacts: Sequence[Path] = (),
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
