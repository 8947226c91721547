"""Pages, tables and figures of a study, and its description for MLflow."""

from __future__ import annotations

from fedray.results.pages.page import Section
from fedray.results.pages.table import PAGE, write
from fedray.results.pages.terminal import print_sections
from fedray.results.record import DATA
from fedray.storage.files import sealed, write_json
from fedray.storage.run_folder import write_run_list
from fedray.studies.outcome import outcome
from fedray.studies.study import Study
from fedray.studies.sweep_pages import conclude_sweep, last_lines, write_sweep
from fedray.studies.tracking import Conclusion
from fedray.tracking.describe import valid_name


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
    print("\n".join(last_lines(study)))


def conclusion(study: Study) -> Conclusion:
    """Return a study's description for MLflow."""
    return conclude_sweep(study) if study.plan.is_sweep else _conclude_table(study)


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
