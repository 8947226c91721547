"""FedBN: what stays and what travels."""

from __future__ import annotations

import torch
from tensors import same

from fedray.models import normalisation_tensors, skeleton, tensor_names

SHAPE = {"channels": 3, "image_size": 32, "num_classes": 10, "feature_dim": 16}


def test_shortcuts_have_normalisation_too():
    model = skeleton("resnet18", **SHAPE)
    names = normalisation_tensors(model)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 20
    assert len(names) == 5 * len(norms)
    assert any("shortcut" in name for name in names)


def test_normalisation_never_leaves_a_client_and_the_rest_is_common(run):
    done = run("fedbn", {"model.group": "cnn3", "rounds": 2})
    model = done.assembly.server(torch.device("cpu")).model
    norms = normalisation_tensors(model)
    assert norms
    for state in done.servers:
        assert set(state["model"]) == tensor_names(model) - norms
    for weights in done.models.values():
        assert set(weights) == norms
    key = next(name for name in norms if name.endswith("running_mean"))
    values = {tuple(weights[key].tolist()) for weights in done.models.values()}
    assert len(values) == len(done.models)
    sizes = sum(p.numel() for p in done.servers[0]["model"].values())
    assert done.results[1].up.params == {"weights": 4 * sizes, "statistics": 4}
    assert done.results[1].down.params == {"weights": 4 * sizes}


def test_without_normalisation_it_is_fedavg_bit_for_bit(run):
    assert not normalisation_tensors(skeleton("cnn2", **SHAPE))
    changes = {"model.group": "cnn2", "rounds": 2}
    bn, plain = run("fedbn", changes), run("fedavg", changes)
    assert same(bn.servers[-1]["model"], plain.servers[-1]["model"])
    assert bn.results[-1].per_client == plain.results[-1].per_client


def test_there_is_no_global_accuracy(run):
    bn = run("fedbn", {"model.group": "cnn3", "rounds": 1})
    plain = run("fedavg", {"model.group": "cnn3", "rounds": 1})
    assert "global_accuracy" not in bn.results[-1].metrics
    assert "global_accuracy" in plain.results[-1].metrics
