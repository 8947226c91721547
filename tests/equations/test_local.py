"""Local is a bare training loop, and the common loop does what its configuration says."""

from __future__ import annotations

import pytest
import torch
from reference import ReferenceClient, supervised
from tensors import CPU

from fedray.core import ClientState, LocalContext, fit
from fedray.data import FederatedData
from fedray.runtime.clients import ClientRuntime


def bare_loop(assembly, client: int, rounds: int) -> dict[str, torch.Tensor]:
    """What a client's weights are after plain SGD on its images, in the client's own orders."""
    config = assembly.setting.training
    model = ClientRuntime(assembly, CPU).client(client, 0).skeleton.model
    architecture = assembly.models.architectures[client]
    model.load_state_dict(assembly.models.initial(architecture, client))
    model.train()
    momentum, decay = config.optimizer.params.momentum, config.optimizer.params.weight_decay
    order = {"size": config.batch_size, "shuffle": config.shuffle, "drop_last": config.drop_last}
    for round_ in range(1, rounds + 1):
        sgd = torch.optim.SGD(model.parameters(), config.lr, momentum, weight_decay=decay)
        reference = ReferenceClient(assembly, client)
        reference.train(round_, supervised(model), sgd, config.epochs, **order)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local_epochs": 2, "optimizer.momentum": 0.9, "optimizer.weight_decay": 0.01},
        {"shuffle": False, "drop_last": True, "batch_size": 7},
        {"model.group": "cnn3", "batch_size": 12},
    ],
)
def test_is_the_bare_loop_bit_for_bit(run, changes):
    done = run("local", changes)
    for client in range(4):
        expected = bare_loop(done.assembly, client, rounds=2)
        assert expected.keys() == done.models[client].keys()
        for name, tensor in expected.items():
            assert torch.equal(done.models[client][name], tensor), name


def test_every_local_epoch_counts(run):
    one, two = run("local", {"rounds": 1}), run("local", {"rounds": 1, "local_epochs": 2})
    assert not one.same_clients_as(two)


@pytest.mark.parametrize("count", [1, 16, 17, 33])
def test_every_image_is_seen_once_an_epoch_and_no_batch_has_one_left_over(assemble, count):
    data = assemble("local", {"data.clients": 1}).data
    few = FederatedData(data.images, (data.train[0][:count],), data.test)
    client = ClientRuntime(assemble("local", {"data.clients": 1}, few), CPU).client(0, 1)
    model, batches = client.load(client.initial()), []

    def loss(batch):
        batches.append(batch.inputs.values.flatten(1))
        return model(batch.inputs).logits.sum() * 0

    state = ClientState(client.initial())
    trained = fit(LocalContext(client, model, state, None), loss)
    assert trained.steps == len(batches)
    seen = torch.cat(batches)
    expected = torch.from_numpy(data.images.images[data.train[0][:count]]).flatten(1) * (2 / 255)
    assert sorted(seen.tolist()) == sorted((expected - 1).tolist())
    assert [len(batch) for batch in batches] == {1: [1], 16: [16], 17: [17], 33: [16, 17]}[count]
