"""Test the verdicts of tables with frauds, honest tables, and tables whose rows are one method.

    python -m benchmarks.fooling frauds                60 frauds, 60 honest tables; ten minutes
    python -m benchmarks.fooling nulls --runs pool.json   200 null tables of real runs; half an hour

frauds: an author plants a fraud in a small table on digits. The fraud is detected if fedray refuses
the table, if its page has a note or a mark, or if `fedray verify` gets other numbers. Honest tables
that are extended, repeated or registered first should not be flagged.

nulls: the rows are FedAvg under eight names, which differ in the order of batches. Runs of 24 seeds
are made once and stored in a file; tables draw seeds and names from them. The protocols are those
of benchmarks.null_tables.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.null_tables import PROTOCOLS
from fedray.cli.main import main as command
from fedray.cli.study import request_of
from fedray.cli.study import table as table_command
from fedray.config import dump_yaml
from fedray.errors import UserError
from fedray.storage.json_files import read_checked, sealed
from fedray.storage.run_folder import RunFolder
from fedray.studies.flow import begin_or_resume, home_of
from fedray.studies.outcome import outcome
from fedray.studies.pages import write_table
from fedray.studies.registration import register
from fedray.studies.study import Study
from fedray.studies.tune import config_of, reports

EXPERIMENT = {
    "name": "small",
    "algorithm": "fedavg",
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "workers": 1,
    "model": {"group": "mlp", "feature_dim": 16},
    "data": {
        "clients": 3,
        "samples": 240,
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "validation_fraction": 0.2,
    },
}
TABLE = {
    "experiment": "small.yaml",
    "baselines": [],
    "rows": {
        "mine": {"algorithm": {"name": "fedprox", "mu": 0.1}},
        "base": {"algorithm": "fedavg"},
    },
    "claims": ["mine > base"],
    "metrics": ["local_accuracy", "local_accuracy_weighted"],
    "space": {"lr": {"grid": [0.02, 0.1]}},
    "tuning": {"configurations": 2},
    "report": {"seeds": [0, 1, 2]},
}
INNOCENT = ("Runs are of", "runs are those of", "that was tried", "seconds of a run")
"""Parts of harmless notes: origin of runs, choices at an edge of the grid, and wall time."""
PLUGIN = """\
from dataclasses import dataclass, replace

import torch.nn.functional as F

from fedray.plugin import FedAvg, HyperParameters, algorithms, fit


@algorithms.add
class Mine(FedAvg):
    \"\"\"FedAvg with something of its own.\"\"\"

    name = "mine"
{body}
"""
Tree = dict[str, Any]


# --- a small table, run in this process -----------------------------------------------------------


class Author:
    """An author with a separate folder, which holds `table.yaml` and a results folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = 0
        (folder / "small.yaml").write_text(dump_yaml(EXPERIMENT))

    def invoke(self, *words: str, register_first: bool = False, **changes: Any) -> Study:
        """Run the table with changed keys of its file; return the finished study."""
        self.write(**changes)
        study = self.study(*words)
        if register_first:
            register(study, home_of("table", "table"))
            study = self.study(*words)
        self.pages += 1
        study.home = study.home.with_name(str(self.pages))
        study.home.mkdir(parents=True)
        outcome(study)
        while (run := study.next()) is not None:
            try:
                done = list(reports(config_of(run, study.plan), study.plan.at))
                run.status, run.last_round = "finished", done[-1]["round"]
            except Exception as error:  # as a failed trial of Ray Tune
                run.reason = str(error)
            study.settle(run)
        study.write()
        write_table(study)
        return study

    def write(self, **changes: Any) -> None:
        """Write the table's file."""
        tree = {key: value for key, value in {**TABLE, **changes}.items() if value is not None}
        (self.folder / "table.yaml").write_text(dump_yaml(tree))

    def plugin(self, body: str) -> str:
        """Write a method `mine` and return the path of its file."""
        path = self.folder / "mine.py"
        path.write_text(PLUGIN.format(body=body))
        return str(path)

    def study(self, *words: str) -> Study:
        """Return the study that `fedray table table.yaml WORDS` begins."""
        context = table_command.make_context("table", ["table.yaml", *words])
        return begin_or_resume(request_of("table", **context.params))


