"""FedTSP with one global model: FedAvg and FedTSP at once, and what travels."""

from __future__ import annotations

import pytest
import torch

from fedray.algorithms.fedtsp import semantic_prototype_loss
from fedray.algorithms.fedtsp_global import TextedModel
from fedray.client import Batch, ClientState
from fedray.models import ClassifierOutput

ONE_KIND = {"model.group": "cnn3"}
MILD = {"algorithm.lambda": 1, "algorithm.tau": 0.1}
C, D, N = 10, 16, 4


def test_the_loss_by_hand(assemble):
    algorithm = assemble("fedtsp_global", {**ONE_KIND, "algorithm.lambda": 2}).algorithm
    features, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
    model = lambda images: ClassifierOutput(features, torch.zeros(1, 2))  # noqa: E731
    down = TextedModel(weights={}, buffers={}, vectors=torch.eye(2), tau=0.5)
    found = algorithm.local_loss(model, Batch(features, labels), down, ClientState({}))
    assert found.item() == pytest.approx(0.693147 + 2 * 0.513015, abs=1e-5)
    assert semantic_prototype_loss(features, labels, torch.eye(2), 0.5).item() == pytest.approx(
        0.513015, abs=1e-6
    )


def test_lambda_0_is_fedavg_bit_for_bit(run):
    changes = {**ONE_KIND, "rounds": 3, "participation": 0.5, "finetune_epochs": 1}
    plain = run("fedavg", changes)
    free = run("fedtsp_global", {**changes, "algorithm.lambda": 0})
    held = run("fedtsp_global", {**changes, **MILD})
    for round_, weights in enumerate(plain.servers):
        assert all(torch.equal(free.servers[round_][name], weights[name]) for name in weights)
    assert not torch.equal(held.servers[1]["head.weight"], plain.servers[1]["head.weight"])
    ours, theirs = free.results[-1].metrics, plain.results[-1].metrics
    for name in ("global_accuracy", "finetuned_accuracy", "finetuned_accuracy_best"):
        assert ours[name] == theirs[name]


@pytest.mark.parametrize("order", ["paper", "code"])
def test_prompts_first_learn_from_the_untrained_global_model(run, order):
    changes = {"model.group": "cnn2", **MILD, "rounds": 1, "algorithm.init_order": order}
    done = run("fedtsp_global", {**changes, "model.init": "independent"})
    first = done.results[0]
    whole = sum(done.servers[0][name].numel() for name in done.assembly.initial("cnn2"))
    if order == "code":
        assert first.up.params == first.down.params == {}
        assert not done.servers[0]["present"].any()
    else:
        assert first.down.params == {"weights": N * whole}
        assert done.servers[0]["present"].any()
        assert not torch.equal(done.servers[0]["vectors"], done.servers[0]["first"])
    assert not torch.equal(done.servers[1]["vectors"], done.servers[0]["vectors"])


def test_without_prompts_the_text_stays(run):
    done = run("fedtsp_global", {**ONE_KIND, **MILD, "algorithm.prompt_length": 0})
    assert done.results[0].up.params == {}
    assert torch.equal(done.servers[-1]["vectors"], done.servers[0]["vectors"])
    assert done.servers[-1]["present"].any()


def test_models_and_prototypes_travel_and_clients_keep_nothing(run):
    done, plain = run("fedtsp_global", {**ONE_KIND, **MILD}), run("fedavg", ONE_KIND)
    labels = done.assembly.data.images.labels
    held = sum(len(set(labels[own].tolist())) for own in done.assembly.data.train)
    for ours, fedavgs in zip(done.results[1:], plain.results[1:], strict=True):
        assert ours.up.params["weights"] == fedavgs.up.params["weights"]
        assert ours.up.params["prototypes"] == held * D
        assert ours.down.params == {
            **fedavgs.down.params,
            "prototypes": N * C * D,
            "statistics": fedavgs.down.params["statistics"] + N,  # tau
        }
    assert all(model == {} for model in done.models.values())
    assert {"global_accuracy", "retrieval_top1"} <= set(done.results[-1].metrics)


def test_it_learns_and_its_fine_tuned_form_is_measured(run):
    changes = {**ONE_KIND, **MILD, "rounds": 5, "local_epochs": 2, "momentum": 0.9}
    done = run("fedtsp_global", {**changes, "finetune_epochs": 3, "data.partition.alpha": 0.1})
    first, last = done.results[0].metrics, done.results[-1].metrics
    assert last["global_accuracy"] > first["global_accuracy"] + 0.2
    assert last["finetuned_accuracy_best"] > last["local_accuracy"]
