"""What a study leaves beside its runs: pages, tables, figures; and what MLflow is told of it."""

from __future__ import annotations

from fedray.config import dump_yaml
from fedray.files import write_atomic
from fedray.records import write_run_list
from fedray.studies.study import Study
from fedray.studies.tracking import Conclusion
from fedray.studies.trials import sweep_outcome


def write_pages(study: Study) -> None:
    """Write the tables, figures and pages of what is over by now."""
    found = sweep_outcome(study)
    write_run_list(study.home, [run for trial in found.through for run in trial.runs])
    best = found.best
    if study.is_complete and best is not None:
        experiment = study.cells[0].wanted(best.config, "tuning", study.plan.report.seeds[0])
        write_atomic(study.home / "best.yaml", dump_yaml(experiment.experiment.tree()))


def print_pages(study: Study) -> None:
    """Print what a study came to."""
    for trial in sweep_outcome(study).trials:
        print(trial.number, trial.config, trial.objective, trial.std, trial.when, trial.status)


def conclusion(study: Study) -> Conclusion:
    """Return what MLflow is told of a study."""
    return Conclusion()
