"""A run's folder: the only place that reads and writes result.json.

config.yaml      the complete experiment
result.json      what determined the numbers, every round, best and final
rounds.jsonl     one line per round while the run is going: a round costs the same at any length
partition.json   who owns which image, with its hash; partition.png shows it
matrices.json    the last and the first analyses of a method, [C, C] each, and their rounds
releases.jsonl   what clients have released under differential privacy, where it was asked for
plugins/         the texts of the user's own modules, as they were run
error.txt        tracebacks of what failed
owner.json       whose the copy at a URI is, where FEDRAY_RESULTS is a URI
checkpoints/     the latest federated checkpoint
models/          the models of the best round and of the last

result.json, rounds.jsonl, partition.json and matrices.json carry their checksums: one that was
damaged, edited or cut is refused, never read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from fedray.errors import UserError
from fedray.files import replace_whole, tables_runs, write_atomic, write_json
from fedray.masking import mask
from fedray.plugins import Plugin, changed_file
from fedray.records.release import ReleaseLog
from fedray.records.round import Round, rounds_checksum
from fedray.records.run import Costs, Run
from fedray.records.sealed import (
    CHECKSUM,
    canonical,
    checksum,
    parse_json,
    read_checked,
    read_json,
    sealed,
    unsealed,
)

RESULT = "result.json"
TABLE = "table.json"
"""In the folder of a table: its cells, with the runs that they report."""
ARTIFACTS = ("config.yaml", RESULT, "partition.json", "partition.png", "matrices.json")
"""The files of a run's folder that a tracker keeps with it."""
_REQUIRED = ("config", "rounds", "seed", "identity", "algorithm", "versions")
When = Literal["first", "last"]
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError)
"""What is raised by reading what was not written so."""


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
        self.releases = ReleaseLog(path / "releases.jsonl")
        self.plugins = path / "plugins"
        self.error = path / "error.txt"
        self.lock = path / ".lock"

    @property
    def has_result(self) -> bool:
        """Whether a run has got so far that it wrote result.json, with or without rounds."""
        return self.result.is_file()

    @property
    def has_rounds(self) -> bool:
        """Whether rounds.jsonl holds a whole round: not where a run was killed before its first.

        Raises:
            UserError: when the file cannot be read.
        """
        return bool(self._appended())

    @property
    def artifacts(self) -> list[Path]:
        """The files that a tracker keeps, whether they are there or not."""
        return [self.path / name for name in ARTIFACTS]

    @property
    def is_taken(self) -> bool:
        """Whether a run was ever begun here."""
        traces = (self.config, self.result, self.rounds_file, self.path / "checkpoints")
        return any(trace.exists() for trace in traces)

    @property
    def is_whole(self) -> bool:
        """Whether all rounds of the run are here, written to their end.

        Raises:
            UserError: as `read`.
        """
        return self.has_result and not self.rounds_file.exists() and self.read().is_finished

    def read(self) -> Run:
        """The run so far.

        Raises:
            UserError: when there is none, or a file is damaged.
        """
        lines = self._appended()  # first: once it is gone, result.json has all rounds
        tree = read_json(self.result)
        missing = [key for key in _REQUIRED if not isinstance(tree, dict) or key not in tree]
        if missing:
            raise UserError(f"{self.result} is not a run's result: it has no '{missing[0]}'")
        try:
            run = Run.from_json(tree)
        except _DAMAGE as error:
            raise UserError(f"{self.result} cannot be read: {_reason(error)}") from None
        return run if lines is None else self._with(lines, run, sealed=CHECKSUM in tree)

    def rounds(self) -> Sequence[Round]:
        """The rounds that were written; none where there is no result.

        Raises:
            UserError: as `read`.
        """
        return self.read().rounds if self.has_result else ()

    def read_matrices(self, when: When = "last") -> dict[str, list[list[float]]]:
        """The last or the first analyses of the run's method; empty where it has none.

        A run of an earlier version has no first ones.

        Raises:
            UserError: when the file is damaged.
        """
        if not self.matrices.exists():
            return {}
        tree = read_json(self.matrices)
        try:
            whole = unsealed(tree) if _is_sealed(tree) else {"matrices": tree}
            found = whole.get("first", {"matrices": {}}) if when == "first" else whole
            if when == "last" and not found["matrices"]:
                raise ValueError("it holds no matrices")
            return {name: _matrix(rows) for name, rows in found["matrices"].items()}
        except _DAMAGE as error:
            raise UserError(f"{self.matrices} cannot be read: {_reason(error)}") from None

    def write_matrices(self, round_: Round, first: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Write a round's analyses, beside the first ones.

        Args:
            round_: with matrices.
            first: what this returned for the run's first round with analyses; None for that one.

        Returns:
            The first analyses.
        """
        now = {"round": round_.round, "matrices": dict(round_.matrices)}
        first = first or now
        write_json(self.matrices, sealed({**now, "first": first}))
        return first

    def first_analyses(self, until: int) -> Mapping[str, Any] | None:
        """What `write_matrices` took for the first analyses, if they are of rounds up to `until`.

        Raises:
            UserError: when the file is damaged.
        """
        if not (self.read_matrices() and self.read_matrices("first")):
            return None
        first: Mapping[str, Any] = unsealed(read_json(self.matrices))["first"]
        return first if first.get("round", until) <= until else None

    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their labels; empty where no file says so.

        Raises:
            UserError: when the file is damaged.
        """
        if not self.partition.exists():
            return []
        tree = read_json(self.partition)
        try:
            names = (unsealed(tree) if _is_sealed(tree) else tree)["class_names"]
            if not all(isinstance(name, str) for name in names):
                raise TypeError("a class's name is no text")
            return list(names)
        except _DAMAGE as error:
            raise UserError(f"{self.partition} cannot be read: {_reason(error)}") from None

    def write_partition(self, manifest: Mapping[str, Any]) -> None:
        """Write who owns which image; a file that says so already is left as it is."""
        tree = sealed(manifest)
        if self.partition.exists():
            with suppress(UserError):
                if read_json(self.partition) == tree:
                    return
        write_json(self.partition, tree)

    def write_plugins(self, plugins: Iterable[Plugin]) -> None:
        """Write the texts of the plug-ins that travel."""
        for plugin in plugins:
            for file, text in plugin.files.items():
                copy = self.plugins / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(copy, text)

    def check_plugins(self, plugins: Iterable[Plugin]) -> None:
        """Refuse to go on with a plug-in whose file says something else by now.

        Raises:
            UserError: with what goes on with the text as it was.
        """
        for plugin in plugins:
            changed = changed_file(plugin)
            if changed is not None:
                copy = self.plugins / Path(changed).relative_to(plugin.folder)
                raise UserError(
                    f"{changed} is not what {self.path} began with; go on with what it was by "
                    f"--plugin {copy}, or begin anew with another --out"
                )

    def append_error(self, traceback: str) -> Path:
        """Keep one more traceback in error.txt, without secrets; the folder is made if missing."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.error.open("a", encoding="utf-8") as file:
            file.write(mask(traceback) + "\n")
        return self.error

    def keep_error(self, traceback: str) -> str:
        """As `append_error`; the file's name, or "" where it cannot be written."""
        try:
            return str(self.append_error(traceback))
        except OSError:
            return ""

    def put_together(self) -> None:
        """Bring result.json up to date with rounds.jsonl; where there is none, it is so already.

        For runs whose process was killed: a `RunWriter` does this when it is closed.

        Raises:
            UserError: as `read`.
        """
        if not (self.rounds_file.is_file() and self.has_result):
            return
        run = self.read()
        self.write_result(run.head(), (done.to_json() for done in run.rounds))
        if run.is_finished:
            self.rounds_file.unlink(missing_ok=True)

    def write_result(self, head: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> None:
        """Replace result.json, one round a line; no more than one round is held in memory."""
        replace_whole(self.result, lambda path: _write_result(path, head, rounds))

    def _appended(self) -> list[bytes] | None:
        """The lines of rounds.jsonl; None without the file."""
        try:
            content = self.rounds_file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self.rounds_file} cannot be read: {error}") from None
        return content.split(b"\n")[:-1]  # a torn last line was never finished

    def _with(self, lines: Sequence[bytes], run: Run, *, sealed: bool) -> Run:
        """The rounds of rounds.jsonl instead, while the run is going."""
        rounds, costs, before = [], run.costs, run.info.identity if sealed else ""
        for number, line in enumerate(lines, 1):
            try:
                done, costs, before = _parse_line(line, before)
            except _DAMAGE as error:
                raise UserError(
                    f"{self.rounds_file}, line {number}, cannot be read: {_reason(error)}; "
                    "restore the file from a copy, or start anew with another --out"
                ) from None
            rounds.append(done)
        return replace(run, rounds=rounds, costs=costs)


def find_runs(folders: Sequence[Path]) -> list[tuple[Path, Run]]:
    """Runs at or below the given folders: each folder and its run, sorted, each once.

    Ray Tune also calls a file result.json, with one line per report; it is passed over. A folder
    that a table was written to stands for the runs that the table reports.

    Raises:
        UserError: when a given folder is missing or holds no run, or a result cannot be read.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass a run's or sweep's folder")
        is_table = (folder / TABLE).is_file()
        below = list(_results_of_table(folder) if is_table else _results_below(folder))
        if not below:
            raise UserError(f"there is no {RESULT} in or below {folder}; pass a run's folder")
        for path in below:
            found[path.parent.resolve()] = RunFolder(path.parent).read()
    return sorted(found.items())


def _results_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob(RESULT) if path.is_file() and not _is_tunes(path))


def _results_of_table(folder: Path) -> Iterator[Path]:
    """The results that a table reports: its seeds, not what was tried to tune it.

    Raises:
        UserError: when the table is damaged, or a result is not below this computer's results.
    """
    path = folder / TABLE
    try:
        cells = read_checked(path)["cells"]
        keys = [seed["run"] for cell in cells for seed in cell["seeds"] if not seed["reason"]]
    except UserError:
        raise
    except _DAMAGE as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for key in dict.fromkeys(keys):
        result = tables_runs() / str(key) / RESULT
        if not result.is_file():
            raise UserError(
                f"{path} reports a run that is not there, {result.parent}; set FEDRAY_RESULTS to "
                "the folder in which the table was made, without --from"
            )
        yield result


def _is_tunes(path: Path) -> bool:
    """Whether this is the log of Ray Tune: JSON lines, the first of them about a trial."""
    with path.open("rb") as file:
        first = file.readline()
    if not first.strip():
        return True
    try:
        line = parse_json(first)
    except ValueError:
        return False
    return isinstance(line, dict) and "rounds" not in line and "trial_id" in line


def round_line(round_: Round, costs: Costs, before: str) -> tuple[str, str]:
    """A line of rounds.jsonl, and the checksum of all rounds up to it.

    Args:
        round_: what it holds.
        costs: of the run so far.
        before: the checksum of the rounds before.

    Raises:
        ValueError: when a number is not finite.
    """
    chain = rounds_checksum([round_], before)
    tree = sealed({**round_.to_json(), "costs": asdict(costs), "rounds_checksum": chain})
    return json.dumps(tree, allow_nan=False) + "\n", chain


def _parse_line(line: bytes, before: str) -> tuple[Round, Costs, str]:
    """What `round_line` made, after the rounds of the checksum `before`.

    A run of an earlier version left lines without checksums; "" stands for that.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: when it is anything else.
    """
    tree = parse_json(line)
    if not before:
        return Round.from_json(tree), Costs.from_json(tree["costs"]), ""
    tree = unsealed(tree)
    chain = tree.pop("rounds_checksum")
    costs = Costs.from_json(tree.pop("costs"))
    if checksum(before, canonical(tree)) != chain:
        raise ValueError("it is not this run's round that comes after the line above")
    return Round.from_json(tree), costs, chain


def _write_result(path: Path, head: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head, indent=1, allow_nan=False).removesuffix("\n}"))
        file.write(',\n "rounds": [')
        for number, record in enumerate(rounds):
            file.write((",\n  " if number else "\n  ") + json.dumps(record, allow_nan=False))
        file.write("\n ]\n}\n")
        file.flush()
        os.fsync(file.fileno())


def _is_sealed(tree: Any) -> bool:
    return isinstance(tree, dict) and CHECKSUM in tree


def _matrix(rows: Any) -> list[list[float]]:
    """A matrix [C, C] as nested lists.

    Raises:
        TypeError: when it is anything else.
    """
    square = isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == len(rows) for row in rows
    )
    if not square or not all(isinstance(value, int | float) for row in rows for value in row):
        raise TypeError("expected square matrices of numbers")
    return list(rows)


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
