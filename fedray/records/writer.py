"""Writes a run while it is going: a round costs the same at any length."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from fedray.files import sync, write_atomic
from fedray.records.folder import RunFolder, round_line
from fedray.records.round import Round
from fedray.records.run import Costs, Run, RunInfo, Summary, result_head
from fedray.records.sealed import parse_json

SAVE_SECONDS = 20.0
"""How long result.json may lag behind rounds.jsonl, unless writing it takes long."""
SAVE_SHARE = 0.02
"""The most of a run's time that result.json may take, so that its cost stays linear."""


class RunWriter:
    """Appends rounds to rounds.jsonl, and puts result.json together from it now and then.

    It keeps no round in memory.

    Args:
        folder: the run's; it exists.
        info: what determines the numbers.
        earlier: what an interrupted run had written, cut to the rounds that still count.

    Attributes:
        rounds_checksum: of all rounds so far, for the checkpoint.
    """

    def __init__(self, folder: RunFolder, info: RunInfo, earlier: Run | None = None) -> None:
        self._folder = folder
        self._info = info
        self._costs = earlier.costs if earlier else Costs()
        self._last = earlier.done if earlier else -1
        self._best = earlier.best if earlier else None
        self._final = earlier.final if earlier else None
        self._analyses = folder.first_analyses(self._last) if earlier else None
        self.rounds_checksum = info.identity
        lines = []
        for done in earlier.rounds if earlier else ():
            line, self.rounds_checksum = round_line(done, self._costs, self.rounds_checksum)
            lines.append(line)
        write_atomic(folder.rounds_file, "".join(lines))
        sync(folder.path)
        self._file = folder.rounds_file.open("ab", buffering=0)
        self._save()

    def append(self, round_: Round, costs: Costs) -> None:
        """Write one more round.

        Raises:
            ValueError: when a number of it is not finite; nothing of the round is written then.
            OSError: when the disk takes no more; nothing of the round is left then either.
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
        if time.monotonic() > self._next_save:
            self._save()

    @property
    def best(self) -> int | None:
        """The best round so far; None while there is none, or nothing may choose it."""
        return None if self._best is None else self._best.round

    @property
    def descriptor(self) -> int:
        """Of the file of rounds, for who wants to have them on the disk."""
        return self._file.fileno()

    def close(self, *, stopped_early: bool = False) -> None:
        """Put result.json together; once all rounds are in it, the file of rounds goes.

        Args:
            stopped_early: that there will be no further round.
        """
        if self._file.closed:
            return
        self._file.close()
        self._save()
        if self._last >= self._info.planned or stopped_early:
            self._folder.rounds_file.unlink(missing_ok=True)

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
        began = time.monotonic()
        head = result_head(self._info, self._best, self._final, self._costs, self.rounds_checksum)
        self._folder.write_result(head, self._records())
        took = time.monotonic() - began
        self._next_save = began + took + max(SAVE_SECONDS, took / SAVE_SHARE)

    def _records(self) -> Iterator[dict[str, Any]]:
        """The rounds of rounds.jsonl as result.json holds them."""
        with self._folder.rounds_file.open("rb") as file:
            for line in file:
                tree = parse_json(line)
                for key in ("costs", "rounds_checksum", "checksum"):
                    del tree[key]
                yield tree
