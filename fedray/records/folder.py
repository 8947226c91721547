"""A run's folder: the only place that reads and writes its files.

config.yaml      the complete experiment
result.json      what determined the numbers, the environment, best and final, costs and times
rounds.jsonl     one line per round, appended after the round
partition.json   who owns which image, with its hash; partition.png shows it
matrices.json    the last and the first analyses of a method, [C, C] each, and their rounds
releases.jsonl   what clients released under differential privacy, if the experiment asks for it
plugins/         the texts of the user's own modules, as they were run
error.txt        tracebacks of what failed
owner.json       the run that a copy at a URI belongs to, if FEDRAY_RESULTS is a URI
checkpoints/     the latest federated checkpoint
models/          the models of the best round and of the last

Each JSON file, and each line of rounds.jsonl, carries a checksum; a damaged or edited file is
refused with one sentence. A line's checksum covers the lines above it and the run's identity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedray.errors import UserError, named
from fedray.files import write_atomic, write_json
from fedray.masking import mask
from fedray.plugins import Plugin, changed_file
from fedray.records.checked_json import check, checksum, parse_json, read_checked, read_json, sealed
from fedray.records.metric import RECORD
from fedray.records.release import ReleaseLog
from fedray.records.run import Costs, Round, Run, RunInfo, Summary

SCHEMA = 5
"""Of result.json; 1 to 4 are those of the first and second edition, which held the rounds."""
RESULT = "result.json"
ROUNDS = "rounds.jsonl"
LIST = "runs.json"
"""In the folder of a table: the folders of the runs that it reports."""
ARTIFACTS = ("config.yaml", RESULT, ROUNDS, "partition.json", "partition.png", "matrices.json")
"""The files of a run's folder that a tracker keeps."""
When = Literal["first", "last"]
Analyses: TypeAlias = Mapping[str, Any]
"""A round's analyses: its number `round`, and `matrices` [C, C] as nested lists by name."""


