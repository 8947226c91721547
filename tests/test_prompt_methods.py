"""What every method on prompts must stand: newcomers, absent classes, one client alone, disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from prompting import initial_prompts, prompted_model
from rounds import rounds_in

from fedray.base.trees import leaves
from fedray.core import algorithms
from fedray.results.analyses.extra_step import reopen
from fedray.run import main as fedray_run

METHODS = [name for name in algorithms.names() if algorithms.get(name).requires.prompts]
TRAINED = [name for name in METHODS if name != "zero_shot"]


def small(method: str, **more: object) -> dict[str, object]:
    """A small experiment of the method."""
    changes: dict[str, object] = {"lr": 0.2, "data.samples": 160, **more}
    if "length" in algorithms.get(method).model_fields:
        changes["algorithm.length"] = 2
    if method.endswith("pfedme"):
        changes["algorithm.eta"] = 0.05
    if algorithms.get(method).requires.validation:
        changes["data.validation_fraction"] = 0.2
    if method == "cocoop":
        changes["data.samples"] = 60  # it encodes all texts anew for every image
    return changes


def assert_finite(done) -> None:
    """Every number of a run, and every prompt, is finite."""
    for result in done.results:
        assert all(np.isfinite(value) for value in result.metrics.values())
    for tree in (done.servers[-1], *done.models.values()):
        assert all(bool(tensor.isfinite().all()) for _, tensor in leaves(tree))


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_joins_late_and_clients_without_some_classes(run, method):
    """It is measured before, and trains after; everybody predicts over all classes."""
    partition = {"name": "classes", "classes_per_client": 3}
    joins = {"join.clients": 1, "join.round": 2, "rounds": 2, "data.samples": 100}
    done = run(method, small(method, **{"data.partition": partition, **joins}))
    assert [3 in result.participants for result in done.results] == [False, False, True]
    assert_finite(done)
    before, after = (done.results[number] for number in (1, 2))
    assert before.metrics["new_accuracy"] == before.per_client[3]
    joined = [after.per_client[client] for client in range(4)]
    assert after.metrics["local_accuracy"] == pytest.approx(np.mean(joined))
    assert all(0 <= score <= 1 for score in joined)
    assert (done.assembly.data.train_histogram() > 0).sum(1).max() < 10
    assert len(prompted_model(done.assembly).classes) == 10


@pytest.mark.parametrize("method", TRAINED)
def test_one_client_alone_learns(run, method):
    done = run(method, small(method, **{"data.clients": 1, "rounds": 2}))
    assert_finite(done)
    losses = [result.metrics["train_loss"] for result in done.results[1:]]
    assert losses[-1] < losses[0]


def test_one_group_is_drawn_by_everybody(run):
    one = {"algorithm.groups": 1, "algorithm.selected": 1}
    done = run("fedmgp", small("fedmgp", **one))
    assert_finite(done)
    for result in done.results[1:]:
        for modality in ("text", "visual"):
            assert result.metrics[f"client/drawn_{modality}_0"] == 1
            assert f"client/drawn_{modality}_1" not in result.metrics


# --- saved prompts -------------------------------------------------------------------------------

AGAIN = """
import json, sys
from pathlib import Path
import torch
from fedray.evaluation.answers import shares
from fedray.results.analyses.extra_step import reopen
from fedray.runtime.groups import GroupRunner, Member

def accuracies(out):
    assembly, found = reopen(Path(out))
    method, device = assembly.algorithm, torch.device("cpu")
    server, everyone = assembly.server(device), range(assembly.experiment.data.clients)
    down = method.downlink(found.snapshot.server, everyone, server)
    runtime = GroupRunner(assembly, device)
    round_, states = found.snapshot.round, found.clients
    clients = [[Member(k, states.get(k), down[k])] for k in everyone]
    tests = [runtime.test("evaluate", round_, [[k]], clients[k]) for k in everyone]
    return [float(shares(test)[0, 0]) for test in tests]

print(json.dumps([accuracies(out) for out in sys.argv[1:]]))
"""


@pytest.mark.slow
def test_saved_prompts_have_the_same_accuracy_in_another_process(tiny_clip, tmp_path):
    methods = ("fedmgp", "promptfolio", "dp2fl")
    trained = [saved_prompts(method, tiny_clip, tmp_path / method) for method in methods]
    second = subprocess.run(
        [sys.executable, "-c", AGAIN, *(str(tmp_path / method) for method in methods)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(second.stdout.splitlines()[-1]) == trained


def saved_prompts(method, tiny_clip, out):
    """Train a method's prompts; the clients' accuracies at the end."""
    keys = [f"model.clip={{name: openclip, path: {tiny_clip}}}", "data.image_size=8", "rounds=2"]
    keys += ["data.clients=3", "data.samples=300", "data.partition={name: iid}", "lr=0.2"]
    if method == "dp2fl":
        keys.append("data.validation_fraction=0.2")
    experiment = "dp2fl_clip" if method == "dp2fl" else "fedmgp_clip"
    words = [experiment, f"algorithm={method}", *keys, "--executor", "serial", "--no-track"]
    words += ["--out", str(out)]
    assert fedray_run(words) == 0
    rounds = rounds_in(out)
    saved, first = (list(rounds[r]["per_client"].values()) for r in (-1, 0))
    assert saved != first  # so an initial prompt in place of a saved one would show
    return saved


def test_saved_visual_prompts_are_the_trained_ones(tiny_clip, tmp_path):
    keys = [f"model.clip={{name: openclip, path: {tiny_clip}}}", "data.image_size=8", "rounds=1"]
    keys += ["data.clients=2", "data.samples=100", "local_epochs=1"]
    words = ["fedmgp_clip", *keys, "--executor", "serial", "--no-track", "--out", str(tmp_path)]
    assert fedray_run(words) == 0
    assembly, found = reopen(Path(tmp_path))
    initial = initial_prompts(assembly)
    for state in found.clients.values():
        for name in ("text", "visual"):
            moved = (state.model[name] - initial[name]).flatten(1).norm(dim=1)
            assert (moved > 1e-4).all()  # every group, trained or written back
