"""Reports of agreement and of phases, on runs made here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import analyse as main
from rounds import serial

from fedray.evaluation.similarity import matrix_agreement
from fedray.results.analyses import phases
from fedray.results.frame import load_runs
from fedray.storage.run_folder import RunFolder

CPU = torch.device("cpu")
PHASES = [{"round": 2, "partition": {"alpha": 50}}]


@pytest.fixture
def finished(assemble, tmp_path):
    """`finished("a", "fedtsp", {...})` is the folder of a run of two rounds."""

    def finished(name, method, changes=None) -> Path:
        changes = {"rounds": 2, "model.group": "cnn2", "data.samples": 160, **(changes or {})}
        experiment = assemble(method, changes).experiment
        out = tmp_path / "runs" / name
        for _ in serial(experiment, out).rounds():
            pass
        return out

    return finished


def test_matrices_of_two_runs_are_correlated_before_and_after(finished, tmp_path, capsys):
    styles = ("handcrafted", "name")
    folders = [finished(s, "fedtsp", {"text.style": s}) for s in styles]
    untrained, last = [], []
    for folder in folders:
        first = RunFolder(folder).read_matrices("first")
        assert first.keys() == {"text_similarity", "text_similarity_untrained"}
        untrained.append(torch.tensor(first["text_similarity_untrained"]))
        found = RunFolder(folder).read_matrices()
        assert found.keys() == {"text_similarity"}
        last.append(torch.tensor(found["text_similarity"]))
    assert main(["agreement", str(tmp_path / "runs"), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "agreement.md").read_text()
    (before, _), (after, rank) = matrix_agreement(*untrained), matrix_agreement(*last)
    for value in (before, after, rank):
        assert f" {value:.4g} |" in page


def test_what_cannot_be_compared(finished, tmp_path, capsys):
    folder = finished("a", "fedproto")
    assert RunFolder(folder).read_matrices().keys() == {"prototype_similarity"}
    assert main(["agreement", str(folder), "--out", str(tmp_path)]) == 2
    assert "1 configuration; pass runs of two or more" in capsys.readouterr().err
    finished("b", "local")
    runs = str(tmp_path / "runs")
    assert main(["agreement", runs, "--out", str(tmp_path)]) == 2
    assert "has no matrix 'prototype_similarity'; leave the run out" in capsys.readouterr().err


def test_rounds_are_cut_where_the_data_changes_and_clients_join(finished, tmp_path, capsys):
    changes = {"data.evolution.phases": PHASES, "join.clients": 1, "join.round": 3, "rounds": 4}
    folder = finished("a", "fedproto", changes)
    run = RunFolder(folder).read()
    curve = run.curve("earlier_accuracy")
    (loaded,) = load_runs([folder])
    metric = run.info.metric("earlier_accuracy")
    assert phases.changes(run.info.config) == [2, 3]
    assert phases.part_of(loaded, metric, 1, 2) == (curve[1], curve[1], None)
    assert phases.part_of(loaded, metric, 2, 3) == (curve[2], curve[2], curve[2] - curve[1])
    best = max(curve[3], curve[4])
    assert phases.part_of(loaded, metric, 3, 5) == (best, curve[4], curve[3] - curve[2])
    assert main(["phases", str(folder), "--out", str(tmp_path)]) == 0
    lines = (tmp_path / "phases.md").read_text().splitlines()
    assert [line.split(" | ")[1:3] for line in lines if "earlier" in line] == [
        ["earlier_accuracy", "1 to 1"],
        ["earlier_accuracy", "2 to 2"],
        ["earlier_accuracy", "3 to 4"],
    ]


def test_a_reference_without_changes_is_cut_where_the_others_change(finished, tmp_path, capsys):
    finished("a", "fedproto", {"data.evolution.phases": PHASES})
    finished("b", "fedproto")
    assert main(["phases", str(tmp_path / "runs"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "phases.md").read_text().count("| 1 to 1 |") == 2


def test_a_run_in_which_nothing_changes(finished, tmp_path, capsys):
    assert main(["phases", str(finished("a", "local")), "--out", str(tmp_path)]) == 2
    assert "nothing changes in this run; set data.evolution.phases" in capsys.readouterr().err