@dataclass(frozen=True, kw_only=True, config=RECORD)
class ResultFile(RunInfo):
    """The content of result.json.

    Attributes:
        best: the best round so far; None if nothing may choose.
        final: the last evaluated round.
        costs: time and memory so far.
        started: when the run began.
        ended: when its last round was over; None while a round is left to do.
        done: the last round that is in rounds.jsonl for sure; -1 for none.
        rounds_checksum: the checksum of that round's line, or the run's identity.
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
        """Return what determined the numbers."""
        return RunInfo(**{each.name: getattr(self, each.name) for each in fields(RunInfo)})


_HEAD, _ROUND, _COSTS = TypeAdapter(ResultFile), TypeAdapter(Round), TypeAdapter(Costs)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.result = path / RESULT
        self.rounds_file = path / ROUNDS
        self.partition = path / "partition.json"
        self.partition_plot = path / "partition.png"
        self.matrices = path / "matrices.json"
        self.releases = ReleaseLog(path / "releases.jsonl")
        self.plugins = path / "plugins"
        self.error = path / "error.txt"
        self.lock = path / ".lock"

    @property
    def has_result(self) -> bool:
        """Return True if a run got so far that it wrote result.json, with or without rounds."""
        return self.result.is_file()

    @property
    def has_rounds(self) -> bool:
        """Return True if rounds.jsonl holds a whole round."""
        return bool(self._lines())

    @property
    def is_taken(self) -> bool:
        """Return True if a run was ever begun here."""
        traces = (self.config, self.result, self.rounds_file, self.path / "checkpoints")
        return any(trace.exists() for trace in traces)

    @property
    def is_finished(self) -> bool:
        """Return True if a run ended here and closed its files."""
        return self.has_result and self.read_head().ended is not None

    def read_head(self) -> ResultFile:
        """Return the content of result.json, which is that of the run's last start or stop."""
        tree = read_json(self.result)
        if not isinstance(tree, dict) or not {"config", "identity"} <= tree.keys():
            raise UserError(f"{self.result} is not a run's result")
        if "rounds" in tree:
            raise UserError(
                f"{self.result} was written by the second edition of fedray; convert it once with "
                f"fedray convert {self.path}"
            )
        tree = check(tree, self.result)
        schema = tree.pop("schema", None)
        if schema != SCHEMA:
            raise UserError(
                f"{self.result} has schema {schema}, and this version reads {SCHEMA}; read it with "
                "the version of fedray that wrote it"
            )
        try:
            return _HEAD.validate_python(tree)
        except ValidationError as error:
            raise UserError(f"{self.result} cannot be read: {_reason(error)}") from None

    def read(self) -> Run:
        """Return the run so far.

        Raises:
            UserError: if there is none, or a file is damaged.
        """
        head = self.read_head()
        run = self._read_rounds(head)
        if head.done < 0 or head.rounds_checksum in run.checksums:
            return run
        if self.read_head() != head:  # the run was just resumed, which cut its rounds
            return self.read()
        raise UserError(
            f"{self.rounds_file} lacks round {head.done}, which {RESULT} says was done; restore "
            "the file from a copy, or start anew with another --out"
        )

    def rounds(self) -> Sequence[Round]:
        """Return the rounds that were written, as `read` does; none without a result."""
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
        if checksums[-1] == head.rounds_checksum:  # no round since result.json was written
            costs = head.costs
        return Run(head.info, rounds, costs, head.started, checksums[1:])

    def _lines(self) -> list[bytes]:
        """Return the whole lines of rounds.jsonl; a torn last one belongs to a killed process."""
        try:
            return self.rounds_file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.rounds_file} cannot be read: {error}") from None

    def cut_rounds(self, count: int) -> None:
        """Cut rounds.jsonl after its first `count` lines; make it if it is missing."""
        size = sum(len(line) + 1 for line in self._lines()[:count])
        with self.rounds_file.open("ab") as file:
            file.truncate(size)

    def write_head(self, head: ResultFile) -> None:
        """Replace result.json."""
        tree = _HEAD.dump_python(head, mode="json")
        write_json(self.result, sealed({"schema": SCHEMA, **tree}))

    def write(self, run: Run) -> None:
        """Write result.json and rounds.jsonl of a run whose rounds are known; make the folder."""
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
        return read_checked(self.matrices)[when]["matrices"] if self.matrices.exists() else {}

    def write_matrices(self, round_: Round, first: Analyses | None) -> Analyses:
        """Write a round's analyses and the run's first ones; return the first ones."""
        now = {"round": round_.round, "matrices": round_.matrices}
        first = first or now
        write_json(self.matrices, sealed({"last": now, "first": first}))
        return first

    def first_analyses(self, until: int) -> Analyses | None:
        """Return the first analyses, if they are of a round up to `until`."""
        first = read_checked(self.matrices)["first"] if self.matrices.exists() else None
        return first if first and first["round"] <= until else None

    def class_names(self) -> list[str]:
        """Return the names of the classes, in the order of their labels; empty if not known."""
        return read_checked(self.partition)["class_names"] if self.partition.exists() else []

    def test_images(self) -> int | None:
        """Return how many test images the clients have in all; None if that is not known."""
        if not self.partition.exists():
            return None
        return sum(map(int, read_checked(self.partition)["test_sizes"]))

    def write_partition(self, manifest: Mapping[str, Any]) -> None:
        """Write who owns which image."""
        write_json(self.partition, sealed(manifest))

    def write_plugins(self, plugins: Iterable[Plugin]) -> None:
        """Write the texts of the plug-ins that travel."""
        for plugin in plugins:
            for file, text in plugin.files.items():
                copy = self.plugins / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(copy, text)

    def check_plugins(self, plugins: Iterable[Plugin]) -> None:
        """Refuse to resume with a plug-in whose file has changed since."""
        for plugin in plugins:
            changed = changed_file(plugin)
            if changed is not None:
                copy = self.plugins / Path(changed).relative_to(plugin.folder)
                raise UserError(
                    f"{changed} is not what {self.path} began with; go on with what it was by "
                    f"--plugin {copy}, or begin anew with another --out"
                )

    def keep_error(self, traceback: str) -> str:
        """Append a traceback without secrets to error.txt; make the folder if missing.

        Return the file's path, or "" if it was not written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self.error.open("a", encoding="utf-8") as file:
                file.write(mask(traceback) + "\n")
        except OSError:
            return ""
        return str(self.error)


def find_runs(folders: Sequence[Path]) -> list[tuple[Path, Run]]:
    """Return the runs at or below the given folders: each folder and its run, sorted, each once.

    A folder with a runs.json, such as a table's, represents the runs that this file lists.

    Raises:
        UserError: if a given folder is missing or holds no run, or a result cannot be read.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass a run's or sweep's folder")
        listed = (folder / LIST).is_file()
        results = () if listed else folder.rglob(RESULT)  # Ray Tune's lie beside a params.json
        below = [each.parent for each in results if not (each.parent / "params.json").is_file()]
        if listed:
            below = _listed_runs(folder)
        if not below:
            raise UserError(f"there is no {RESULT} in or below {folder}; pass a run's folder")
        found |= {path.resolve(): RunFolder(path).read() for path in below}
    return sorted(found.items())


def write_run_list(folder: Path, runs: Iterable[Path]) -> None:
    """Write the list of runs that a folder represents, for example those that a table reports."""
    names = [os.path.relpath(run, folder) for run in dict.fromkeys(runs)]
    write_json(folder / LIST, sealed({"runs": names}))


def _listed_runs(folder: Path) -> list[Path]:
    runs = [folder / name for name in read_checked(folder / LIST)["runs"]]
    for run in runs:
        if not (run / RESULT).is_file():
            raise UserError(
                f"{folder / LIST} lists a run that is not there, {run.resolve()}; copy it there "
                "from the computer that has it"
            )
    return runs


def round_line(round_: Round, costs: Costs, before: str) -> tuple[str, str]:
    """Return a line of rounds.jsonl and its checksum, given that of the line above.

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
    """Return the round, the costs and the checksum of a line, given that of the line above."""
    body, seal = line[:-_SEAL_LENGTH] + "}", line[-_SEAL_LENGTH:]
    tree = parse_json(body)
    found = checksum(before, body)
    if seal != f"{_SEAL}{found}{_END}":
        raise ValueError("it is damaged, or not this run's round that comes after the line above")
    costs = _COSTS.validate_python(tree.pop("costs"))
    return _ROUND.validate_python(tree), costs, found


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return named(error)
