"""FedPAC's statistics, its quadratic programme and its two phases, by hand and on whole runs."""

from __future__ import annotations

import pytest
import torch
from reference import ReferenceClient, initial_model, supervised
from tensors import CPU, gaussian, same

from fedray.algorithms.personalised.fedpac import (
    alignment_targets,
    head_bias,
    head_statistics,
    head_weights,
    simplex_minimum,
)
from fedray.algorithms.prototypes.class_prototypes import GlobalPrototypes
from fedray.data import FederatedData
from fedray.runtime.clients import ClientRuntime

BN = {"model.group": "cnn3"}


def gram(k, rank, seed):
    root = gaussian(k, rank, seed=seed).double()
    return root @ root.T


# --- statistics ----------------------------------------------------------------------------------


def test_statistics_by_hand():
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
    h, variance = head_statistics(z, torch.tensor([0, 0, 2, 2]), 3)
    assert h.tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.5]]
    assert variance == pytest.approx((7.5 - 1 - 2.25) / 4)


def test_statistics_are_the_sums_over_classes():
    z, y = gaussian(12, 5) + 2, torch.tensor([0] * 6 + [1] * 4 + [3] * 2)
    h, variance = head_statistics(z, y, 4)
    total = 0.0
    for c in (0, 1, 3):
        features, share = z[y == c], float((y == c).sum()) / 12
        total += share * float(features.square().sum(1).mean()) - share**2 * float(
            features.mean(0).square().sum()
        )
        torch.testing.assert_close(h[c], share * features.mean(0))
    assert variance == pytest.approx(total / 12, rel=1e-5)


def test_targets_are_the_servers_then_the_own_prototypes():
    h, labels = torch.tensor([[1.0, 1.0], [0.5, 0.0], [0.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    server = GlobalPrototypes(torch.full((3, 2), 7.0), torch.tensor([True, False, False]))
    targets = alignment_targets(server, h, labels)
    assert targets.vectors[:2].tolist() == [[7.0, 7.0], [2.0, 0.0]]
    assert targets.present.tolist() == [True, True, False]
    none = GlobalPrototypes(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))
    assert not alignment_targets(none, h, labels).present.any()


# --- the weights of the heads --------------------------------------------------------------------


@pytest.mark.parametrize("client", [0, 2])
def test_the_bias_is_the_gram_matrix_of_differences(client):
    means = gaussian(5, 3, 4) + 3
    found = head_bias(means, client)
    for j in range(5):
        for k in range(5):
            product = ((means[client] - means[j]) * (means[client] - means[k])).sum()
            assert found[j, k].item() == pytest.approx(product.item(), abs=1e-4)
    assert found[client].tolist() == found[:, client].tolist() == [0.0] * 5
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-9


def test_the_simplex_minimum_by_hand():
    def found(rows):
        return simplex_minimum(torch.tensor(rows)).tolist()

    assert found([[5.0]]) == [1.0]
    assert found([[1.0, 0.0], [0.0, 3.0]]) == pytest.approx([0.75, 0.25])
    assert found([[1.0, 2.0], [2.0, 5.0]]) == pytest.approx([1.0, 0.0])  # on the border
    assert found([[1.0, 0.5], [0.5, 1.0]]) == pytest.approx([0.5, 0.5])
    assert sum(found([[0.0, 0.0], [0.0, 0.0]])) == 1.0


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize(("k", "rank"), [(2, 2), (6, 3), (12, 12), (40, 60)])
def test_the_simplex_minimum_is_optimal(k, rank, scale):
    matrix = gram(k, rank, seed=k) * scale
    a = simplex_minimum(matrix)
    assert float(a.min()) >= 0
    assert float(a.sum()) == pytest.approx(1.0)
    # Karush, Kuhn, Tucker: no vertex goes down, and all that is used is level
    slope = matrix @ a
    value = float(a @ slope)
    tolerance = 1e-9 * float(matrix.trace())
    assert float(slope.min()) >= value - tolerance
    torch.testing.assert_close(
        slope[a > 1e-8], torch.full_like(slope[a > 1e-8], value), rtol=0, atol=tolerance
    )


def test_a_foreign_head_weighs_less_the_farther_it_is():
    means = torch.zeros(2, 1, 1)
    means[1] = 1.0
    # V + D = diag(1, 1 + 1)
    weights = head_weights(means, torch.ones(2), 0, 0.0)
    assert weights.tolist() == pytest.approx([2 / 3, 1 / 3])
    alike = head_weights(torch.zeros(3, 1, 1), torch.tensor([1.0, 2.0, 4.0]), 1, 0.0)
    assert alike.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])  # 1/V where D = 0