def evidence(study: Study) -> list[str]:
    """Return the notes and failures on a table's page that cast doubt on it."""
    result = outcome(study)
    notes = [note for note in result.notes if not any(part in note for part in INNOCENT)]
    notes += [
        reason for cell in result.cells.values() for seed in cell.seeds if (reason := seed.reason)
    ]
    return notes + ["chosen on test images"] * (study.plan.select == "test")


def verified(folder: Path) -> list[str]:
    """Return the output of `fedray verify` on a table; empty if the table is verified."""
    output = StringIO()
    with redirect_stdout(output):
        code = command(["verify", str(folder), "--sample", "100"])
    return [] if code == 0 else output.getvalue().splitlines()


# --- frauds ---------------------------------------------------------------------------------------

Fraud = Callable[[Author], list[str]]
"""A function that commits a fraud and returns the evidence; a `UserError` means a refusal."""
ROWS = TABLE["rows"]


def edited(change: Callable[[Tree], None], *, seal: bool) -> Fraud:
    """Return a fraud that edits a table.json, with or without its checksum."""

    def fraud(author: Author) -> list[str]:
        home = author.invoke().home
        tree = read_checked(home / "table.json")
        change(tree)
        written = (
            sealed(tree) if seal else {**json.loads((home / "table.json").read_text()), **tree}
        )
        (home / "table.json").write_text(json.dumps(written))
        return verified(home)

    return fraud


def change_number(cell: int, seed: int, gain: float) -> Callable[[Tree], None]:
    """Return an edit that improves a number in all its places."""

    def change(tree: Tree) -> None:
        entry = tree["cells"][cell]["seeds"][seed]
        run = next(one for one in tree["runs"] if _is_run(one, entry))
        for numbers in (entry, run["numbers"]):
            numbers["values"]["local_accuracy"] += gain

    return change


def swap_seeds(cell: int, first: int, second: int) -> Callable[[Tree], None]:
    """Return an edit that reports the run of one seed for another seed."""

    def change(tree: Tree) -> None:
        a, b = (tree["cells"][cell]["seeds"][seed] for seed in (first, second))
        runs = [next(one for one in tree["runs"] if _is_run(one, entry)) for entry in (a, b)]
        for key in ("values", "round", "choice"):
            a[key] = b[key]
            runs[0]["numbers"][key] = runs[1]["numbers"][key]

    return change


def _is_run(run: Tree, entry: Tree) -> bool:
    """Return True if a published run is that of a cell's seed, because their seconds are equal."""
    return bool(run.get("numbers", {}).get("seconds") == entry.get("seconds"))


def change_claim(key: str, value: Any) -> Callable[[Tree], None]:
    """Return an edit of the first claim's test."""

    def change(tree: Tree) -> None:
        tree["claims"][0][key] = value

    return change


def other_row(**keys: Any) -> Fraud:
    """Return a fraud that gives the row `mine` further keys."""
    rows = {**ROWS, "mine": {**ROWS["mine"], **keys}}
    return lambda author: evidence(author.invoke(rows=rows))


def own_method(body: str, **setting: Any) -> Fraud:
    """Return a fraud whose plug-in does more than it declares."""
    rows = {**ROWS, "mine": {"algorithm": "mine"}}

    def fraud(author: Author) -> list[str]:
        return evidence(author.invoke("--plugin", author.plugin(body), rows=rows, **setting))

    return fraud


def twice(*words: str, before: Tree | None = None, **after: Any) -> Fraud:
    """Return a fraud that looks at the verdicts of one table, then publishes another one."""

    def fraud(author: Author) -> list[str]:
        author.invoke(**(before or {}))
        return evidence(author.invoke(*words, **after))

    return fraud


def without_page(keep: str, **after: Any) -> Fraud:
    """Return a fraud that looks at three seeds, deletes all results but `keep`, and adds seeds."""

    def fraud(author: Author) -> list[str]:
        author.invoke()
        for path in (author.folder / "results").iterdir():
            if path.name != keep:
                shutil.rmtree(path)
        return evidence(author.invoke(**after))

    return fraud


