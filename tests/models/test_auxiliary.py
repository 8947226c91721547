"""A small model beside the client's own: names, what is computed, where its weights come from."""

from __future__ import annotations

import torch
from tensors import CPU, same
from torch import nn

from fedray.models import (
    Pixels,
    WithAuxiliary,
    buffer_names,
    build,
    head_tensors,
)
from fedray.runtime.groups import GroupRunner

SHAPE = {"channels": 1, "image_size": 8, "num_classes": 10}


def classifier(architecture, seed, d=16):
    random = torch.Generator().manual_seed(seed)
    return build(architecture, **SHAPE, feature_dim=d, generator=random).eval()


def images(count=5):
    return Pixels(torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(9)))


def test_the_own_model_keeps_its_names_and_its_outputs():
    own, small = classifier("cnn2", 0), classifier("mlp", 1)
    names = {name for name, _ in own.named_parameters()}
    before, beside = own(images()), small(images())
    model = WithAuxiliary(own, small)
    found = model(images())
    assert torch.equal(found.features, before.features)
    assert torch.equal(found.logits, before.logits)
    assert torch.equal(found.auxiliary.logits, beside.logits)
    assert torch.equal(found.auxiliary.features, beside.features)
    others = {n for n, _ in model.named_parameters()} - names
    assert others == {f"auxiliary.{n}" for n, _ in small.named_parameters()}
    assert head_tensors(model) == {"head.weight", "head.bias"}


def test_parts_are_all_parameters_once():
    own, small = classifier("cnn3", 0), classifier("cnn3", 1)
    model = WithAuxiliary(own, small, nn.Linear(16, 16, bias=False))
    parts = model.parts()
    assert list(map(len, parts.values())) == [len(list(own.parameters()))] * 2 + [1]
    together = [id(parameter) for part in parts.values() for parameter in part]
    assert sorted(together) == sorted(id(parameter) for parameter in model.parameters())
    assert {n for n in buffer_names(model) if n.startswith("auxiliary.")}


def test_the_small_model_is_the_same_beside_every_architecture_and_that_of_fedavg(assemble):
    assembly = assemble("fedkd")
    assert assembly.models.architectures[:2] == ("mlp", "cnn2")
    state = torch.get_rng_state()
    beside = [assembly.models.initial(name) for name in ("mlp", "cnn2")]
    assert torch.equal(torch.get_rng_state(), state)
    small = [{n: t for n, t in m.items() if n.startswith("auxiliary.")} for m in beside]
    assert same(*small)
    alone = assemble("fedavg", {"model.group": "mlp"}).models.initial("mlp")
    assert same({n.removeprefix("auxiliary."): t for n, t in small[0].items()}, alone)
    local = assemble("local").models.initial("cnn2")
    assert same({n: beside[1][n] for n in local}, local)
    assert beside[1].keys() - local.keys() - small[0].keys() == {"joint.weight"}
    assert 0 < float(beside[1]["joint.weight"].abs().max()) <= 1 / 4


def test_a_client_has_one_model_of_zeros_for_both(assemble):
    client = GroupRunner(assemble("fedmrl"), CPU).client(1, 1)
    assert client.architecture == "cnn2"
    assert not any(tensor.any() for tensor in client.skeleton.tensors.values())
    assert client.skeleton.tensors["joint.weight"].shape == (16, 20)
    assert client.skeleton.tensors.keys() == client.initial().keys()