def test_small_weights_go_and_the_others_fill_up():
    alike, variances = torch.zeros(3, 1, 1), torch.tensor([1.0, 1.0, 8.0])
    assert head_weights(alike, variances, 0, 0.0).tolist() == pytest.approx(
        [8 / 17, 8 / 17, 1 / 17]
    )
    assert head_weights(alike, variances, 0, 0.1).tolist() == pytest.approx([0.5, 0.5, 0.0])
    # all are small: all stay
    assert head_weights(alike, torch.ones(3), 0, 0.5).tolist() == pytest.approx([1 / 3] * 3)


# --- runs ----------------------------------------------------------------------------------------


def test_one_client_is_head_then_extractor_in_turn_bit_for_bit(run):
    changes = {**BN, "data.clients": 1, "rounds": 2, "local_epochs": 2, "optimizer.momentum": 0.9}
    done = run("fedpac", {**changes, "lr": 0.02, "algorithm.lambda": 0, "algorithm.head_lr": 0.3})
    client, model = ReferenceClient(done.assembly), initial_model(done.assembly, "cnn3")

    def train(part, round_, epochs, lr):
        sgd = torch.optim.SGD(part.parameters(), lr, momentum=0.9)
        client.train(round_, supervised(model), sgd, epochs)

    for round_ in (1, 2):
        model.eval()
        train(model.head, round_, 1, 0.3)
        model.train()
        train(model.extractor, round_, 2, 0.02)
        found = {**done.servers[round_]["model"], **(done.models[0] if round_ == 2 else {})}
        for name, tensor in model.state_dict().items():
            if name in found:
                assert torch.equal(found[name], tensor), (round_, name)
    assert set(done.models[0]) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_everybody_is_tested_with_its_own_mixture_of_the_uploaded_heads(run, participation):
    done = run("fedpac", {**BN, "rounds": 1, "participation": participation})
    assembly, participants = done.assembly, done.results[1].participants
    method, runtime = assembly.algorithm, ClientRuntime(assembly, CPU)
    down = method.downlink(done.servers[0], participants, assembly.server(CPU))
    uploads = [runtime.step("client_update", 1, i, None, down[i])[0].uplink for i in participants]
    means = torch.stack([upload.means for upload in uploads])
    variances = torch.tensor([upload.variance for upload in uploads])
    assert len(uploads) == 4 * participation
    for place, client in enumerate(participants):
        weights = head_weights(means, variances, place, 0.001)
        for name in ("head.weight", "head.bias"):
            mixture = sum(float(w) * u.head[name] for w, u in zip(weights, uploads, strict=True))
            torch.testing.assert_close(done.models[client][name], mixture)
            assert not torch.equal(done.models[client][name], uploads[place].head[name])
    heads = {tuple(done.models[i]["head.bias"].tolist()) for i in participants}
    assert len(heads) == len(participants)


def test_identical_clients_have_identical_heads(run, assemble):
    changes = {**BN, "data.clients": 2, "shuffle": False}
    data = assemble("fedpac", changes).data
    twins = FederatedData(data.images, (data.train[0],) * 2, (data.test[0],) * 2)
    pair = run("fedpac", changes, data=twins)
    for name, head in pair.models[0].items():
        torch.testing.assert_close(pair.models[1][name], head, rtol=1e-5, atol=1e-7)


def test_the_alignment_begins_with_the_second_round(run):
    free, held = (run("fedpac", {**BN, "algorithm.lambda": weight}) for weight in (0, 1))
    key = next(name for name in free.servers[0]["model"] if name.endswith("weight"))
    free_of, held_by = ([state["model"][key] for state in done.servers] for done in (free, held))
    assert torch.equal(free_of[1], held_by[1])
    assert not torch.equal(free_of[2], held_by[2])


def test_without_head_epochs_the_heads_stay_at_their_common_start(run):
    done = run("fedpac", {**BN, "algorithm.head_epochs": 0})
    initial = done.assembly.models.initial("cnn3")
    for model in done.models.values():
        torch.testing.assert_close(model["head.weight"], initial["head.weight"])


def test_lost_uploads_change_nothing(run):
    done = run("fedpac", {**BN, "faults.drop": 1.0})
    first, last = done.servers[0], done.servers[-1]
    assert same(last["model"], first["model"])
    assert all(torch.equal(last[part], first[part]) for part in ("vectors", "present"))
    assert not done.memories