REPEAT = """
    def train(self, local):
        return fit(
            local, lambda batch: self.loss(local.model(batch.inputs), batch, local), repeat={}
        )
"""
LOOP = """
    def client_update(self, client, state, down):
        local = self.begin(client, state, down)
        for _ in range({}):
            trained = self.train(local)
        return self.finish(local, trained)
"""
TEST_IMAGES = """
    def loss(self, output, batch, local):
        images, labels = local.client.{}.tensors(local.client.device)
        return super().loss(output, batch, local) + F.cross_entropy(
            local.model(images).logits, labels
        )
"""
EDITS = {
    "a number": change_number(0, 0, 0.01),
    "a small number": change_number(0, 1, 0.001),
    "the other row's number": change_number(1, 2, -0.05),
    "p": change_claim("p_holm", 0.001),
    "the verdict": change_claim("verdict", "holds"),
    "differences": change_claim("differences", {"0": 5.0, "1": 5.1, "2": 5.2}),
    "a note": lambda tree: tree.update(notes=[], looks={"looks": [], "dropped": []}),
    "seeds": lambda tree: tree["plan"]["report"].update(seeds=[0, 1]),
}
MORE = [0.02, 0.1, 0.05, 0.2]


def frauds() -> dict[str, list[Fraud]]:
    """Return 60 frauds by kind."""
    numbers = [edit for name, edit in EDITS.items() if name not in ("a note", "seeds")]
    return {
        "an edited table.json": [edited(edit, seal=False) for edit in EDITS.values()],
        "edited, with a new checksum": [edited(edit, seal=True) for edit in numbers],
        "a swapped seed": [
            edited(swap_seeds(cell, *seeds), seal=True)
            for cell, seeds in product((0, 1), ((0, 1), (1, 2), (2, 0)))
        ],
        "more tuning": [
            other_row(space={"lr": {"grid": MORE}}),
            other_row(space={"lr": {"grid": MORE[:3]}}),
            other_row(space={"algorithm.mu": {"grid": [0.01, 1]}}),
            lambda author: evidence(
                author.invoke(
                    rows={**ROWS, "base": {"algorithm": "fedavg", "space": {"lr": None}}},
                )
            ),
            lambda author: evidence(
                author.invoke(rows={**ROWS, "base": {"algorithm": "fedavg", "tuned_as": "mine"}})
            ),
            lambda author: evidence(
                author.invoke(
                    tuning={"configurations": 4},
                    rows={**ROWS, "mine": {**ROWS["mine"], "space": {"lr": {"grid": MORE}}}},
                )
            ),
        ],
        "more steps": [
            own_method(REPEAT.format(2)),
            own_method(REPEAT.format(5)),
            own_method(LOOP.format(2)),
            own_method(LOOP.format(3)),
            other_row(set={"local_epochs": 2}),
            other_row(set={"batch_size": 4}),
            other_row(set={"rounds": 4}),
        ],
        "another partition": [
            other_row(set={"data.partition.alpha": 10.0}),
            other_row(set={"data.partition": {"name": "iid"}}),
            other_row(set={"data.samples": 480}),
            other_row(set={"data.clients": 2}),
            other_row(set={"data.validation_fraction": 0.4}),
            other_row(set={"data.test_fraction": 0.1}),
        ],
        "chosen on the test": [
            lambda author: evidence(author.invoke(select="test")),
            lambda author: evidence(author.invoke("select=test")),
            lambda author: evidence(author.invoke(set={"report.select": "test"})),
            other_row(set={"report.select": "test"}),
            other_row(set={"early_stopping": {"patience": 1, "metric": "local_accuracy"}}),
        ],
        "trained on the test": [
            own_method(TEST_IMAGES.format("test")),
            own_method(TEST_IMAGES.format("held_out")),
            own_method(TEST_IMAGES.format("validation")),
            own_method(TEST_IMAGES.format("setting.test")),
            own_method(TEST_IMAGES.format("skeleton.test")),
        ],
        "a dropped claim": [
            twice(before={"claims": two}, claims=one)
            for two in (
                ["mine > base", {"claim": "mine > base", "metric": "local_accuracy_weighted"}],
                ["mine > base", "mine: local_accuracy > local_accuracy_weighted"],
            )
            for one in ([two[0]], [two[1]])
        ],
        "added seeds": [
            twice(report={"seeds": [0, 1, 2, 3]}),
            twice(report={"seeds": [0, 2]}),
            twice("report.seeds=[0,1,2,5]"),
            without_page("store", report={"seeds": [0, 1, 2, 3]}),
        ],
        "a changed grid": [
            twice(space={"lr": {"grid": [0.02, 0.3]}}),
            twice("rounds=1"),
            twice("data.partition.alpha=10"),
        ],
    }


