"""`fedray verify DIR`: run a run, or a sample of a table's runs, again and compare the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fedray.activity import say_next
from fedray.command import PATH, RUN_ERROR, Command, trust
from fedray.compare.difference import Gap, Verdict, gaps, input_changes, metric_gaps, verdict
from fedray.errors import UserError
from fedray.files import reserve, results_home, stamp
from fedray.records import Environment, Run, RunFolder

if TYPE_CHECKING:
    from fedray.config import Experiment


@dataclass(frozen=True)
class Claimed:
    """A run as a folder or a published table claims it.

    Attributes:
        name: in the output.
        experiment: what was run.
        round: the last round that is compared.
        environment: in which it was made; of a table's run only the versions are known.
        hardware: see `Environment.hardware`; "" if it was not recorded.
        compare: returns what differs in a new run: numbers, and what was read.
    """

    name: str
    experiment: Experiment
    round: int
    environment: Environment
    hardware: str
    compare: Callable[[Run], tuple[list[Gap], list[str]]]


@click.command(cls=Command)
@click.argument("folder", type=PATH, metavar="DIR")
@click.option("--sample", type=click.IntRange(1), default=3, help="Runs of a table; default: 3.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the draw; default: 0.")
@trust
def command(folder: Path, sample: int, seed: int) -> int:
    """Run finished runs again, in this process, and compare the numbers.

    DIR is a run's folder, or that of a table with its table.json: a sample of its reported runs is
    drawn, and its verdicts are computed again from its numbers. Exit code 0: equal, bit for bit or
    within the bound of other hardware; 1: different.
    """
    say_next("importing PyTorch")
    verdicts = []
    for claimed in claims(folder, sample, seed):
        say_next(f"{claimed.name}: {claimed.round} rounds")
        found, home = again(claimed)
        verdicts.append(found)
        print("\n    ".join([f"  {found.lines[0]}", *found.lines[1:]]), flush=True)
        if home is not None:
            print(f"    the new run: {home}")
    wrong = edited_claims(folder)
    for claim in wrong:
        print(f"  the verdict on {claim} does not follow from the numbers of its seeds")
    return RUN_ERROR if wrong or not all(found.holds for found in verdicts) else 0


def edited_claims(folder: Path) -> list[str]:
    """Return the claims of a table's folder that its numbers do not give; none for a run."""
    from fedray.studies.recompute import wrong_verdicts
    from fedray.studies.store import DATA, check_table

    return wrong_verdicts(check_table(folder / DATA)) if (folder / DATA).is_file() else []


def claims(folder: Path, sample: int, seed: int) -> Sequence[Claimed]:
    """Return the runs to make again.

    Raises:
        UserError: if the folder holds neither a run nor a table, or a file is damaged.
    """
    from fedray.runtime.resolve import resolve
    from fedray.studies.store import DATA, check_table

    if (folder / DATA).is_file():
        found = list(published(check_table(folder / DATA), folder))
        if not found:
            raise UserError(f"{folder / DATA} reports no finished run")
        drawn = np.random.default_rng(seed).permutation(len(found))[:sample]
        return [found[number] for number in drawn]
    files = RunFolder(folder)
    if not files.has_result:
        raise UserError(f"{folder} holds no result.json and no table.json; pass a run or a table")
    run = files.read()
    experiment, environment = resolve(str(files.config), trusted=False), run.info.environment

    def compare(now: Run) -> tuple[list[Gap], list[str]]:
        return gaps(run, now), input_changes(run.info, now.info)

    hardware = environment.hardware
    return [Claimed(str(folder), experiment, run.done, environment, hardware, compare)]


def published(tree: Mapping[str, Any], folder: Path) -> Iterator[Claimed]:
    """Yield the reported runs of a table."""
    from fedray.config import validate
    from fedray.studies.plan import Place, StudyPlan

    plan = validate(StudyPlan, tree["plan"], f"{folder}: plan")
    for cell in tree["cells"]:
        place = Place(cell["row"], cell["column"])
        own = {**plan.measures(place.row), "the metric that chose": plan.chosen_by(place.row)}
        for entry in cell["seeds"]:
            if "values" not in entry:
                continue
            seed = entry["seed"]
            config = cell.get("choices", {}).get(str(seed), cell["chosen"])
            yield Claimed(
                name=f"{place}, seed {seed}",
                experiment=plan.experiment_of(place, config, "report", seed),
                round=entry["round"],
                environment=Environment(entry["versions"]),
                hardware=entry.get("hardware", ""),
                compare=partial(_compare_published, entry, own),
            )


def _compare_published(
    entry: Mapping[str, Any], own: Mapping[str, str], now: Run
) -> tuple[list[Gap], list[str]]:
    """Compare a new run with a run of a table, of which the numbers of one round are known."""
    then = {**entry["values"], "the metric that chose": entry["choice"]}
    metrics = now.rounds[-1].metrics
    there = {name: metrics[one] for name, one in own.items() if one in metrics}
    info = replace(now.info, partition_sha256=entry["partition"], data_sha256=entry["data"])
    return list(metric_gaps(entry["round"], then, there)), input_changes(info, now.info)


def again(claimed: Claimed) -> tuple[Verdict, Path | None]:
    """Make a run again; return the verdict, and the new run's folder unless the runs are equal."""
    from fedray.api.training import begin, follow

    home = reserve(results_home() / "verify" / f"{claimed.experiment.name}-{stamp()}")
    rounds = begin(claimed.experiment, home, "serial", time.time(), lambda line: None)
    with closing(follow(home, rounds, None)) as done:
        for each in done:
            if each.round == claimed.round:
                break
    now = RunFolder(home).read()
    found, inputs = claimed.compare(now)
    here = now.info.environment
    changes = claimed.environment.changes(here)
    result = verdict(found, inputs, claimed.hardware, changes, here.hardware)
    if found or inputs:
        return result, home
    rmtree(home)
    return result, None
