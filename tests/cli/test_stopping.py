"""A run that is stopped from outside ends with one line: what happened and how to go on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rounds import rounds_in

TINY = ["rounds=100000", "data.samples=240", "data.clients=4", "local_epochs=1"]
NOT_OURS = ("Token authentication is enabled",)
"""Lines that Ray itself may print when it starts."""


def stopped(
    number: int, out: Path, *words: str, executor: str = "serial"
) -> tuple[int, list[str], list[str]]:
    """Start a long run, stop it after round 2; its exit code and what it said since."""
    command = [sys.executable, "-m", "fedray.run", "fedavg_digits", *TINY, *words]
    process = subprocess.Popen(
        [*command, "--out", str(out), "--executor", executor],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FEDRAY_RESULTS": str(out.parent / "results")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # xdist ignores it
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round 2/"):
            break
    deadline = time.monotonic() + 240
    while "--no-track" not in words and not is_tracked(out.parent / "results" / "mlflow.db"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(number)
    said, errors = process.communicate(timeout=240)
    lines = [line for line in errors.splitlines() if not line.startswith(NOT_OURS)]
    return process.returncode, said.splitlines(), lines


def is_tracked(database: Path) -> bool:
    """Whether a run has begun in MLflow."""
    if not database.exists():
        return False
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            return bool(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
        except sqlite3.OperationalError:  # its tables are being made
            return False


def check_goes_on(out: Path) -> None:
    """The folder holds whole files, and the run that they describe."""
    rounds = rounds_in(out)
    assert [each["round"] for each in rounds] == list(range(len(rounds)))
    assert len(rounds) >= 3
    assert not list(out.glob("*.tmp*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "what"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_serial_run(tmp_path, number, code, what):
    out = tmp_path / "out"
    found, said, errors = stopped(number, out, "--no-track")
    assert (found, errors) == (
        code,
        [
            f"{what}; go on with: python -m fedray.run fedavg_digits {' '.join(TINY)} --out {out} "
            "--executor serial --no-track"
        ],
    )
    assert all(line.startswith("round ") for line in said)
    check_goes_on(out)


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_on_ray_and_in_mlflow(tmp_path, empty_database):
    import mlflow

    out = tmp_path / "out"
    (tmp_path / "results").mkdir()
    shutil.copy(empty_database, tmp_path / "results")
    code, said, errors = stopped(signal.SIGTERM, out, "workers=1", executor="ray")
    words = " ".join(["fedavg_digits", *TINY, "workers=1"])
    line = f"terminated; go on with: python -m fedray.run {words} --out {out}"
    assert (code, errors) == (143, [line])
    assert all(each.startswith(("round ", "writing the rest to MLflow")) for each in said)
    check_goes_on(out)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}")
    experiments = [each.experiment_id for each in client.search_experiments()]
    assert [each.info.status for each in client.search_runs(experiments)] == ["KILLED"]
