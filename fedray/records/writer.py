"""Writes a run while it is going: a round costs the same at any length."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from fedray.files import sync
from fedray.records.folder import ResultFile, RunFolder, round_line
from fedray.records.run import Costs, Round, Run, RunInfo, Summary


class RunWriter:
    """Appends rounds to rounds.jsonl; writes result.json at the start and when it is closed.

    It keeps no round in memory.

    Args:
        folder: the run's; it exists.
        info: what determines the numbers.
        earlier: what an interrupted run had written, cut to the rounds that still count; rounds
            after them are removed from the file.
        began: when the run was started, in seconds since the epoch; None: now.

    Attributes:
        rounds_checksum: of all rounds so far, for the checkpoint.
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
        self._info = info
        self._costs = earlier.costs
        self._started = earlier.started or now
        self._ended: datetime | None = None
        self._last = earlier.done
        self._best = earlier.best
        self._final = earlier.final
        self._analyses = folder.first_analyses(earlier.done) if earlier.rounds else None
        self.rounds_checksum = earlier.rounds_checksum
        self._save()  # before the rounds are cut: readers never miss one that it promises
        folder.cut_rounds(len(earlier.rounds))
        sync(folder.path)
        self._file = folder.rounds_file.open("ab", buffering=0)

    def append(self, round_: Round, costs: Costs) -> None:
        """Write one more round.

        Raises:
            ValueError: if a number is not finite; nothing of the round is written.
            OSError: if the disk is full; nothing of the round is left.
        """
        line, chain = round_line(round_, costs, self.rounds_checksum)
        if round_.matrices:
            self._analyses = self._folder.write_matrices(round_, self._analyses)
        self._write(line.encode())
        self.rounds_checksum, self._costs, self._last = chain, costs, round_.round
        evaluated = Summary.of(round_)
        if evaluated is not None:
            self._best = evaluated.better(self._best, self._info.select)
            self._final = evaluated

    @property
    def best(self) -> int | None:
        """Return the best round so far; None while there is none, or nothing may choose it."""
        return None if self._best is None else self._best.round

    @property
    def descriptor(self) -> int:
        """Return the descriptor of rounds.jsonl, for who needs the rounds on the disk."""
        return self._file.fileno()

    def close(self, *, stopped_early: bool = False) -> None:
        """Write result.json with what the rounds came to.

        Args:
            stopped_early: whether the run ends before its last round.
        """
        if self._file.closed:
            return
        os.fsync(self._file.fileno())
        self._file.close()
        if self._last >= self._info.planned or stopped_early:
            self._ended = datetime.now(UTC)
        self._save()

    def _write(self, line: bytes) -> None:
        """Append a line, whole or not at all."""
        before = os.fstat(self._file.fileno()).st_size
        try:
            while line:  # a full disk takes a part, then says why
                line = line[self._file.write(line) :]
        except OSError:
            os.truncate(self._folder.rounds_file, before)
            raise

    def _save(self) -> None:
        self._folder.write_head(
            ResultFile(
                **vars(self._info),
                best=self._best,
                final=self._final,
                costs=self._costs,
                started=self._started,
                ended=self._ended,
                done=self._last,
                rounds_checksum=self.rounds_checksum,
            )
        )
