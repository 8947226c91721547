"""`RunWriter`, which writes the files of a run round by round, at constant cost per round."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime

from fedray.storage.files import sync
from fedray.storage.run import Costs, Round, Run, RunInfo, Summary
from fedray.storage.run_folder import ResultFile, RunFolder, round_line


class RunWriter:
    """Appends rounds to rounds.jsonl; writes result.json at the start and when it is closed.

    Rounds are not kept in memory.

    Args:
        folder: the folder of the run, which exists.
        info: the settings that determine the numbers.
        earlier: the interrupted run to continue, cut to the rounds of its checkpoint; later rounds
            are removed from the file.
        began: when the run was started, in seconds since the epoch; None: now.
    """

    def __init__(
        self,
        folder: RunFolder,
        info: RunInfo,
        earlier: Run | None = None,
        began: float | None = None,
    ) -> None:
        earlier = earlier or Run(info)
        now = datetime.now(UTC) if began is None else datetime.fromtimestamp(began, UTC)
        self._folder = folder
        self._head = ResultFile.of(replace(earlier, info=info, started=earlier.started or now))
        self._analyses = folder.first_analyses(earlier.done) if earlier.rounds else None
        folder.write_head(self._head)  # before the cut: readers never miss a round it promises
        folder.cut_rounds(len(earlier.rounds))
        sync(folder.path)
        self._file = folder.rounds_file.open("ab", buffering=0)

    def append(self, round_: Round, costs: Costs) -> None:
        """Append a round.

        Raises:
            ValueError: if a number is not finite; nothing of the round is written.
            OSError: if the disk is full; nothing of the round is left.
        """
        line, chain = round_line(round_, costs, self.rounds_checksum)
        if round_.matrices:
            self._analyses = self._folder.write_matrices(round_, self._analyses)
        before, rest = os.fstat(self._file.fileno()).st_size, line.encode()
        try:
            while rest:  # a full disk accepts a part before it raises an error
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.truncate(self._folder.rounds_file, before)
            raise
        head = replace(self._head, costs=costs, done=round_.round, rounds_checksum=chain)
        if evaluated := Summary.of(round_):
            best = evaluated.better(head.best, head.select)
            head = replace(head, best=best, final=evaluated)
        self._head = head

    @property
    def rounds_checksum(self) -> str:
        """Return the checksum of all rounds so far, for the checkpoint."""
        return self._head.rounds_checksum

    @property
    def best(self) -> int | None:
        """Return the best round so far; None if no images select it, or no round was evaluated."""
        return None if self._head.best is None else self._head.best.round

    @property
    def descriptor(self) -> int:
        """Return the file descriptor of rounds.jsonl, for flushing it to the disk."""
        return self._file.fileno()

    def close(self) -> None:
        """Write result.json with the results so far, and close the files."""
        if self._file.closed:
            return
        os.fsync(self._file.fileno())
        self._file.close()
        if self._head.done >= self._head.planned:
            self._head = replace(self._head, ended=datetime.now(UTC))
        self._folder.write_head(self._head)
