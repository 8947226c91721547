"""FedBN: what stays and what travels."""

from __future__ import annotations

import torch

from fedray.models import build, normalisation_tensors, tensor_names

SHAPE = {"channels": 3, "image_size": 32, "num_classes": 10, "feature_dim": 16}


def test_shortcuts_have_normalisation_too():
    model = build("resnet18", **SHAPE)
    names = normalisation_tensors(model)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 20
    assert len(names) == 5 * len(norms)
    assert any("downsample" in name for name in names)


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
