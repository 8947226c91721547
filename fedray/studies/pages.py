"""Pages, tables and figures of a study, and its description for MLflow."""

from __future__ import annotations

from pathlib import Path

from fedray.config import dump_yaml
from fedray.results.numbers import scale_of
from fedray.results.pages.page import Section
from fedray.results.pages.table import PAGE, write
from fedray.results.pages.terminal import print_sections
from fedray.results.record import DATA
from fedray.storage.files import sealed, write_atomic, write_json
from fedray.storage.metric import HEADLINE
from fedray.storage.run_folder import write_run_list
from fedray.studies.outcome import outcome
from fedray.studies.study import Study
from fedray.studies.tracking import Conclusion
from fedray.studies.trials import BEST, SweepOutcome, draw_sweep, trials_section
from fedray.tracking.describe import BEST_METRIC, valid_name


def write_pages(study: Study) -> list[Section]:
    """Write the tables, figures and pages of the finished runs; return the sections to print."""
    return write_sweep(study) if study.plan.is_sweep else write_table(study)


def print_pages(study: Study) -> None:
    """Write a study's pages and print its results."""
    sections = write_pages(study)
    print()
    print_sections(sections)
    if not study.plan.is_sweep:
        print(f"page: {study.home / PAGE} (also .html, .tex, .json, figure.png and .pdf)")
        return
    sweep = SweepOutcome(study)
    if sweep.best is not None and study.is_complete:
        print(f"{sweep.best_line()}\n  {sweep.best_command()}")
    if sweep.tried:
        print(f"figure: {study.home / 'sweep.png'}")
    print(f"results: {study.home}")


def conclusion(study: Study) -> Conclusion:
    """Return a study's description for MLflow."""
    return _conclude_sweep(study) if study.plan.is_sweep else _conclude_table(study)


# --- tables ---------------------------------------------------------------------------------------


def write_table(study: Study) -> list[Section]:
    """Write a table in every format; return the sections of its page."""
    record = outcome(study)
    sections = write(record, study.home)
    write_json(study.home / DATA, sealed(record.tree()))
    reported = [
        study.plan.run(state.place, config, "report", seed).key
        for state in study.states
        for seed, config in state.choices.items()
    ]
    write_run_list(study.home, [study.folder(key) for key in reported if key not in study.failures])
    return sections


def _conclude_table(study: Study) -> Conclusion:
    """Return the mean over seeds of each finished cell, once the table is complete."""
    metrics: dict[str, float] = {}
    record = outcome(study)
    for cell in record.cells if study.is_complete else ():
        runs = list(record.reported(cell).values())
        names = record.plan.measures(cell.row) if runs and cell.phase == "over" else {}
        for name, measured in names.items():
            mean = sum(run.values[measured] for run in runs) / len(runs)
            metrics[valid_name(f"{cell.place}/{name}")] = mean
    return Conclusion(metrics)


# --- sweeps ---------------------------------------------------------------------------------------


def write_sweep(study: Study) -> list[Section]:
    """Write a sweep's numbers, figure and best configuration; return its sections."""
    sweep, plan, home = SweepOutcome(study), study.plan, study.home
    frame = sweep.numbers.frame
    write_run_list(
        home, map(Path, dict.fromkeys(frame.loc[frame["row"].isin(sweep.tried), "folder"]))
    )
    write_atomic(home / "trials.csv", frame.to_csv(index=False))
    draw_sweep(sweep, home / "sweep.png")
    if sweep.best is not None and study.is_complete:
        config, seed = sweep.configs[sweep.best], plan.report.seeds[0]
        best = plan.run(plan.places[0], config, "tuning", seed)
        write_atomic(home / BEST, dump_yaml(best.experiment.tree()))
    return [trials_section(sweep)]


def _conclude_sweep(study: Study) -> Conclusion:
    """Return a sweep's description: its best configuration, and counts of configurations."""
    sweep, plan = SweepOutcome(study), study.plan
    note = [f"{len(sweep.configs)} configurations", f"{plan.title}: {plan.answers}"]
    if sweep.best is None:
        return Conclusion({}, "\n\n".join(note))
    note[0] += f": **{sweep.best_line()}**"
    note += [*sweep.notes, f"The best one alone: `{sweep.best_command()}`"]
    [state] = study.states
    metrics = {
        "trials_finished": float(len(sweep.tried)),
        "trials_failed": float(len(state.tried) - len(sweep.tried)),
    }
    tested = sweep.declared(plan.metrics[0])
    for name, metric in (("best_objective", sweep.chooser), ("best_test", tested)):
        interval = sweep.interval(sweep.best, metric)
        if interval is not None and (name == "best_objective" or metric.on == "test"):
            metrics[name] = interval.mean / scale_of(metric)
    if "best_test" in metrics and tested.name == HEADLINE:
        metrics[BEST_METRIC] = metrics["best_test"]
    return Conclusion(metrics if study.is_complete else {}, "\n\n".join(note))
