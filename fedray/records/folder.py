"""A run's folder: the only place that reads and writes result.json.

config.yaml      the complete experiment
result.json      what determined the numbers, every round, best and final
rounds.jsonl     one line per round while the run is going: a round costs the same at any length
partition.json   who owns which image, with its hash; partition.png shows it
matrices.json    the last analyses of a method, [C, C] each
error.txt        tracebacks of what failed
checkpoints/     the latest federated checkpoint
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from fedray.errors import UserError
from fedray.files import write_atomic, write_json
from fedray.masking import mask
from fedray.records.round import Round
from fedray.records.run import Costs, Run, RunInfo

RESULT = "result.json"
ARTIFACTS = ("config.yaml", RESULT, "partition.json", "partition.png", "matrices.json")
"""The files of a run's folder that a tracker keeps with it."""
SAVE_SECONDS = 20.0
"""How long result.json may lag behind rounds.jsonl."""
_REQUIRED = ("config", "rounds", "seed", "identity", "algorithm", "versions")


class RunFolder:
    """The files of one run.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.result = path / RESULT
        self.rounds_file = path / "rounds.jsonl"
        self.partition = path / "partition.json"
        self.partition_plot = path / "partition.png"
        self.matrices = path / "matrices.json"
        self.error = path / "error.txt"
        self.lock = path / ".lock"

    @property
    def has_result(self) -> bool:
        """Whether a round was ever written here."""
        return self.result.is_file()

    @property
    def artifacts(self) -> list[Path]:
        """The files that a tracker keeps, whether they are there or not."""
        return [self.path / name for name in ARTIFACTS]

    def read(self) -> Run:
        """The run so far.

        Raises:
            UserError: when there is none, or a file is damaged.
        """
        tree = _read_json(self.result)
        missing = [key for key in _REQUIRED if not isinstance(tree, dict) or key not in tree]
        if missing:
            raise UserError(f"{self.result} is not a run's result: it has no '{missing[0]}'")
        try:
            run = Run.from_json(tree)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.result} cannot be read: {_reason(error)}") from None
        return self._with_appended(run)

    def rounds(self) -> Sequence[Round]:
        """The rounds that were written; none where there is no result.

        Raises:
            UserError: as `read`.
        """
        return self.read().rounds if self.has_result else ()

    def read_matrices(self) -> dict[str, list[list[float]]]:
        """The last analyses of the run's method; empty where it has none.

        Raises:
            UserError: when the file is damaged.
        """
        matrices: dict[str, list[list[float]]] = _read_json(self.matrices, {})
        return matrices

    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their labels; empty where no file says so.

        Raises:
            UserError: when the file is damaged.
        """
        names: list[str] = _read_json(self.partition, {}).get("class_names", [])
        return names

    def write_partition(self, manifest: Mapping[str, Any]) -> None:
        """Write who owns which image."""
        write_json(self.partition, manifest)

    def append_error(self, traceback: str) -> Path:
        """Keep one more traceback in error.txt, without secrets; the folder is made if missing."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.error.open("a", encoding="utf-8") as file:
            file.write(mask(traceback) + "\n")
        return self.error

    def put_together(self) -> None:
        """Bring result.json up to date with rounds.jsonl; where there is none, it is so already.

        For runs whose process was killed: a `RunWriter` does this when it is closed.

        Raises:
            UserError: as `read`.
        """
        if not (self.rounds_file.is_file() and self.has_result):
            return
        run = self.read()
        write_json(self.result, run.to_json())
        self.drop_rounds_of(run)

    def drop_rounds_of(self, run: Run) -> None:
        """Remove rounds.jsonl once all rounds that were asked for are in result.json."""
        if run.done >= run.info.planned:
            self.rounds_file.unlink(missing_ok=True)

    def _with_appended(self, run: Run) -> Run:
        """The rounds of rounds.jsonl instead, while the run is going."""
        try:
            text = self.rounds_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return run
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.rounds_file} cannot be read: {error}") from None
        rounds, costs = [], run.costs
        whole = text.splitlines()[: text.count("\n")]  # a torn last line was never finished
        for number, line in enumerate(whole, 1):
            try:
                tree = json.loads(line)
                costs = Costs(**tree.pop("costs"))
                rounds.append(Round.from_json(tree))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise UserError(
                    f"{self.rounds_file}, line {number}, cannot be read: {_reason(error)}"
                ) from None
        return replace(run, rounds=rounds, costs=costs)


class RunWriter:
    """Writes a run while it is going.

    Args:
        folder: the run's; it exists.
        info: what determines the numbers.
        earlier: what an interrupted run had written, cut to the rounds that still count.
    """

    def __init__(self, folder: RunFolder, info: RunInfo, earlier: Run | None = None) -> None:
        self._folder = folder
        self.run = Run(info) if earlier is None else replace(earlier, info=info)
        self._rounds: list[Round] = list(self.run.rounds)
        lines = [_line(r, self.run.costs) for r in self._rounds]
        write_atomic(folder.rounds_file, "".join(lines))
        self._file: IO[str] = folder.rounds_file.open("a", encoding="utf-8")
        self._save()

    def append(self, round_: Round, costs: Costs) -> None:
        """Write one more round.

        Raises:
            ValueError: when a number of it is not finite; nothing of the round is written then.
        """
        line = _line(round_, costs)
        if round_.matrices:
            write_json(self._folder.matrices, round_.matrices)
        self._file.write(line)
        self._file.flush()
        self._rounds.append(replace(round_, matrices={}))
        self.run = replace(self.run, rounds=self._rounds, costs=costs)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self._save()

    def sync(self) -> None:
        """Have the rounds on the disk, so that they are whole after a node went down."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Put result.json together; once all rounds are in it, the file of rounds goes."""
        if self._file.closed:
            return
        self._file.close()
        self._save()
        self._folder.drop_rounds_of(self.run)

    def _save(self) -> None:
        write_json(self._folder.result, self.run.to_json())
        self._saved = time.monotonic()


def find_runs(folders: Sequence[Path]) -> list[tuple[Path, Run]]:
    """Runs at or below the given folders: each folder and its run, sorted, each once.

    Ray Tune also calls a file result.json, with one line per report; it is passed over.

    Raises:
        UserError: when a given folder is missing or holds no run, or a result cannot be read.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass a run's or sweep's folder")
        below = list(_results_below(folder))
        if not below:
            raise UserError(f"there is no {RESULT} in or below {folder}; pass a run's folder")
        for path in below:
            found[path.parent.resolve()] = RunFolder(path.parent).read()
    return sorted(found.items())


def _results_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob(RESULT) if not _is_tunes(path))


def _is_tunes(path: Path) -> bool:
    """Whether this is the log of Ray Tune: JSON lines, the first of them about a trial."""
    with path.open("rb") as file:
        first = file.readline()
    if not first.strip():
        return True
    try:
        line = json.loads(first)
    except ValueError:
        return False
    return isinstance(line, dict) and "rounds" not in line and "trial_id" in line


def _line(round_: Round, costs: Costs) -> str:
    tree = {**round_.to_json(), "costs": asdict(costs)}
    return json.dumps(tree, allow_nan=False) + "\n"


def _read_json(path: Path, missing: Any = None) -> Any:
    """A file's content; `missing`, where that is given and there is no file."""
    if missing is not None and not path.exists():
        return missing
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
