"""`fedray doctor`: what works here, and what to do about what does not."""

from __future__ import annotations

import pytest

from fedray.__main__ import main
from fedray.cli import doctor
from fedray.storage.environment import environment


@pytest.fixture
def healthy(tmp_path, monkeypatch):
    """A home, a cache and data that can be used, no cluster and no server."""
    for variable in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("FEDRAY_RESULTS", "FEDRAY_CACHE", "FEDRAY_DATA"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return tmp_path


def test_a_healthy_installation(healthy, capsys):
    (healthy / "FEDRAY_DATA" / "cifar10").mkdir()
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("\nruns can start\n")
    for what in ("packages", "hardware", "Ray", "folder", "data", "MLflow"):
        assert f"\nok       {what}: " in f"\n{said}"
    here = environment()
    for fact in (here.hardware, here.versions["torch"], "cifar10, minilm of the papers'"):
        assert fact in said


def test_a_library_that_does_not_load(healthy, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "environment", {}.__getitem__)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "missing  hardware: TypeError" in said
    assert said.endswith("\nneeded and not there: hardware\n")


@pytest.mark.parametrize(
    ("variable", "value", "check", "state", "said"),
    [
        ("RAY_ADDRESS", "127.0.0.1:1", "Ray", "missing", "no Ray cluster answers at"),
        ("FEDRAY_RESULTS", f"{__file__}/results", "folder", "missing", "cannot be written"),
        ("FEDRAY_DATA", "/no/such/folder", "data", "note", "/no/such/folder"),
        ("MLFLOW_TRACKING_URI", "http://127.0.0.1:1", "MLflow", "note", "no answer from"),
        ("MLFLOW_TRACKING_URI", "file:///tmp/x", "MLflow", "missing", "is a folder"),
    ],
)
def test_what_is_wrong_is_said(healthy, monkeypatch, variable, value, check, state, said):
    monkeypatch.setenv(variable, value)
    found = doctor.findings_of(doctor.CHECKS[check])
    assert any(f.state == state and said in f.found and f.cure for f in found)
