"""One configuration inside Ray Tune: the seeds of one federation in lockstep.

The trial's own actor is the federation's server. Its workers sit in the bundles of the trial's
placement group; nothing here creates another group.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.errors import FedrayError, RunFailed, UserError, nearest
from fedray.sweep.spec import Question, folder_name

if TYPE_CHECKING:
    from fedray.config import Experiment
    from fedray.runtime.session import Session
    from fedray.runtime.workers import WorkerPool

Record = dict[str, Any]
TRAFFIC = ("up_bytes", "down_bytes", "up_params", "down_params")


@dataclass(frozen=True)
class Objective:
    """What a trial is worth so far: over seeds, of each seed's best or last value.

    Attributes:
        value: the mean over seeds.
        std: the sample standard deviation over seeds; 0 for one seed.
        rounds: for each seed, the round it was measured in.
    """

    value: float
    std: float
    rounds: list[int]


def run_trial(config: Mapping[str, Any], question: Question, home: Path) -> None:
    """The trainable: one report per new round, with the objective so far.

    An error that would come again is reported as "failed" and ends the trial; when processes died,
    the error is raised and Ray Tune starts the trial again, which goes on after its checkpoints.

    Args:
        config: under "trial", its `number` and its swept `values`.
        question: what is swept.
        home: the invocation's folder.
    """
    from ray import tune

    values = config["trial"]["values"]
    folder = home / folder_name(config["trial"]["number"], values)
    try:
        for report in reports(question, values, folder):
            tune.report(report)
    except RunFailed:
        raise
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        known = isinstance(error, FedrayError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        tune.report({"objective": math.nan, "failed": reason})


def reports(question: Question, values: Mapping[str, Any], folder: Path) -> Iterator[Record]:
    """Run all seeds round by round; yield what is reported.

    Rounds that the folder already holds are not reported again, but count in the objective; the
    last round always is.
    """
    import torch
    from filelock import FileLock, Timeout

    began = time.time()
    experiments = [question.experiment_of(values, seed) for seed in question.seeds]
    rounds = experiments[0].rounds
    torch.set_num_threads(experiments[0].threads)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder / ".lock", timeout=60))
        except Timeout:
            raise RunFailed(f"{folder} is still in use by another process") from None
        outs = [folder / f"seed_{seed}" for seed in question.seeds]
        known = min(len(earlier(out)) for out in outs) - 1
        pool = pool_of(experiments[0])
        stack.callback(pool.close)
        streams = [
            whole(_session(experiment, out, pool, began), earlier(out))
            for experiment, out in zip(experiments, outs, strict=True)
        ]
        rows: list[Record] = []
        unreported: list[Record] = []
        for records in zip(*streams, strict=True):
            rows.append(merge(records, question.metric))
            if rows[-1]["round"] <= known and rows[-1]["round"] < rounds:
                continue
            unreported.append(rows[-1])
            objective = judge(rows, question)
            if objective is None:
                continue  # not evaluated yet; Ray Tune wants the objective in every report
            yield {
                "round": rows[-1]["round"],
                "rounds": rounds,
                "objective": objective.value,
                "objective_std": objective.std,
                "best_rounds": objective.rounds,
                "records": unreported,
            }
            unreported = []
        if judge(rows, question) is None:
            there = {name for row in rows for name in row["metrics"]}
            raise UserError(
                f"metric: no round has '{question.metric}'.{nearest(question.metric, there)}"
            )


def pool_of(experiment: Experiment) -> WorkerPool:
    """The trial's workers, each in its own bundle of the trial's placement group."""
    from ray.util import get_current_placement_group

    from fedray.runtime.resources import first_worker_bundle
    from fedray.runtime.workers import WorkerPool

    group = get_current_placement_group()
    return WorkerPool(experiment, group=group, first_bundle=first_worker_bundle(experiment))


def _session(experiment: Experiment, out: Path, pool: WorkerPool, began: float) -> Session:
    from fedray.runtime.session import Session
    from fedray.runtime.workers import RayExecutor

    return Session(experiment, out, lambda assembly: RayExecutor(assembly, pool), began)


def earlier(out: Path) -> list[Record]:
    """The rounds that a run's folder holds, none if it has no result.json yet."""
    try:
        text = (out / "result.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    rounds: list[Record] = json.loads(text)["rounds"]
    return rounds


def whole(session: Session, before: Sequence[Record]) -> Iterator[Record]:
    """Every round of a session from 0: what its folder holds, then what it runs."""
    new = session.rounds()
    first = next(new, None)
    yield from (r for r in before if first is None or r["round"] < first["round"])
    if first is not None:
        yield first
        yield from new


# --- seeds ---------------------------------------------------------------------------------------


def merge(records: Sequence[Record], metric: str) -> Record:
    """One round of all seeds: means of metrics and traffic, and the metric's spread.

    Args:
        records: the seeds' records of one round, as in result.json.
        metric: the objective's metric; its value for each seed stands under "by_seed", and its
            standard deviation is added as "<metric>_seed_std".
    """
    from fedray.evaluation import mean_and_std

    if len({record["round"] for record in records}) > 1:
        raise RunFailed(f"the seeds are in rounds {[record['round'] for record in records]}")
    names = [
        name
        for name in records[0]["metrics"]
        if name != "per_client" and all(name in record["metrics"] for record in records)
    ]
    spreads = {name: mean_and_std([r["metrics"][name] for r in records]) for name in names}
    metrics = {name: mean for name, (mean, _) in spreads.items()}
    if metric in spreads and len(records) > 1:
        metrics[f"{metric}_seed_std"] = spreads[metric][1]
    return {
        "round": records[0]["round"],
        "seconds": sum(record["seconds"] for record in records),
        "metrics": metrics,
        "by_seed": [record["metrics"].get(metric) for record in records],
        **{name: _mean([record[name] for record in records]) for name in TRAFFIC},
        **{
            f"{name}_by_kind": {
                kind: _mean([record[f"{name}_by_kind"].get(kind, 0) for record in records])
                for kind in records[0][f"{name}_by_kind"]
            }
            for name in TRAFFIC
        },
        "events": [event for record in records for event in record["events"]],
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def judge(rows: Sequence[Record], question: Question) -> Objective | None:
    """The objective over these rounds; None when none of them was evaluated."""
    from fedray.evaluation import mean_and_std

    measured = [row for row in rows if None not in row["by_seed"]]
    if not measured:
        return None
    sign = 1 if question.mode == "max" else -1
    values, rounds = [], []
    for seed in range(len(question.seeds)):
        chosen = measured[-1]
        if question.at == "best":
            chosen = max(measured, key=lambda row: sign * row["by_seed"][seed])
        values.append(chosen["by_seed"][seed])
        rounds.append(chosen["round"])
    mean, std = mean_and_std(values)
    return Objective(mean, std, rounds)


def read_rows(folder: Path, question: Question) -> list[Record]:
    """The rounds that all seeds of a trial have finished, merged, from their files."""
    runs = [earlier(folder / f"seed_{seed}") for seed in question.seeds]
    return [merge(records, question.metric) for records in zip(*runs, strict=False)]
