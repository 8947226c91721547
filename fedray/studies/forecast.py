"""The text that announces a study before it starts: its design and its runs."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from fedray.results.labels import config_label
from fedray.studies.plan import StudyPlan
from fedray.studies.space import grid
from fedray.studies.study import Study

WIDTH = 80


def headline(study: Study) -> str:
    """Return the announcement of a study: its question, design and cost."""
    plan = study.plan
    lines = [f"{plan.title}: {plan.answers}"]
    lines += [_describe_sweep(plan)] if plan.is_sweep else _describe_table(plan)
    return "\n".join(map(wrap, [*lines, _cost(study)]))


def _describe_sweep(plan: StudyPlan) -> str:
    place = plan.places[0]
    configs, seeds = plan.configurations(place.row), plan.report.seeds
    experiment = plan.run(place, plan.first_config(place.row), "tuning", seeds[0]).experiment
    if plan.tuning.search == "grid":
        whole = len(grid(plan.axes))
        search = f"a grid of {whole}" if len(configs) == whole else f"{len(configs)} of {whole}"
    elif plan.uses_optuna:
        search = (
            f"{plan.tuning.configurations} configurations by Optuna, the first "
            f"{plan.random_suggestions} at random; its suggestions depend on how many run at a "
            "time, and may differ where a sweep was stopped"
        )
    else:
        search = f"{len(configs)} configurations by {plan.tuning.search}"
    keys = ", ".join(key for axis in plan.axes for key in axis.keys)
    return (
        f"{search}; over {keys}; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}; "
        f"{plan.experiment}: {experiment.algorithm.name} on {experiment.data.source.name}, "
        f"{experiment.data.clients} clients, {experiment.rounds} rounds"
    )


def _describe_table(plan: StudyPlan) -> list[str]:
    place, seeds = plan.places[0], plan.report.seeds
    size = f"{len(plan.rows)} rows x {len(plan.columns)} columns"
    config = plan.first_config(place.row)
    tuned = plan.run(plan.leader(place), config, "tuning", seeds[0]).experiment.rounds
    rounds = plan.run(place, config, "report", seeds[0]).experiment.rounds
    report = f"{len(seeds)} seeds x {rounds} rounds"
    if plan.is_printed:
        return [
            f"{size}, as the paper prints them: nothing is tuned; {report}, best round by "
            f"{plan.select} images"
        ]
    effort = (
        f"at most {plan.tuning.configurations} configurations x {len(seeds)} "
        f"seed{'s' * (len(seeds) > 1)} x {tuned} rounds, by {plan.select} images"
    )
    return [
        f"{size}, {len(plan.parsed_claims())} claims; each cell:",
        f"  tuning, each seed by itself: {effort}",
        f"  report: {report}",
    ]


def _cost(study: Study) -> str:
    """Return the number of runs, and the hours that the study's file names."""
    plan, finished = study.plan, study.total - study.remaining
    text = f"{study.total} runs" + (f"; {finished} are finished" if finished else "")
    if plan.hours is not None and not finished:
        text += f"; about {plan.hours:g} h on one core, by the study's file"
    return text


def planned_cells(study: Study) -> Iterator[str]:
    """Yield a line for each cell with its configurations, seeds and number of finished runs."""
    plan = study.plan
    seeds = ", ".join(map(str, plan.report.seeds))
    for state in study.states:
        place, leader = state.place, plan.leader(state.place)
        configs = map(config_label, plan.configurations(place.row))
        text = "; ".join(config or "as given" for config in configs) or "suggested by Optuna"
        text = text if leader == place else f"as {leader}"
        finished = sum(study.end_of(run) is not None for run in state.runs)
        text += f"; seeds {seeds}"
        text += f"; {finished} of {len(state.runs) + state.further} finished" if finished else ""
        yield wrap(f"{plan.name if plan.is_sweep else place}: {text}")


def untested_rows(plan: StudyPlan) -> list[str]:
    """Return a line that names the rows that no claim or control uses; empty without any."""
    if plan.is_sweep or plan.is_printed:
        return []
    claims = plan.parsed_claims()
    tested = {row for claim in claims for row in (*claim.better.rows, *claim.worse.rows)}
    untested = [name for name in plan.rows if name not in tested]
    return [wrap(f"no claim is about: {', '.join(untested)}")] if untested else []


def wrap(line: str) -> str:
    """Wrap a line at 80 columns; indent the continuation lines."""
    return fill(line, WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False)
