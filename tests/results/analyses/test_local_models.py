"""Models before and after local training on everybody's test images, by class share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from answers import counts_of
from commands import analyse as main

from fedray.evaluation.answers import Answers
from fedray.results.analyses.extra_step import reopen
from fedray.results.analyses.local_models import accuracies, local_answers
from fedray.run import main as fedray_run

RUN = [
    *("fedavg_digits", "--executor", "serial", "--no-track", "rounds=1", "local_epochs=2"),
    *("model.group=mlp", "model.feature_dim=16", "data.clients=4", "data.samples=300", "lr=0.2"),
    *("data.partition={name: classes, classes_per_client: 3}", "data.test=local", "batch_size=16"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRAY_CACHE", str(tmp_path_factory.mktemp("cache_of_runs")))
        for method in ("fedavg", "local"):
            where = str(folder / method)
            assert fedray_run([*RUN, f"algorithm={method}", "--out", where]) == 0
    return folder


def test_shares_by_hand():
    before = counts_of(([1, 0], [4, 4]), ([1, 0], [4, 4]))[:, 0]
    after = counts_of(([4, 0], [4, 4]), ([1, 3], [4, 4]))[:, 0]
    found = [accuracies(np.eye(2, dtype=bool), Answers(c, np.arange(2))) for c in (before, after)]
    assert found[0] == {"majority": 1 / 8, "minority": 1 / 8, "all": 1 / 8}
    assert found[1] == {"majority": 7 / 8, "minority": 1 / 8, "all": 1 / 2}


@pytest.mark.slow
def test_every_client_is_tested_on_everybodys_images(finished):
    assembly, _ = reopen(finished / "fedavg")
    everybody = np.concatenate(assembly.data.test)
    majority, tested = local_answers(finished / "fedavg")
    assert tested["after"].clients.tolist() == [0, 1, 2, 3]
    assert (tested["before"].counts == tested["before"].counts[0]).all()  # the one global model
    labels = np.bincount(assembly.data.images.labels[everybody], minlength=10)
    assert (tested["after"].images == labels).all()
    assert set(majority.sum(axis=1)) <= {1, 2, 3}


def test_local_training_helps_the_classes_that_a_client_has_and_hurts_the_others(finished):
    majority, tested = local_answers(finished / "fedavg")
    before, after = (accuracies(majority, tested[model]) for model in ("before", "after"))
    assert after["majority"] > before["majority"]
    assert after["minority"] < after["majority"]


def test_the_model_before_is_the_checkpoints(finished):
    assembly, found = reopen(finished / "fedavg")
    model = assembly.models.empty("mlp", torch.device("cpu")).eval()
    model.load_state_dict(found.snapshot.server["model"])
    before = local_answers(finished / "fedavg")[1]["before"]
    index = np.unique(np.concatenate(assembly.data.test))
    samples = assembly.models.samples(torch.device("cpu"))(index)
    stored, labels = samples.tensors(torch.device("cpu"))
    with torch.no_grad():
        right = model(samples.batch(stored, labels).inputs).logits.argmax(1) == labels
    assert before.right[0].sum() == int(right.sum())


def test_clients_without_a_global_model_go_on_from_their_own(finished):
    before = local_answers(finished / "local")[1]["before"]
    assert (before.counts != before.counts[0]).any()


def test_the_command_writes_a_table_and_leaves_the_runs_alone(finished, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.glob("*/**/*")}
    assert main(["local_models", str(finished), "--out", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / "local_models.md").read_text().splitlines()
    assert lines[0].startswith("| method | model | majority classes (%) |")
    assert lines[2].startswith("| fedavg | before local training |")
    assert lines[3].startswith("| fedavg | after local training |")
    assert "wrote" in capsys.readouterr().out
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())


def test_dense_prediction_has_no_majority(tmp_path: Path, capsys):
    keys = ["fedavg_shapes", "--executor", "serial", "--no-track", "rounds=1", "data.samples=24"]
    folder = tmp_path / "dense"
    keys += ["data.image_size=16", "data.test=local", "batch_size=4", "model.feature_dim=4"]
    assert fedray_run([*keys, "--out", str(folder)]) == 0
    assert "accuracy_majority" not in (folder / "rounds.jsonl").read_text()
    capsys.readouterr()
    assert main(["local_models", str(folder)]) == 2
    assert "majority classes are not defined" in capsys.readouterr().err
