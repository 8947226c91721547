"""FedMRL by hand: two heads on one feature, a projector that stays, a shared small model."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from tensors import CPU, same

from fedray.algorithms.distillation.fedmrl import matryoshka_loss
from fedray.core import ClientState
from fedray.errors import UserError
from fedray.runtime.clients import ClientRuntime


def test_the_loss_of_both_heads_by_hand():
    logits, small = torch.tensor([[log(3), 0.0]]), torch.tensor([[0.0, 1.0]])
    expected = log(4 / 3) + log(1 + exp(1))
    assert float(matryoshka_loss(logits, small, torch.tensor([0]))) == pytest.approx(expected)


def test_the_small_models_width(assemble):
    assert assemble("fedmrl", {"model.feature_dim": 512}).algorithm.auxiliary_dim() == 128
    assert assemble("fedmrl", {"algorithm.small_dim": 16}).algorithm.auxiliary_dim() == 16
    assembly = assemble("fedmrl", {"algorithm.small_dim": 17})
    with pytest.raises(UserError, match=r"small_dim=17 .* model.feature_dim=16.* at most 16"):
        assembly.server(CPU).initial("mlp")


def joint(model):
    return {name: tensor for name, tensor in model.items() if name.startswith("joint.")}


def test_the_projector_stays_with_its_client_or_is_forgotten(run):
    fixed, bug = (run("fedmrl", {"algorithm.official_bug": b}) for b in (False, True))
    for client in range(4):
        first = fixed.assembly.models.initial(fixed.assembly.models.architectures[client], client)
        assert not any(torch.equal(t, first[n]) for n, t in joint(fixed.models[client]).items())
        assert same(joint(bug.models[client]), joint(first))
        assert not torch.equal(bug.models[client]["head.weight"], first["head.weight"])
    assert same(fixed.servers[1]["model"], bug.servers[1]["model"])  # both began the same
    assert not same(fixed.servers[2]["model"], bug.servers[2]["model"])
    assert fixed.results[0].per_client == bug.results[0].per_client


def test_clients_predict_with_the_servers_small_model(run):
    done = run("fedmrl", {"rounds": 1, "model.group": "cnn3"})
    method, server = done.assembly.algorithm, done.assembly.server(CPU)
    down = method.downlink(done.servers[1], range(4), server)
    runtime = ClientRuntime(done.assembly, CPU)
    client = runtime.client(2, 1)
    local = method.begin(client, ClientState(done.models[2]), down[2])
    local.model.eval()
    small = {f"auxiliary.{n}": t for n, t in local.model.auxiliary.state_dict().items()}
    assert same(small, done.servers[1]["model"])
    hits = [
        (method.predict(local.model(batch.inputs), local).argmax(1) == batch.labels).float()
        for batch in client.batches(runtime.held_out(2, 1).test)
    ]
    assert float(torch.cat(hits).mean()) == pytest.approx(done.results[1].per_client[2])
    # running statistics are means over the clients, too
    name = "auxiliary.extractor.backbone.1.running_mean"
    assert done.servers[1]["model"][name].any()
