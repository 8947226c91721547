"""A working directory with a folder of tables and a tiny experiment."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import plan_words
from pretended_runs import Curve, pretend
from sweeps import TINY

from fedray.config import dump_yaml
from fedray.studies.study import Study

TABLE = {
    "experiment": "tiny.yaml",
    "rows": {"mine": {"algorithm": {"name": "fedproto", "lambda": 2}}},
    "baselines": ["local"],
    "space": {"lr": {"grid": [0.02, 0.1]}},
    "tuning": {"configurations": 3},
    "report": {"seeds": [0, 1]},
}
PLUGIN = """\
from fedray.core import method
from fedray.algorithms.averaging.fedavg import FedAvg


@method("doubtful", "Doubtful", "-")
class Doubtful(FedAvg):
    \"\"\"FedAvg by another name.\"\"\"

"""
Write = Callable[..., Path]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working directory with folders of studies and tiny.yaml; results and MLflow are in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "tune" / "tables").mkdir(parents=True)
    (tmp_path / "tiny.yaml").write_text(dump_yaml(TINY))
    return tmp_path


@pytest.fixture
def plugin(here) -> Path:
    """A file with the method `doubtful`."""
    path: Path = here / "mine.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def write(here) -> Write:
    """`write(key=...)` writes the table tiny with other keys; None takes one away."""

    def write(**changes: object) -> Path:
        tree = {key: value for key, value in {**TABLE, **changes}.items() if value is not None}
        path: Path = here / "tune" / "tables" / "tiny.yaml"
        path.write_text(dump_yaml(tree))
        return path

    return write


@pytest.fixture
def play(here, write) -> Callable[..., Study]:
    """`play(curve, key=...)` writes the table tiny and has its runs happen as `curve` says."""

    def play(
        curve: Curve, words: Sequence[str] = (), scale: str | None = None, /, **changes: object
    ) -> Study:
        write(**changes)
        shutil.rmtree(here / "store", ignore_errors=True)
        plan = plan_words("table", "tiny", words, scale)
        study = Study(here / "out", plan, here / "store", command="the command")
        pretend(study, curve)
        return study

    return play
