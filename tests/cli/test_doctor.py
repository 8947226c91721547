"""`fedray doctor`: what works here, and what to do about what does not."""

from __future__ import annotations

import pytest

from fedray.__main__ import main
from fedray.cli import doctor
from fedray.cli.doctor import Finding, findings_of, folder_findings, ray_cluster, tracker
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
    (healthy / "FEDRAY_DATA" / "flowers").mkdir()
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("\nruns can start\n")
    for what in ("fedray", "Python", "packages", "CPUs", "GPUs", "Ray", "results", "MLflow"):
        assert f" {what}: " in said
    here = environment()
    for fact in (here.hardware, here.versions["torch"]):
        assert fact in said
    assert "contains flowers" in said


def test_a_missing_package_is_named(healthy, monkeypatch):
    installed = {name: "1.0" for name in doctor.NEEDED if name != "optuna"}
    monkeypatch.setattr(doctor, "versions", lambda: installed)
    assert ("missing", "optuna") in [(each.state, each.found) for each in doctor.packages()]


def test_what_is_missing_ends_with_1_and_a_cure(healthy, monkeypatch, capsys):
    finding = Finding("Ray", "missing", "it is not there", "install it")
    monkeypatch.setattr(doctor, "CHECKS", {"Ray": lambda: iter([finding])})
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "missing  Ray: it is not there\n         -> install it\n" in said
    assert "needed and not there: Ray" in said


def test_a_user_without_a_home_is_told_what_to_set(healthy, monkeypatch, capsys):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("FEDRAY_RESULTS")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "missing  folders: ~/fedray_results: this user has no home folder" in said
    assert " MLflow: " in said  # the checks go on


@pytest.mark.parametrize(
    ("variable", "value", "check", "state", "said"),
    [
        ("RAY_ADDRESS", "127.0.0.1:1", ray_cluster, "missing", "no Ray cluster answers at"),
        ("FEDRAY_RESULTS", f"{__file__}/results", folder_findings, "missing", "cannot be written"),
        ("FEDRAY_DATA", "/no/such/folder", folder_findings, "note", "is not a folder"),
        ("MLFLOW_TRACKING_URI", "http://127.0.0.1:1", tracker, "note", "no answer from"),
        ("MLFLOW_TRACKING_URI", "file:///tmp/x", tracker, "missing", "is a folder"),
    ],
)
def test_what_is_wrong_is_said(healthy, monkeypatch, variable, value, check, state, said):
    monkeypatch.setenv(variable, value)
    found = [each for each in findings_of("Ray", check) if each.state == state]
    assert any(said in each.found and each.cure for each in found)


def test_sets(healthy):
    (healthy / "FEDRAY_DATA" / "cifar10").mkdir()
    said = {finding.what: finding.found for finding in folder_findings()}
    assert said["sets and weights"].startswith("cifar10")