# --- honest tables --------------------------------------------------------------------------------


def honest() -> Iterator[Callable[[Author], list[str]]]:
    """Yield 60 honest tables: ten settings of methods and data, each in six ways."""
    pairs = [
        ({"name": "fedprox", "mu": 0.1}, "fedavg"),
        ({"name": "fedprox", "mu": 1.0}, "fedavg"),
        ("fednova", "fedavg"),
        ("fedlc", "fedavg"),
        ("fednova", {"name": "fedprox", "mu": 0.1}),
    ]
    settings: list[Tree] = [{}, {"set": {"data.partition.alpha": 0.3}}]
    for (mine, base), setting in product(pairs, settings):
        rows = {"mine": {"algorithm": mine}, "base": {"algorithm": base}}
        table = {"rows": rows, **setting}
        third = {**table, "rows": {**rows, "third": {"algorithm": {"name": "fedprox", "mu": 0.5}}}}

        def once(author: Author, table: Tree = table) -> list[str]:
            return evidence(author.invoke(**table))

        def again(author: Author, table: Tree = table) -> list[str]:
            author.invoke(**table)
            return evidence(author.invoke(**table))

        def first_registered(author: Author, table: Tree = table) -> list[str]:
            author.invoke("rounds=1", **table)
            return evidence(author.invoke(register_first=True, **table))

        def extended(author: Author, table: Tree = table, third: Tree = third) -> list[str]:
            home = author.invoke(**table).home
            return evidence(author.invoke("--from", str(home), **third))

        def run_again(author: Author, table: Tree = table) -> list[str]:
            return verified(author.invoke(**table).home)

        def more_claims(author: Author, table: Tree = table) -> list[str]:
            author.invoke(**table)
            weighted = {"claim": "mine > base", "metric": "local_accuracy_weighted"}
            return evidence(author.invoke(**table, claims=["mine > base", weighted]))

        yield from (once, again, first_registered, extended, run_again, more_claims)


# --- running --------------------------------------------------------------------------------------


@contextmanager
def an_author() -> Iterator[Author]:
    """Yield an author in a new folder, which is the working directory within the block."""
    with tempfile.TemporaryDirectory(prefix="fedray-fooling-") as name:
        folder, before = Path(name), Path.cwd()
        os.chdir(folder)
        os.environ["FEDRAY_RESULTS"] = str(folder / "results")
        try:
            yield Author(folder)
        finally:
            os.chdir(before)


def try_all() -> int:
    """Commit all frauds and make all honest tables; print how many are detected or flagged."""
    detected: Counter[str] = Counter()
    kinds = frauds()
    for kind, several in kinds.items():
        for number, fraud in enumerate(several):
            with an_author() as author:
                try:
                    against = fraud(author)
                except UserError as error:
                    against = [f"refused: {error}"]
            detected[kind] += bool(against)
            print(f"  {kind} {number + 1}: {'; '.join(against)[:140] or 'NOT FOUND'}", flush=True)
    flagged = 0
    for number, table in enumerate(honest()):
        with an_author() as author:
            against = table(author)
        flagged += bool(against)
        if against:
            print(f"  honest table {number + 1} is flagged: {'; '.join(against)[:140]}")
    print("\n| fraud | found |\n|:--|--:|")
    for kind, several in kinds.items():
        print(f"| {kind} | {detected[kind]} of {len(several)} |")
    total = sum(map(len, kinds.values()))
    print(f"| all frauds | {detected.total()} of {total} |")
    print(f"| honest tables that are flagged | {flagged} of {number + 1} |")
    return 0


