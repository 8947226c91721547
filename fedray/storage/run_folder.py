"""`RunFolder`: the only code that reads and writes the files of a run.

config.yaml      the complete experiment
result.json      settings and environment of the run, best and final round, costs and times
rounds.jsonl     one line per round, appended after the round
partition.json   the assignment of images to clients, with its hash
matrices.json    the last and the first analyses of a method, [C, C] each, and their rounds
plugins/         the plug-ins' source files, as they were run
error.txt        tracebacks of errors
states/          the last checkpoint, and the models of the best round and of the last

Each JSON file, and each line of rounds.jsonl, has a checksum; damaged and edited files are refused
with a `UserError`. The checksum of a line covers the lines above it and the run's identity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedray.errors import UserError, named, shown
from fedray.masking import mask
from fedray.storage.files import read_regular, stores_of, write_atomic, write_json
from fedray.storage.json_files import (
    check,
    checksum,
    read_checked,
    read_json,
    sealed,
)
from fedray.storage.metric import RECORD
from fedray.storage.run import Costs, Round, Run, RunInfo, Summary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 5
"""Version of result.json; in versions 1 to 4, it held the rounds."""
RESULT = "result.json"
ROUNDS = "rounds.jsonl"
LIST = "runs.json"
"""File in the folder of a table that lists the folders of its runs."""
ARTIFACTS = ("config.yaml", RESULT, ROUNDS, "partition.json", "matrices.json")
"""The files of a run's folder that are uploaded to MLflow."""
When = Literal["first", "last"]
Analyses: TypeAlias = Mapping[str, Any]
"""A round's analyses: its number `round`, and `matrices` [C, C] as nested lists by name."""


@dataclass(frozen=True, kw_only=True, config=RECORD)
class ResultFile(RunInfo):
    """The content of result.json.

    Attributes:
        best: the best round so far; None if no images select it.
        final: the last evaluated round.
        costs: time and memory so far.
        started: when the run began.
        ended: when the last round ended; None while rounds remain.
        done: the last round that is certainly in rounds.jsonl; -1 for none.
        rounds_checksum: the checksum of the line of round `done`; without rounds, the identity.
    """

    best: Summary | None = None
    final: Summary | None = None
    costs: Costs = field(default_factory=Costs)
    started: datetime | None = None
    ended: datetime | None = None
    done: int = -1
    rounds_checksum: str

    @classmethod
    def of(cls, run: Run, ended: datetime | None = None) -> ResultFile:
        """Return the content of a run's result.json."""
        return cls(
            **vars(run.info),
            best=run.best,
            final=run.final,
            costs=run.costs,
            started=run.started,
            ended=ended,
            done=run.done,
            rounds_checksum=run.rounds_checksum,
        )

    @property
    def info(self) -> RunInfo:
        """Return the settings that determined the numbers."""
        return RunInfo(
            **{info_field.name: getattr(self, info_field.name) for info_field in fields(RunInfo)}
        )


