"""Studies whose runs only pretend to train: what they would have measured is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from written_runs import write_whole

from fedray.results.design import Place
from fedray.results.pages.page import markdown
from fedray.results.pages.table import table_page
from fedray.results.record import DATA, DIVERGED, TableRecord
from fedray.storage.environment import Environment
from fedray.storage.files import sealed, write_json
from fedray.storage.metric import Metric
from fedray.storage.run import Costs, Round, Run, RunInfo, Traffic, Work
from fedray.studies.outcome import outcome
from fedray.studies.plan import RunSpec
from fedray.studies.study import Study, StudyRun

Curve = Callable[[RunSpec], Sequence[tuple[float, float]] | str | None]
"""Of a run, its accuracy on validation and test images round by round; why it failed, or None where
its loss was no number."""


def result_of(
    wanted: RunSpec,
    curve: Sequence[tuple[float, float]],
    partition: str = "p",
    steps: int | None = None,
) -> Run:
    """Return the result of a run with these accuracies, round 0 first.

    A client takes `steps` steps in a round; None: nothing was counted.
    """
    experiment = wanted.experiment
    info = RunInfo(
        config={**experiment.tree(), "rounds": len(curve) - 1},
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
            client_work=None if steps is None else Work(steps, 10 * steps, 100),
            server_work=None if steps is None else Work(),
        )
        for number, (on_validation, on_test) in enumerate(curve)
    ]  # fmt: skip
    return Run(info, rounds, Costs(wall_seconds=float(len(rounds))))


def pretend(study: Study, curve: Curve) -> list[RunSpec]:
    """Have all runs of a study happen as said; return them in the order in which they began."""
    done = []
    while (run := study.ask()) is not None:
        done.append(run)
        end(study, run, curve)
    return done


def end(study: Study, run: RunSpec, curve: Curve) -> None:
    """Have a run begin and happen."""
    study.runs[run.key] = StudyRun(run)
    found = curve(run)
    if found is None or isinstance(found, str):
        study.tell(run, found or f"{DIVERGED}: its loss is no number")
    else:
        write_whole(study.folder(run.key), result_of(run, found))
        study.tell(run)


def page_of(study: Study) -> str:
    """Return the page of a table in Markdown; no file is written and no figure drawn."""
    return markdown(table_page(outcome(study)))


def publish(study: Study) -> None:
    """Write the record of a table alone."""
    study.home.mkdir(exist_ok=True)
    write_json(study.home / DATA, sealed(outcome(study).tree()))


def numbers_of(record: TableRecord, place: Place) -> dict[int, dict[str, float] | None]:
    """Return the reported metrics of a cell by seed; None for a seed without a result."""
    cell = record.cell(place)
    runs = record.reported(cell)
    return {seed: runs[seed].values if seed in runs else None for seed in cell.reported}


def claims_of(record: TableRecord) -> list[SimpleNamespace]:
    """Return the claims of a table with their comparisons and verdicts."""
    return [
        SimpleNamespace(**vars(result), verdict=result.verdict, p=result.comparison.p)
        for result in record.claims
    ]
