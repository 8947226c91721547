"""Tables whose runs only pretend to train: what they would have measured is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedray.records import Costs, Environment, Metric, Round, Run, RunFolder, RunInfo, Traffic
from fedray.sweep.ledger import DIVERGED
from fedray.tables.agenda import Wanted
from fedray.tables.book import Book, RunTrial, wanted_of

Curve = Callable[[Wanted], Sequence[tuple[float, float]] | str | None]
"""Of a run, its accuracy on validation and test images round by round; why it failed, or None where
its loss was no number."""


def result_of(wanted: Wanted, curve: Sequence[tuple[float, float]], partition: str = "p") -> Run:
    """The result of a run with these accuracies, round 0 first."""
    experiment = wanted.experiment
    info = RunInfo(
        name=experiment.name,
        scale=experiment.scale,
        algorithm=experiment.algorithm.name,
        config={**experiment.tree(), "rounds": len(curve) - 1},
        seed=experiment.seed,
        identity=experiment.identity(),
        environment=Environment({"git": "abc"}),
        partition_sha256=f"{partition}{experiment.seed}",
        data_sha256=None,
        metrics=(Metric("local_accuracy"), Metric("validation/local_accuracy", on="validation")),
    )
    rounds = [
        Round(
            number,
            1.0,
            {"validation/local_accuracy": on_validation, "local_accuracy": on_test,
             "local_accuracy_weighted": on_test},
            up=Traffic({"weights": 10}, {"weights": 40}),
        )
        for number, (on_validation, on_test) in enumerate(curve)
    ]  # fmt: skip
    return Run(info, rounds, Costs(wall_seconds=float(len(rounds))))


def pretend(book: Book, curve: Curve) -> list[Wanted]:
    """Have all runs of a table happen as said; returns them in the order in which they began."""
    done = []
    while (trial := book.next()) is not None:
        wanted = wanted_of(trial)
        done.append(wanted)
        end(book, trial, curve)
    return done


def end(book: Book, trial: RunTrial, curve: Curve) -> None:
    """Have a run happen."""
    found = curve(wanted_of(trial))
    trial.status = "running"
    if found is None or isinstance(found, str):
        trial.reason, rounds = found or f"{DIVERGED}: its loss is no number", []
    else:
        RunFolder(trial.folder).write(result_of(wanted_of(trial), found))
        rounds = book.rounds_of(trial)
    book.measure(trial, rounds)
    trial.status = "failed" if trial.reason else "finished"
