"""`RunFolder` and `RunWriter`, which read and write all files of a run but its states.

run.json         the experiment and all that determined its numbers; written at the start
rounds.jsonl     one line per round, appended after the round, and one for the end of the run
matrices.json    the first and the last analyses of a method, [C, C] each, by round and name
states/          the last checkpoint, and the models of the best round and of the last
plugins/         the plug-ins' source files, as they were run
error.txt        tracebacks of errors

The best and the final round follow from the rounds.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from fedray.base.errors import UserError, named
from fedray.base.masking import mask
from fedray.storage.files import read_json, read_regular, sync, write_atomic, write_json
from fedray.storage.metric import HEADLINE, VALIDATION
from fedray.storage.run import Costs, Round, Run, RunInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RUN = "run.json"
LIST = "runs.json"
"""File in the folder of a table that lists the folders of its runs."""
FORMAT = 8
"""Version of run.json."""

_HEAD, _ROUND, _COSTS = TypeAdapter(RunInfo), TypeAdapter(Round), TypeAdapter(Costs)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = path / RUN
        self.rounds_file = path / "rounds.jsonl"
        self.matrices_file = path / "matrices.json"
        self.error = path / "error.txt"
        self.states = path / "states"

    @property
    def has_run(self) -> bool:
        """Return True if run.json exists, with or without rounds; it may be unreadable."""
        return self.head.exists()

    @property
    def is_finished(self) -> bool:
        """Return True if the run has ended and closed its files."""
        return any(map(_is_end, self._all_lines()[-1:]))

    def read_head(self) -> RunInfo:
        """Return the content of run.json but for the partition.

        Raises:
            UserError: if there is no run, or the file is damaged.
        """
        tree = self._tree()
        try:
            partition = tree.pop("partition")
            hashes = partition.get("sha256"), partition.get("images_sha256")
            tree["partition_sha256"], tree["data_sha256"] = hashes
            return _HEAD.validate_python(tree)
        except (ValidationError, LookupError, AttributeError) as error:
            raise UserError(f"{self.head} cannot be read: {_reason(error)}") from None

    def write_head(self, info: RunInfo, partition: Mapping[str, Any]) -> None:
        """Replace run.json; create the folder if missing.

        Args:
            info: all but the partition.
            partition: the assignment of images to clients, with hashes of itself and the images.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        tree = {"format": FORMAT, **_HEAD.dump_python(info, mode="json")}
        del tree["partition_sha256"], tree["data_sha256"]
        text = json.dumps(tree, indent=1, allow_nan=False)
        last = json.dumps(partition, allow_nan=False)  # on one line
        write_atomic(self.head, f'{text[:-2]},\n "partition": {last}\n}}\n')

    def experiment(self) -> dict[str, Any]:
        """Return the settings of the run as a tree that can be resolved, with its plug-ins' texts.

        Raises:
            UserError: as `read_head`.
        """
        head = self.read_head()
        tree = {key: value for key, value in head.config.items() if key != "versions"}
        return {**tree, "plugins": list(head.plugins)} if head.plugins else tree

    def partition(self) -> dict[str, Any]:
        """Return the assignment of images to clients, and what else is known of the images."""
        return dict(self._tree()["partition"])

    def class_names(self) -> list[str]:
        """Return the names of the classes, in the order of their labels; empty if unknown."""
        return [str(name) for name in self.partition().get("class_names", ())]

    def histograms(self) -> dict[int, NDArray[np.int64]]:
        """Return the images by client and class, int64 [N, C], by the first round of each phase."""
        import numpy as np

        first = self.partition()
        phases = [first, *first.get("later", ())]
        shape = -1, len(first["class_names"])
        return {
            phase.get("round", 0): np.array(phase["histogram"], np.int64).reshape(shape)
            for phase in phases
        }

    def _tree(self) -> dict[str, Any]:
        if not self.has_run:
            raise _no_run(self.path)
        tree = read_json(self.head)
        if not isinstance(tree, dict) or tree.pop("format", None) != FORMAT:
            raise UserError(f"{self.head} is not the run.json of a run of this version of fedray")
        return tree

    def read(self) -> Run:
        """Return the run with its rounds so far.

        Raises:
            UserError: if there is no run, or a file is damaged.
        """
        head, rounds, costs = self.read_head(), list[Round](), Costs()
        for number, line in enumerate(self._lines(), 1):
            try:
                tree = json.loads(line)
                costs = _COSTS.validate_python(tree.pop("costs"))
                rounds.append(_ROUND.validate_python(tree))
                if rounds[-1].round != rounds[0].round + number - 1:
                    raise ValueError(f"it has round {rounds[-1].round} after {rounds[-2].round}")
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise UserError(
                    f"{self.rounds_file}, line {number}, cannot be read: {_reason(error)}; "
                    "restore the file from a copy, or start anew with another --out"
                ) from None
        return Run(head, rounds, costs)

    def rounds(self) -> Sequence[Round]:
        """Return the rounds so far, read as by `read`; empty without run.json."""
        return self.read().rounds if self.has_run else ()

    def content(self, count: int) -> bytes:
        """Return the lines of the first `count` rounds."""
        return b"".join(line + b"\n" for line in self._lines()[:count])

    def _lines(self) -> list[bytes]:
        """Return the lines of all rounds, without a partial line of a killed process."""
        lines = self._all_lines()
        return lines[:-1] if lines and _is_end(lines[-1]) else lines

    def _all_lines(self) -> list[bytes]:
        try:
            return read_regular(self.rounds_file).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.rounds_file} cannot be read: {error}") from None

    def matrices(self) -> dict[int, Mapping[str, Any]]:
        """Return the first and the last analyses of the run's method by round: matrices by name.

        Raises:
            UserError: if the file is damaged.
        """
        tree = read_json(self.matrices_file) if self.matrices_file.exists() else {}
        return dict(sorted((int(number), found) for number, found in tree.items()))

    def read_matrices(self, when: Literal["first", "last"] = "last") -> Mapping[str, Any]:
        """Return the first or the last analyses; empty without any, see `matrices`."""
        found = [*self.matrices().values()] or [{}]
        return found[-1 if when == "last" else 0]

    def keep_error(self, traceback: str) -> str:
        """Append a traceback without secrets to error.txt; create the folder if missing.

        Returns:
            The path of the file, or "" if it could not be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self.error.open("a", encoding="utf-8") as file:
                file.write(mask(traceback) + "\n")
        except OSError:
            return ""
        return str(self.error)


class RunWriter:
    """Writes run.json at the start, appends rounds to rounds.jsonl, and a line at the end.

    A round costs the same at any length of the run; rounds are not kept in memory.

    Args:
        folder: the folder of the run, which exists.
        info: the content of run.json.
        partition: see `RunFolder.write_head`.
        earlier: the interrupted run to continue, cut to the rounds of its checkpoint; later rounds
            are removed from the file.

    Attributes:
        best: the best round so far; None if no images select it, or none was evaluated.
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
        self._folder, self.best = folder, earlier.best
        self._chooser = HEADLINE if info.select == "test" else f"{VALIDATION}{HEADLINE}"
        matrices = folder.matrices() if earlier.rounds else {}
        self._matrices = {number: m for number, m in matrices.items() if number <= earlier.done}
        folder.write_head(replace(info, started=started), partition)
        kept = folder.content(len(earlier.rounds))
        self._file = folder.rounds_file.open("ab", buffering=0)
        self._file.truncate(len(kept))
        self._digest = hashlib.sha256(kept)
        sync(folder.path)

    def append(self, round_: Round, costs: Costs) -> None:
        """Append a round.

        Raises:
            ValueError: if a number is not finite; nothing of the round is written.
            OSError: if the disk is full; nothing of the round is left.
        """
        tree = {**_ROUND.dump_python(round_, mode="json"), "costs": asdict(costs)}
        line = json.dumps(tree, allow_nan=False)
        if round_.matrices:
            first = dict([*self._matrices.items()][:1])
            self._matrices = {**first, round_.round: round_.matrices}
            write_json(self._folder.matrices_file, self._matrices)
        self._write(line)
        values = round_.metrics if round_.round > 0 else {}
        before = self.best.metrics[self._chooser] if self.best else -math.inf
        if values.get(self._chooser, -math.inf) > before:
            self.best = round_

    def end(self) -> None:
        """Write the line of the run's end."""
        self._write(json.dumps({"ended": datetime.now(UTC).isoformat()}))

    def _write(self, line: str) -> None:
        content = rest = f"{line}\n".encode()
        before = os.fstat(self._file.fileno()).st_size
        try:
            while rest:  # a full disk accepts a part before it raises an error
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.truncate(self._folder.rounds_file, before)
            raise
        self._digest.update(content)

    @property
    def mark(self) -> Mapping[str, int | str]:
        """Return the place after the last round, for the checkpoint; see `mark_of`."""
        size = os.fstat(self._file.fileno()).st_size
        return {"bytes": size, "sha256": self._digest.hexdigest()}

    def flush(self) -> None:
        """Flush rounds.jsonl to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files."""
        if not self._file.closed:
            self.flush()
            self._file.close()


def mark_of(content: bytes) -> Mapping[str, int | str]:
    """Return a place in rounds.jsonl: the number of bytes before it, and their SHA-256."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def find_run_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of all runs in and below the given folders, sorted.

    A folder with a runs.json, for example of a table, stands for the runs that the file lists.

    Raises:
        UserError: if a given folder is missing or contains no run.
    """
    runs: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass the folder of a run, sweep or table")
        if (folder / LIST).is_file():
            below = [folder / name for name in read_json(folder / LIST)["runs"]]
        else:
            below = [path.parent for path in folder.rglob(RUN)]
        if not below:
            raise _no_run(folder)
        runs |= {path.resolve() for path in below}
    return sorted(runs)


def write_run_list(folder: Path, runs: Iterable[Path]) -> None:
    """Write the list of runs that a folder stands for, for example the runs of a table."""
    names = [os.path.relpath(run, folder) for run in dict.fromkeys(runs)]
    write_json(folder / LIST, {"runs": names})


def _is_end(line: bytes) -> bool:
    return line.startswith(b'{"ended": ') and line.endswith(b"}")


def _no_run(folder: Path) -> UserError:
    return UserError(f"there is no {RUN} in or below {folder}; pass a run's folder")


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return named(error)