_HEAD, _ROUND, _COSTS = TypeAdapter(ResultFile), TypeAdapter(Round), TypeAdapter(Costs)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.result = path / RESULT
        self.rounds_file = path / ROUNDS
        self.partition = path / "partition.json"
        self.matrices = path / "matrices.json"
        self.error = path / "error.txt"
        self.lock = path / ".lock"
        self.states = path / "states"

    @property
    def has_result(self) -> bool:
        """Return True if result.json exists, with or without rounds; it may be unreadable."""
        return os.path.lexists(self.result)

    @property
    def has_rounds(self) -> bool:
        """Return True if rounds.jsonl contains a complete round."""
        return bool(self._lines())

    @property
    def is_taken(self) -> bool:
        """Return True if the folder contains files of a run."""
        traces = (self.config, self.result, self.rounds_file, self.states)
        return any(trace.exists() for trace in traces)

    @property
    def is_finished(self) -> bool:
        """Return True if the run has ended and closed its files."""
        return self.has_result and self.read_head().ended is not None

    def read_head(self) -> ResultFile:
        """Return the content of result.json, written when the run was last started or stopped."""
        tree = read_json(self.result)
        if not isinstance(tree, dict) or not {"config", "identity"} <= tree.keys():
            raise UserError(f"{self.result} is not a run's result")
        schema = tree.get("schema")
        if "rounds" in tree or (type(schema) is int and schema != SCHEMA):
            raise UserError(
                f"{self.result} has schema {shown(schema)}, but this version of fedray reads "
                f"{SCHEMA}; use the version that wrote it"
            )
        tree = check(tree, self.result)
        if tree.pop("schema", None) != SCHEMA:
            raise UserError(f"{self.result} is not a run's result")
        try:
            return _HEAD.validate_python(tree)
        except ValidationError as error:
            raise UserError(f"{self.result} cannot be read: {_reason(error)}") from None

    def read(self) -> Run:
        """Return the run with its rounds so far.

        Raises:
            UserError: if there is no run, or a file is damaged.
        """
        head = self.read_head()
        known = [(RESULT, head.done, head.rounds_checksum)]
        if head.ended is None:  # a killed run has written only checkpoints since its start
            known += self._checkpointed()  # before the rounds, which a living run appends
        run = self._read_rounds(head)
        lost = [
            (source, round_)
            for source, round_, seal in known
            if round_ >= 0 and seal not in run.checksums
        ]
        if not lost:
            return run
        if self.read_head() != head:  # the run was resumed meanwhile, which cut its rounds
            return self.read()
        source, round_ = lost[0]
        raise UserError(
            f"{self.rounds_file} lacks round {round_}, which {source} says was done; restore "
            "the file from a copy, or start anew with another --out"
        )

    def _checkpointed(self) -> list[tuple[str, int, str]]:
        """Return name, round and checksum of rounds of a checkpoint; empty if it is not readable.

        Only `--resume` needs the checkpoint, and reports its damage.
        """
        from fedray.storage.states import HEAD, Commit  # imports torch

        try:
            commit = Commit.read(self.states, HEAD)
        except UserError:
            return []
        facts = {} if commit is None else commit.facts
        return [("the checkpoint", facts["round"], facts["rounds_checksum"])] if facts else []

    def rounds(self) -> Sequence[Round]:
        """Return the rounds so far, read as by `read`; empty without result.json."""
        return self.read().rounds if self.has_result else ()

    def _read_rounds(self, head: ResultFile) -> Run:
        rounds: list[Round] = []
        checksums, costs = [head.identity], head.costs
        for number, line in enumerate(self._lines(), 1):
            try:
                done, costs, seal = _parse_line(line.decode(), checksums[-1])
            except ValueError as error:
                raise UserError(
                    f"{self.rounds_file}, line {number}, cannot be read: {_reason(error)}; "
                    "restore the file from a copy, or start anew with another --out"
                ) from None
            rounds.append(done)
            checksums.append(seal)
        if checksums[-1] == head.rounds_checksum:  # result.json is newer than the last round
            costs = head.costs
        return Run(head.info, rounds, costs, head.started, checksums[1:])

    def _lines(self) -> list[bytes]:
        """Return the complete lines of rounds.jsonl, without a partial line of a killed process."""
        try:
            return read_regular(self.rounds_file).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.rounds_file} cannot be read: {error}") from None

    def cut_rounds(self, count: int) -> None:
        """Truncate rounds.jsonl to its first `count` lines; create the file if missing."""
        size = sum(len(line) + 1 for line in self._lines()[:count])
        with self.rounds_file.open("ab") as file:
            file.truncate(size)

    def write_head(self, head: ResultFile) -> None:
        """Replace result.json."""
        tree = _HEAD.dump_python(head, mode="json")
        write_json(self.result, sealed({"schema": SCHEMA, **tree}))

    def write(self, run: Run) -> None:
        """Write result.json and rounds.jsonl of a complete run; create the folder if missing."""
        self.path.mkdir(parents=True, exist_ok=True)
        lines, chain = [], [run.info.identity]
        for done in run.rounds:
            line, seal = round_line(done, run.costs, chain[-1])
            lines.append(line)
            chain.append(seal)
        write_atomic(self.rounds_file, "".join(lines))
        ended = datetime.now(UTC) if run.is_finished else None
        self.write_head(ResultFile.of(replace(run, checksums=chain[1:]), ended))

    def read_matrices(self, when: When = "last") -> dict[str, list[list[float]]]:
        """Return the last or the first analyses of the run's method; empty if it has none."""
        if not self.matrices.exists():
            return {}
        matrices: dict[str, Any] = _part(self.matrices, dict, when, "matrices")
        return matrices

    def write_matrices(self, round_: Round, first: Analyses | None) -> Analyses:
        """Write a round's analyses and the run's first ones; return the first ones."""
        now = {"round": round_.round, "matrices": round_.matrices}
        first = first or now
        write_json(self.matrices, sealed({"last": now, "first": first}))
        return first

    def first_analyses(self, until: int) -> Analyses | None:
        """Return the first analyses if their round is at most `until`; otherwise None."""
        if not self.matrices.exists():
            return None
        first: dict[str, Any] = _part(self.matrices, dict, "first")
        return first if _part(self.matrices, int, "first", "round") <= until else None

    def class_names(self) -> list[str]:
        """Return the names of the classes, in the order of their labels; empty if unknown."""
        if not self.partition.exists():
            return []
        self.check_partition()
        return [str(name) for name in _part(self.partition, list, "class_names")]

    def histograms(self) -> dict[int, NDArray[np.int64]]:
        """Return the images by client and class, int64 [N, C], by the first round of each phase."""
        import numpy as np

        self.check_partition()
        tree = read_checked(self.partition)
        try:
            phases = [tree, *tree.get("later", ())]
            shape = -1, len(tree["class_names"])
            return {
                int(phase.get("round", 0)): np.array(phase["histogram"], np.int64).reshape(shape)
                for phase in phases
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UserError(
                f"{self.partition} cannot be read: it has no histogram; restore it from a copy"
            ) from None

    def test_images(self) -> int | None:
        """Return the total number of the clients' test images; None if unknown."""
        if not self.partition.exists():
            return None
        self.check_partition()
        return sum(int(size) for size in _part(self.partition, list, "test_sizes"))

    def check_partition(self) -> None:
        """Raise `UserError` if partition.json is missing, damaged or of another run."""
        content = read_checked(self.partition).get("sha256")
        expected = self.read_head().partition_sha256 if self.has_result else None
        if None not in (content, expected) and content != expected:
            raise UserError(
                f"{self.partition} belongs to another run than {RESULT}; restore it from a copy"
            )

    def write_partition(self, manifest: Mapping[str, Any]) -> None:
        """Write the assignment of images to clients."""
        write_json(self.partition, sealed(manifest))

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


def find_runs(folders: Sequence[Path]) -> list[tuple[Path, Run]]:
    """Return all runs in and below the given folders, as sorted pairs of folder and run.

    Raises:
        UserError: if a given folder is missing or contains no run, or a result cannot be read.
    """
    return [(path, RunFolder(path).read()) for path in find_run_folders(folders)]


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
        has_list = (folder / LIST).is_file()
        # Ray Tune writes files of this name next to a params.json
        results = () if has_list else folder.rglob(RESULT)
        below = [
            result.parent for result in results if not (result.parent / "params.json").is_file()
        ]
        if has_list:
            below = _listed_runs(folder)
        if not below:
            raise UserError(f"there is no {RESULT} in or below {folder}; pass a run's folder")
        runs |= {path.resolve() for path in below}
    return sorted(runs)


def write_run_list(folder: Path, runs: Iterable[Path]) -> None:
    """Write the list of runs that a folder stands for, for example the runs of a table."""
    names = [os.path.relpath(run, folder) for run in dict.fromkeys(runs)]
    write_json(folder / LIST, sealed({"runs": names}))


def _part(path: Path, kind: type, *keys: str) -> Any:
    """Return a part of a JSON file; raise UserError if it is missing or of another type."""
    tree: Any = read_checked(path)
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(tree, kind):
        raise UserError(
            f"{path} cannot be read: it has no {'.'.join(keys)}; restore it from a copy"
        )
    return tree


def _listed_runs(folder: Path) -> list[Path]:
    names = [str(name) for name in _part(folder / LIST, list, "runs")]
    home, stores = folder.resolve(), stores_of(folder)
    runs = [folder / name for name in names]
    for run, name in zip(runs, names, strict=True):
        place = run.resolve()
        if os.path.isabs(name) or not (place.is_relative_to(home) or place.parent in stores):
            raise UserError(
                f"{folder / LIST} lists {shown(name)}, which is neither in the folder nor in the "
                "store of its results folder; set FEDRAY_RESULTS to the folder whose store it is"
            )
        if not (run / RESULT).is_file():
            raise UserError(
                f"{folder / LIST} lists a missing run, {run.resolve()}; copy it from the computer "
                "that has it"
            )
    return runs


def round_line(round_: Round, costs: Costs, before: str) -> tuple[str, str]:
    """Return a line of rounds.jsonl and its checksum, given the checksum of the line above.

    Raises:
        ValueError: if a number is not finite.
    """
    tree = {**_ROUND.dump_python(round_, mode="json"), "costs": asdict(costs)}
    body = json.dumps(tree, allow_nan=False)
    seal = checksum(before, body)
    return f"{body[:-1]}{_SEAL}{seal}{_END}\n", seal


_SEAL, _END = ', "checksum": "', '"}'
_SEAL_LENGTH = len(_SEAL) + 64 + len(_END)


def _parse_line(line: str, before: str) -> tuple[Round, Costs, str]:
    """Return round, costs and checksum of a line, given the checksum of the line above."""
    body, seal = line[:-_SEAL_LENGTH] + "}", line[-_SEAL_LENGTH:]
    expected = checksum(before, body)
    if seal != f"{_SEAL}{expected}{_END}":
        raise ValueError("it is damaged, or does not follow the line above in this run")
    tree = json.loads(body)  # as `round_line` wrote it
    costs = _COSTS.validate_python(tree.pop("costs"))
    return _ROUND.validate_python(tree), costs, expected


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return named(error)
