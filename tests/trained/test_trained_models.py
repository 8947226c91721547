"""Models that runs have kept answer as in the run: in another process, without the data."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from plugged import METHOD
from safetensors.torch import load_file

import fedray
from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import UserError
from fedray.config.plugins import use
from fedray.core import algorithms
from fedray.runtime import assembly as assemblies
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.storage.run import Costs, Round
from fedray.storage.run_folder import RunFolder, RunWriter
from fedray.storage.states import Commit, StateStore, Which, kept_models, latest_round
from fedray.trained import open_models

CPU = torch.device("cpu")
Shares: TypeAlias = dict[int, float]
Labels: TypeAlias = Mapping[int, np.ndarray]
PROMPTS = {"lr": 0.2, "algorithm.length": 2}
ONE = {"model.group": "mlp"}
"""All clients have one architecture."""
FAMILIES = {
    "fedavg": ONE,
    "fedbn": {"model.group": "cnn3"},
    "fedproto": {},
    "fedpcl": {},
    "fedtsp": {},
    "fedglcl": ONE,
    "fedkd": {},
    "fedmgp": {"lr": 0.2},
    "dp2fl": {**PROMPTS, "data.validation_fraction": 0.2},
}
"""One method of each family, and those that classify with more than a model."""

ANSWERS = """
import json, sys
from pathlib import Path

import numpy as np

import fedray

found = {}
for folder in map(Path, sys.argv[1:]):
    shown, models = np.load(folder / "shown.npz"), fedray.load(folder).models()
    found[folder.name] = {
        client: models.model(client).predict(shown[f"images{client}"]).labels.tolist()
        for client in range(len(models))
    }
print("FOUND " + json.dumps(found))
"""


def session(assembly: Assembly, out: Path) -> Session:
    """Of the same experiment and data, in this process."""
    return Session(assembly.experiment, out, lambda parts: SerialExecutor(parts, CPU))


def keep_shown(assembly: Assembly, out: Path) -> dict[int, np.ndarray]:
    """Put every client's test images beside its run; their labels."""
    data = assembly.data
    shown = {f"images{c}": np.array(data.images.images[test]) for c, test in enumerate(data.test)}
    np.savez(out / "shown.npz", **shown)
    return {client: data.images.labels[test] for client, test in enumerate(data.test)}


def accuracies(out: Path, which: Which, shown: Mapping[str, np.ndarray], labels: Labels) -> Shares:
    """Each client's accuracy by its loaded model, on what it was tested on."""
    models = open_models(out, which)
    return {
        client: float(
            np.mean(models.model(client).predict(shown[f"images{client}"]).labels.numpy() == own)
        )
        for client, own in labels.items()
    }


def of_the_run(out: Path, round_: int) -> Shares:
    """Each client's accuracy in a round of the run."""
    return dict(RunFolder(out).read().rounds[round_].per_client)


@pytest.mark.slow
def test_a_new_process_gives_the_accuracies_of_the_run(assemble, tmp_path):
    labels = {}
    for method, changes in FAMILIES.items():
        assembly, out = assemble(method, changes), tmp_path / method
        list(session(assembly, out).rounds())
        labels[method] = keep_shown(assembly, out)
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, *(str(tmp_path / method) for method in FAMILIES)],
        env={**os.environ, "FEDRAY_DATA": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.split("FOUND ")[1])
    for method in FAMILIES:
        run = RunFolder(tmp_path / method).read()
        scores = next(r.per_client for r in run.rounds if r.round == run.best.round)
        for client, own in labels[method].items():
            accuracy = float(np.mean(np.array(answers[method][str(client)]) == own))
            assert accuracy == pytest.approx(scores[client], abs=1e-12), (method, client)


def small(method: str) -> dict[str, Any]:
    """A small experiment of any method, in which clients sit out, and have running statistics."""
    changes: dict[str, Any] = {"participation": 0.5}
    requires = algorithms.get(method).requires
    if not requires.prompts:
        return {**changes, "model.group": "cnn3"}
    changes |= {"lr": 0.2, "data.samples": 160}
    if "length" in algorithms.get(method).model_fields:
        changes["algorithm.length"] = 2
    if method.endswith("pfedme"):
        changes["algorithm.eta"] = 0.05
    return {**changes, "data.validation_fraction": 0.2} if requires.validation else changes


