"""`RunWriter`, which writes the files of a run round by round, at constant cost per round."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from datetime import UTC, datetime

from fedray.storage.files import sync
from fedray.storage.metric import HEADLINE, VALIDATION
from fedray.storage.run import Costs, Round, Run
from fedray.storage.run_folder import Mark, RunFile, RunFolder, end_line, round_line


class RunWriter:
    """Writes run.json at the start, appends rounds to rounds.jsonl, and a line at the end.

    Rounds are not kept in memory.

    Args:
        folder: the folder of the run, which exists.
        head: the content of run.json.
        earlier: the interrupted run to continue, cut to the rounds of its checkpoint; later rounds
            are removed from the file.

    Attributes:
        best: the best round so far; None if no images select it, or no round was evaluated.
    """

    def __init__(self, folder: RunFolder, head: RunFile, earlier: Run | None = None) -> None:
        earlier = earlier or Run(head.info)
        started = earlier.started or head.started or datetime.now(UTC)
        self._folder, self._head = folder, replace(head, started=started)
        self._analyses = folder.first_analyses(earlier.done) if earlier.rounds else None
        self._chooser = HEADLINE if head.select == "test" else f"{VALIDATION}{HEADLINE}"
        self.best = earlier.best_round(HEADLINE)
        self._most = None if self.best is None else earlier.curve(self._chooser)[self.best]
        folder.write_head(self._head)
        kept = folder.mark(len(earlier.rounds))
        self._file = folder.rounds_file.open("a+b", buffering=0)
        self._file.truncate(int(kept["bytes"]))
        self._file.seek(0)
        self._digest = hashlib.sha256(self._file.read())
        sync(folder.path)

    def append(self, round_: Round, costs: Costs) -> None:
        """Append a round.

        Raises:
            ValueError: if a number is not finite; nothing of the round is written.
            OSError: if the disk is full; nothing of the round is left.
        """
        line = round_line(round_, costs)
        if round_.matrices:
            self._analyses = self._folder.write_matrices(round_, self._analyses)
        self._write(line)
        value = round_.metrics.get(self._chooser)
        if round_.round and value is not None and (self._most is None or value > self._most):
            self.best, self._most = round_.round, value

    def _write(self, line: str) -> None:
        before, rest = os.fstat(self._file.fileno()).st_size, line.encode()
        try:
            while rest:  # a full disk accepts a part before it raises an error
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.truncate(self._folder.rounds_file, before)
            raise
        self._digest.update(line.encode())

    @property
    def mark(self) -> Mark:
        """Return the place after the last round, for the checkpoint."""
        size = os.fstat(self._file.fileno()).st_size
        return {"bytes": size, "sha256": self._digest.hexdigest()}

    @property
    def descriptor(self) -> int:
        """Return the file descriptor of rounds.jsonl, for flushing it to the disk."""
        return self._file.fileno()

    def end(self) -> None:
        """Write the line of the run's end."""
        self._write(end_line())

    def close(self) -> None:
        """Close the files."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()
