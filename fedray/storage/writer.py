"""`RunWriter`, which writes the files of a run round by round, at constant cost per round."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fedray.storage.files import sync, write_json
from fedray.storage.metric import HEADLINE, VALIDATION, best_round
from fedray.storage.run import Costs, Round, Run, RunInfo
from fedray.storage.run_folder import Mark, RunFolder, end_line, round_line


class RunWriter:
    """Writes run.json at the start, appends rounds to rounds.jsonl, and a line at the end.

    Rounds are not kept in memory.

    Args:
        folder: the folder of the run, which exists.
        info: the content of run.json.
        partition: see `RunFolder.write_head`.
        earlier: the interrupted run to continue, cut to the rounds of its checkpoint; later rounds
            are removed from the file.
    """

    def __init__(
        self,
        folder: RunFolder,
        info: RunInfo,
        partition: Mapping[str, Any],
        earlier: Run | None = None,
    ) -> None:
        earlier = earlier or Run(info)
        started = earlier.info.started or info.started or datetime.now(UTC)
        self._folder = folder
        found = folder.matrices() if earlier.rounds else {}
        self._matrices = {number: m for number, m in found.items() if number <= earlier.done}
        self._chooser = HEADLINE if info.select == "test" else f"{VALIDATION}{HEADLINE}"
        self._curve = earlier.curve(self._chooser)
        folder.write_head(replace(info, started=started), partition)
        kept = folder.mark(len(earlier.rounds))
        self._file = folder.rounds_file.open("a+b", buffering=0)
        self._file.truncate(int(kept["bytes"]))
        self._file.seek(0)
        self._digest = hashlib.sha256(self._file.read())
        sync(folder.path)

    @property
    def best(self) -> int | None:
        """Return the best round so far; None if no images select it, or none was evaluated."""
        return best_round(self._curve, "max")

    def append(self, round_: Round, costs: Costs) -> None:
        """Append a round.

        Raises:
            ValueError: if a number is not finite; nothing of the round is written.
            OSError: if the disk is full; nothing of the round is left.
        """
        line = round_line(round_, costs)
        if round_.matrices:
            first = dict([*self._matrices.items()][:1])
            self._matrices = {**first, round_.round: round_.matrices}
            write_json(self._folder.matrices_file, self._matrices)
        self._write(line)
        if self._chooser in round_.metrics:
            self._curve[round_.round] = round_.metrics[self._chooser]

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

    def flush(self) -> None:
        """Flush rounds.jsonl to the disk."""
        os.fsync(self._file.fileno())

    def end(self) -> None:
        """Write the line of the run's end."""
        self._write(end_line())

    def close(self) -> None:
        """Close the files."""
        if not self._file.closed:
            self.flush()
            self._file.close()