def served(method: str) -> tuple[Any, ...]:
    """What a method makes a client's model of, and how that predicts."""
    found, names = (
        algorithms.get(method),
        ("begin", "predict", "init_client", "sized_model"),
    )
    return (*(getattr(found, name, None) for name in names), found.requires.head)


OTHERS = [name for name in algorithms.names() if name not in (*FAMILIES, "fedconcat")]
NEW = {served(name): name for name in reversed(OTHERS) if served(name) not in map(served, FAMILIES)}
"""The first of the methods that serve a model in one way, where none of the families does."""


@pytest.mark.parametrize(
    "method",
    [
        name if name in NEW.values() else pytest.param(name, marks=pytest.mark.long)
        for name in OTHERS
    ],
)
def test_every_methods_models_give_the_accuracies_of_the_run(
    assemble, tmp_path, monkeypatch, method
):
    assembly = assemble(method, small(method))
    list(session(assembly, tmp_path).rounds())
    labels, shown = keep_shown(assembly, tmp_path), np.load(tmp_path / "shown.npz")
    monkeypatch.setattr(assemblies, "load_data", lambda _: pytest.fail("the images were read"))
    for which in metas(tmp_path):
        round_ = open_models(tmp_path, which).round
        assert accuracies(tmp_path, which, shown, labels) == of_the_run(tmp_path, round_)


def test_fedconcats_clusters_and_its_concatenated_model_are_served(assemble, tmp_path, monkeypatch):
    choose_round(1, monkeypatch)  # a round of the clusters
    assembly = assemble("fedconcat", ONE)
    list(session(assembly, tmp_path).rounds())
    labels, shown = keep_shown(assembly, tmp_path), np.load(tmp_path / "shown.npz")
    for which, round_ in (("best", 1), ("last", 2)):
        assert accuracies(tmp_path, which, shown, labels) == of_the_run(tmp_path, round_)


@pytest.fixture
def trained(assemble, tmp_path):
    """`trained(method, changes)`: the folder of a run in this process."""

    def trained(method="fedavg", changes=None):
        changes = {**ONE, **(changes or {})} if method == "fedavg" else changes or {}
        list(session(assemble(method, changes), tmp_path / "run").rounds())
        return tmp_path / "run"

    return trained


def kept_of(out: Path) -> dict[Which, Commit]:
    folder = RunFolder(out)
    return kept_models(folder, folder.read())


def metas(out: Path) -> dict[str, int]:
    """Which models are kept, and of which rounds."""
    return {which: models.facts["round"] for which, models in kept_of(out).items()}


