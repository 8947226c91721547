"""Sweeps of a tiny experiment, and their runs in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import plan_words

from fedray.cli.study import request_of
from fedray.cli.study import sweep as sweep_command
from fedray.cli.study import table as table_command
from fedray.config import dump_yaml
from fedray.studies.flow import Request, study_of
from fedray.studies.plan import RunSpec
from fedray.studies.study import Study, StudyRun
from fedray.studies.trainable import trainable_of
from fedray.studies.tune import config_of, task_of

TINY = {
    "name": "tiny",
    "algorithm": "fedproto",
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "workers": 1,
    "data": {"clients": 3, "samples": 200, "partition": {"name": "dirichlet", "alpha": 1.0}},
    "model": {"feature_dim": 16},
}
EXPERIMENT = {**TINY, "report": {"select": "test"}}
SWEEP = {
    "answers": "nothing",
    "space": {"algorithm.lambda": {"grid": [0, 1]}},
    "scales": {"laptop": {"experiment": "tiny.yaml"}},
}


TUNING = ("search", "configurations", "asha")


def write_sweep(name: str = "tiny", **changes: object) -> Path:
    """Write a sweep in ./tune; `changes` replace its keys, `seeds` and `TUNING` in their parts."""
    path = Path("tune", f"{name}.yaml")
    path.parent.mkdir(exist_ok=True)
    tree = {**SWEEP, **changes}
    if "seeds" in tree:
        tree["report"] = {**tree.get("report", {}), "seeds": tree.pop("seeds")}
    if tuning := {key: tree.pop(key) for key in TUNING if key in tree}:
        tree["tuning"] = tuning
    path.write_text(dump_yaml(tree))
    return path


def laptop(**changes: object) -> dict[str, object]:
    """Return the scales of a sweep whose laptop scale has these keys too."""
    return {"laptop": {"experiment": "tiny.yaml", **changes}}


def sweep(*words: str, home: str = "home", name: str = "tiny") -> Study:
    """Return a new invocation of a sweep, with runs of its own."""
    return Study(Path(home).absolute(), plan_words("sweep", name, words), Path("store").absolute())


def carry_out(study: Study, run: RunSpec) -> list[dict[str, Any]]:
    """Run one run of a study in this process; return what Ray Tune would have got."""
    trial, found = trainable_of(task_of(study))(config_of(run, study.plan)), list[dict[str, Any]]()
    while not found or not found[-1].get("done"):
        found.append(trial.step())
    trial.cleanup()
    study.runs[run.key] = StudyRun(run)
    study.tell(run, found[-1].get("failed", ""))
    return found


def carry_out_all(study: Study) -> dict[str, list[dict[str, Any]]]:
    """Run what is left of a study; return the reports by run."""
    found = {}
    while (run := study.ask()) is not None:
        found[run.key] = carry_out(study, run)
    return found


def request(kind: str, *words: str) -> Request:
    """Return what a command's words ask for."""
    command = {"sweep": sweep_command, "table": table_command}[kind]
    return request_of(kind, **command.make_context(kind, list(words)).params)


def asked(words: Sequence[str]) -> Study:
    """Return the study that the words of `fedray table` begin or go on with."""
    return study_of(request("table", *words))