# --- null tables of real runs ---------------------------------------------------------------------

NAMES, RATES, POOL = 8, (0.4, 0.6, 0.8), 24
"""The number of FedAvg's names, its learning rates, and the number of seeds."""
ORDER = """
    def client_update(self, client, state, down):
        setting = replace(client.setting, seed=client.setting.seed * 100 + {order})
        return super().client_update(replace(client, setting=setting), state, down)
"""
SIZES = ((1, 5), (1, 10), (5, 5), (5, 10), (7, 10))
"""Pairs of the numbers of claims and seeds of a table."""


def pool(path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return validation and test accuracies [names, rates, seeds, 2]; make the missing runs."""
    stored: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}
    for name, rate, seed in product(range(NAMES), RATES, range(POOL)):
        key = f"{name} {rate} {seed}"
        if key not in stored:
            stored[key] = list(_accuracies(name, rate, seed))
            path.write_text(json.dumps(stored))
    values = [stored[f"{n} {r} {s}"] for n, r, s in product(range(NAMES), RATES, range(POOL))]
    return np.array(values).reshape(NAMES, len(RATES), POOL, 2)


def _accuracies(name: int, rate: float, seed: int) -> tuple[float, float]:
    """Make a run; return the validation and the test accuracy of its best round."""
    with an_author() as author:
        plugin = author.plugin(ORDER.format(order=name))
        words = [
            f"lr={rate}",
            f"seed={seed}",
            "algorithm=mine",
            "rounds=8",
            "local_epochs=3",
            "data.samples=600",
        ]
        flags = ["--plugin", plugin, "--executor", "serial", "--no-track", "--out", "run"]
        with redirect_stdout(StringIO()):
            code = command(["run", "small.yaml", *words, *flags])
        assert code == 0
        run = RunFolder(Path("run")).read()
    best = max(run.rounds[1:], key=lambda done: done.metrics["validation/local_accuracy"])
    return best.metrics["validation/local_accuracy"], best.metrics["local_accuracy"]


def null_tables(path: Path, tables: int) -> None:
    """Print how many tables of real runs have a false verdict, by protocol."""
    values, rng = pool(path), np.random.default_rng(0)
    print(f"\nAny false verdict in {tables} tables of real runs, %\n")
    print(f"| claims x seeds | {' | '.join(f'{c} x {n}' for c, n in SIZES)} |")
    print(f"|:--|{'--:|' * len(SIZES)}")
    for title, (once, has_verdict) in PROTOCOLS.items():
        rates = []
        for claims, seeds in SIZES:
            differences = np.array(
                [_differences(rng, values, claims, seeds, once) for _ in range(tables)]
            )
            rates.append(f"{100 * has_verdict(differences).mean():.1f}")
        print(f"| {title} | {' | '.join(rates)} |")


def _differences(
    rng: np.random.Generator,
    values: np.ndarray[Any, np.dtype[np.float64]],
    claims: int,
    seeds: int,
    once: bool,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw a table; return its paired differences [claims, seeds]."""
    names = rng.choice(NAMES, claims + 1, replace=False)
    drawn = rng.choice(POOL, seeds + 1, replace=False)
    rows = values[names][:, :, drawn]
    choice = rows[..., 0].argmax(axis=1, keepdims=True)
    if once:  # by the last seed, which is not reported
        choice = np.broadcast_to(choice[..., -1:], choice.shape)
    reported = np.take_along_axis(rows[..., 1], choice, 1)[:, 0, :seeds]
    return reported[0] - reported[1:]


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run the frauds or the null tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fooling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["frauds", "nulls"])
    parser.add_argument(
        "--runs", type=Path, default=Path("null_runs.json"), help="for nulls: file with the runs"
    )
    parser.add_argument("--tables", type=int, default=200, help="for nulls: number of tables")
    args = parser.parse_args(argv)
    if args.what == "frauds":
        return try_all()
    null_tables(args.runs.absolute(), args.tables)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