def choose_round(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a round be the best, whatever the numbers are."""
    append = RunWriter.append

    def appended(self: RunWriter, done: Round, costs: Costs) -> None:
        metrics = {**done.metrics, "local_accuracy": float(done.round == number)}
        append(self, dataclasses.replace(done, metrics=metrics), costs)

    monkeypatch.setattr(RunWriter, "append", appended)


def test_the_best_round_and_the_last_are_kept(trained, monkeypatch):
    choose_round(1, monkeypatch)
    out = trained("local", {"rounds": 3})
    assert metas(out) == {"best": 1, "last": 3}
    best, last = open_models(out), open_models(out, "last")
    assert (best.round, last.round) == (1, 3)
    assert best.chosen == "best on test"
    weights = [each.model(0).state_dict()["head.weight"] for each in (best, last)]
    assert not torch.equal(*weights)


def test_a_last_round_that_is_the_best_is_kept_once(trained, monkeypatch):
    choose_round(2, monkeypatch)
    out = trained("local", {"rounds": 2})
    assert metas(out) == {"best": 2}
    assert open_models(out, "last").round == 2


def test_without_images_that_choose_the_last_models_are_kept(trained):
    out = trained("fedavg", {"report.select": "validation"})
    assert metas(out) == {"last": 2}
    assert open_models(out).chosen == ""
    with pytest.raises(UserError, match="no models of the best round; it has those of"):
        open_models(out, "best")


def test_a_run_that_goes_on_keeps_what_an_undisturbed_one_keeps(assemble, tmp_path):
    changes = {"rounds": 4, "lr": 1.0}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    list(session(assemble("local", changes), whole).rounds())
    rounds = session(assemble("local", changes), parts).rounds()
    assert [next(rounds).round for _ in range(3)] == [0, 1, 2]
    rounds.close()
    list(session(assemble("local", changes), parts).rounds())
    assert metas(parts) == metas(whole)
    for which in metas(whole):
        for client in range(4):
            ours, theirs = (open_models(out, which).model(client) for out in (parts, whole))
            mine, others = ours.state_dict(), theirs.state_dict()
            assert all(torch.equal(mine[name], others[name]) for name in mine)


@pytest.mark.parametrize("every", [0, 2])
def test_a_best_round_between_checkpoints_is_kept(trained, monkeypatch, every):
    choose_round(1, monkeypatch)
    out = trained("local", {"rounds": 3, "checkpoint_every": every})
    assert metas(out) == {"best": 1, "last": 3}
    assert latest_round(out / "states") == 3


def test_kept_models_outlast_a_checkpoint_that_is_cleared(trained, monkeypatch):
    choose_round(1, monkeypatch)
    out = trained("local", {"rounds": 3})
    weights = open_models(out, "best").model(0).state_dict()
    StateStore(out / "states").clear()
    assert latest_round(out / "states") is None
    assert metas(out) == {"best": 1, "last": 3}
    again = open_models(out, "best").model(0).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())


def test_a_global_model_is_stored_once_however_many_clients(trained):
    pin = kept_of(trained("fedavg"))["best"].facts
    assert (len(pin["downloads"]), pin["of_client"]) == (1, [0] * 4)


@pytest.mark.parametrize("keep", ["none", "last"])
def test_less_is_kept_where_less_is_asked_for(trained, keep):
    assert metas(trained("local", {"keep.models": keep})) == ({} if keep == "none" else {"last": 2})


def test_what_is_kept_changes_neither_numbers_nor_identity(assemble, tmp_path):
    runs = {}
    for keep in ("none", "best"):
        assembly = assemble("fedproto", {"keep.models": keep})
        runs[keep] = [
            (done.per_client, done.metrics) for done in session(assembly, tmp_path / keep).rounds()
        ]
    assert runs["none"] == runs["best"]
    identities = [RunFolder(tmp_path / keep).read().info.identity for keep in runs]
    assert identities[0] == identities[1]


def test_damage_is_said(trained):
    out = trained()
    file = out / "states" / "best.json"
    for name in kept_of(out)["best"].files:
        content = (out / "states" / name).read_bytes()
        (out / "states" / name).write_bytes(content[:-1] + b"!")
    with pytest.raises(UserError, match="is damaged"):
        open_models(out).model()
    file.write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        open_models(out)


def test_a_plug_ins_model_is_used_by_its_kept_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(METHOD)
    words = ["algorithm=scaled", "rounds=1", "data.clients=2", "report.select=test"]
    experiment = resolve("fedavg_digits", [*words, "data.samples=200"], ["mine.py"])
    out = tmp_path / "run"
    list(Session(experiment, out, lambda parts: SerialExecutor(parts, CPU)).rounds())
    Path("mine.py").unlink()
    use(())
    model = fedray.load(out).model()
    use(())
    assert model.owner.assembly.algorithm.title == "Scaled"
    assert model.predict(np.zeros((1, 1, 8, 8), np.uint8)).logits.shape == (1, 10)
    use(())


@pytest.fixture
def peculiar():
    """A method whose predictions depend on more than a model."""

    @core.method("peculiar", "Peculiar", "-")
    class Peculiar(FedAvg):
        by: str = "round"

        def begin(self, client, state, down):
            local = super().begin(client, state, down)
            if self.by == "draws":
                weight = local.model.head.weight.data
                weight.copy_(torch.randn(weight.shape))
            return local

        def predict(self, output, local):
            if self.by == "images":
                return output.logits.masked_fill(local.client.class_counts == 0, -torch.inf)
            return output.logits if local.client.round == 0 else -output.logits

    return Peculiar.name


@pytest.mark.parametrize("by", ["round", "draws"])
def test_a_model_predicts_as_it_was_tested(assemble, tmp_path, peculiar, by):
    assembly = assemble(peculiar, {**ONE, "algorithm.by": by})
    list(session(assembly, tmp_path).rounds())
    labels, shown = keep_shown(assembly, tmp_path), np.load(tmp_path / "shown.npz")
    for which, round_ in metas(tmp_path).items():
        assert accuracies(tmp_path, which, shown, labels) == of_the_run(tmp_path, round_)


def test_a_model_that_needs_training_images_is_refused(trained, peculiar):
    model = open_models(trained(peculiar, {**ONE, "algorithm.by": "images"})).model(1)
    with pytest.raises(UserError, match=r"client 1 .* without its training images, which peculiar"):
        model.predict(np.zeros((1, 1, 8, 8), np.uint8))


def test_clients_have_their_own_models_or_share_one(trained):
    shared = open_models(trained("fedavg"))
    assert shared.is_global
    assert len(shared) == 4
    assert torch.equal(
        shared.model().state_dict()["head.bias"], shared.model(3).state_dict()["head.bias"]
    )


def test_whose_model_is_asked_where_each_has_its_own(trained):
    models = open_models(trained("local"))
    with pytest.raises(UserError, match="a model of its own; pass a client from 0 to 3"):
        models.model()
    with pytest.raises(UserError, match="has the clients 0 to 3, not 4"):
        models.model(4)


def test_an_export_has_the_weights(trained, tmp_path):
    out = trained("fedglcl", ONE)
    model = open_models(out).model(1)
    place = model.export(tmp_path / "exported")
    stored = load_file(place / "model.safetensors")
    named = model.state_dict()
    assert stored.keys() == named.keys() | {"classifier.memory.text"}
    assert all(torch.equal(stored[name], tensor) for name, tensor in named.items())
    with pytest.raises(UserError, match="is there already"):
        model.export(place)


@pytest.mark.parametrize(
    ("method", "read"),
    [("fedetf", {"memory.simplex", "extra.scale"}), ("fedavg", set())],
)
def test_an_export_has_what_predictions_read_beside_the_model(trained, method, read):
    assert open_models(trained(method, ONE)).model().classifier.keys() == read


def test_of_a_prompt_method_the_prompts_are_exported(trained, tmp_path):
    model = open_models(trained("fedmgp", {"lr": 0.2})).model(0)
    place = model.export(tmp_path / "exported")
    assert sum(tensor.numel() for tensor in load_file(place / "model.safetensors").values()) < 5000


def test_every_pixel_has_a_class_where_the_model_predicts_pixels(tmp_path):
    words = ["rounds=1", "local_epochs=1", "data.clients=4", "report.select=test"]
    experiment = resolve("fedavg_shapes", [*words, "data.samples=60", "data.image_size=16"])
    out = tmp_path / "run"
    list(Session(experiment, out, lambda parts: SerialExecutor(parts, CPU)).rounds())
    model = open_models(out).model()
    found = model.predict(np.zeros((3, 3, 16, 16), np.uint8))
    assert found.labels.shape == (3, 16, 16)
    assert model.predict([]).logits.shape == (0, 16, 16, 5)


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedmgp"])
def test_no_images_have_no_predictions(trained, method):
    model = open_models(trained(method, {"lr": 0.2})).model(0)
    for nothing in ([], np.zeros((0, 1, 8, 8), np.uint8), torch.zeros(0, 3, 8, 8)):
        found = model.predict(nothing)
        assert found.logits.shape == (0, 10)
        assert (found.names, list(found), len(found)) == ([], [], 0)
        assert found.labels.shape == (0,)
