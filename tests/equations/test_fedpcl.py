"""FedPCL's contrast by hand, and who has whose prototypes when."""

from __future__ import annotations

from math import exp, inf, log

import pytest
import torch
import torch.nn.functional as F
from tensors import CPU

from fedray.algorithms.prototypes.class_prototypes import LocalPrototypes
from fedray.algorithms.prototypes.fedpcl import PrototypeSets, prototype_contrast
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ClassifierOutput, Pixels
from fedray.runtime.clients import ClientRuntime

ALL = torch.tensor([True, True])


def test_the_contrast_by_hand():
    z, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    sets = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 1.0]]])
    one, two = (log(1 + exp(-cosine / 0.5)) for cosine in (1.0, 0.5))
    assert prototype_contrast(z, y, sets[:1], ALL, 0.5).item() == pytest.approx(one)
    assert prototype_contrast(z, y, sets, ALL, 0.5).item() == pytest.approx((one + two) / 2)


def test_each_set_and_image_keeps_its_own_label():
    random = torch.Generator().manual_seed(0)
    z = F.normalize(torch.randn(6, 4, generator=random), dim=1)
    sets, y = torch.randn(3, 5, 4, generator=random), torch.tensor([0, 4, 2, 2, 1, 3])
    each = [F.cross_entropy(z @ prototypes.T / 0.07, y) for prototypes in sets]
    found = prototype_contrast(z, y, sets, torch.ones(5, dtype=torch.bool), 0.07)
    torch.testing.assert_close(found, sum(each) / 3)


def test_a_class_without_prototype_is_in_no_sum_and_its_images_count_as_zero():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    sets, present = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]), [True, True, False]
    loss = prototype_contrast(z, torch.tensor([0, 2]), sets, torch.tensor(present), 1.0)
    assert loss.item() == pytest.approx(log(1 + exp(-1)) / 2)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient[1].tolist() == [0.0, 0.0]
    assert gradient[0].abs().min() > 0
    none = prototype_contrast(z, torch.tensor([0, 2]), sets, torch.zeros(3, dtype=torch.bool), 1.0)
    assert none.item() == 0


def test_the_loss_is_both_contrasts_of_unit_features(assemble):
    method = assemble("fedpcl", {"algorithm.tau": 0.5}).algorithm
    output = ClassifierOutput(torch.tensor([[5.0, 0.0]]), torch.zeros(1, 2))
    local = torch.tensor([[0.5, 0.0], [0.0, 1.0]])
    down = PrototypeSets(torch.eye(2), ALL, torch.stack([torch.eye(2), local]))
    batch = Batch(Pixels(torch.zeros(1)), torch.tensor([0]))
    loss = method.loss(output, batch, LocalContext(None, None, ClientState({}), down))
    one, two = (log(1 + exp(-cosine / 0.5)) for cosine in (1.0, 0.5))
    assert loss.item() == pytest.approx(one + (one + two) / 2)


def test_holders_make_the_mean_and_it_fills_the_gaps(assemble):
    assembly = assemble("fedpcl")
    method, server = assembly.algorithm, assembly.server(CPU)

    def upload(classes, values, counts):
        vectors = torch.tensor(values).unsqueeze(1).expand(-1, 16)
        return LocalPrototypes(torch.tensor(classes), vectors, torch.tensor(counts))

    def sent(state):
        down = method.downlink(state, range(4), server)
        assert len({id(payload) for payload in down.values()}) == 1
        return down[0].vectors[:, 0].tolist(), down[0].sets[:, :, 0].tolist()

    first = {0: upload([0, 1], [1.0, 2.0], [9, 1]), 3: upload([0, 1], [5.0, 4.0], [9, 50])}
    state = method.server_update(method.init_server(server), first, server)
    mean, sets = sent(state)
    assert mean[:3] == [3.0, 3.0, 0.0]  # holders count alike, whatever their samples
    assert [row[:3] for row in sets] == [[1, 2, 0], [3, 3, 0], [3, 3, 0], [5, 4, 0]]
    assert state["present"].nonzero().flatten().tolist() == [0, 1]

    state = method.server_update(state, {0: upload([1, 2], [6.0, 8.0], [1, 1])}, server)
    mean, sets = sent(state)
    assert mean[:3] == [3.0, 6.0, 8.0]
    # client 0 holds class 0 no longer: the gap is filled as for the others
    assert [row[:3] for row in sets] == [[3, 6, 8], [3, 6, 8], [3, 6, 8], [5, 4, 8]]


def test_a_single_client_has_twice_the_global_contrast(run):
    done = run("fedpcl", {"data.clients": 1})
    assembly = done.assembly
    down = assembly.algorithm.downlink(done.servers[-1], [0], assembly.server(CPU))[0]
    client = ClientRuntime(assembly, CPU).client(0, 3)
    model = client.load(done.models[0])
    model.eval()
    batch = next(client.batches(client.train))
    with torch.no_grad():
        output = model(batch.inputs)
        z = F.normalize(output.features, dim=1)
        local = LocalContext(client, model, ClientState({}), down)
        found = assembly.algorithm.loss(output, batch, local)
    l_g = prototype_contrast(z, batch.labels, down.vectors.unsqueeze(0), down.present, 0.07)
    l_p = prototype_contrast(z, batch.labels, down.sets, down.present, 0.07)
    assert torch.equal(l_p, l_g)
    torch.testing.assert_close(found, 2 * l_g)


def test_the_first_round_makes_prototypes_and_trains_nothing(run):
    one, two = run("fedpcl", {"rounds": 1}), run("fedpcl", {"rounds": 2})
    for client, model in one.models.items():
        models = one.assembly.models
        start = models.initial(models.architectures[client], client)
        assert all(torch.equal(model[name], tensor) for name, tensor in start.items())
        changed = two.models[client]
        assert any(not torch.equal(changed[name], tensor) for name, tensor in start.items())
    assert "train_loss" not in two.results[1].metrics
    assert "train_loss" in two.results[2].metrics


def test_clients_keep_the_mean_unit_features_of_their_trained_model(run):
    done = run("fedpcl", {"model.group": "cnn3"})
    assembly, state = done.assembly, done.servers[-1]
    runtime = ClientRuntime(assembly, CPU)
    for client, memory in done.memories.items():
        context = runtime.client(client, 2)
        model = context.load(done.models[client]).eval()
        images, labels = context.train.tensors(CPU)
        with torch.no_grad():
            z = F.normalize(model(Pixels(images.float() * (2 / 255) - 1)).features, dim=1)
        assert memory["present"].nonzero().flatten().tolist() == sorted(set(labels.tolist()))
        for c in set(labels.tolist()):
            torch.testing.assert_close(memory["vectors"][c], z[labels == c].mean(0))
        assert torch.equal(state["held"][client], memory["present"])
        assert torch.equal(state["sets"][client], memory["vectors"])


def test_predictions_are_the_nearest_own_prototype(assemble):
    method = assemble("fedpcl").algorithm
    features = torch.tensor([[3.0, 4.0], [-2.0, 0.0]])
    output = ClassifierOutput(features, features)
    memory = {
        "vectors": torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.5]]),
        "present": torch.tensor([True, False, True]),
    }
    found = method.predict(output, LocalContext(None, None, ClientState({}, memory), None))
    torch.testing.assert_close(found, torch.tensor([[0.6, -inf, 0.4], [-1.0, -inf, 0.0]]))
    newcomer = LocalContext(None, None, ClientState({}), None)
    assert method.predict(output, newcomer).tolist() == [[0.0] * 10] * 2
