"""DP2FL: the card's worked example, its edges, and the properties of both aggregations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from clips import CPU
from hypothesis import given, settings
from hypothesis import strategies as st
from prompting import initial_prompts, prompted_model

from fedray.algorithms.mean import weighted_sum
from fedray.algorithms.prompts.dp2fl import (
    DP2FL,
    data_weights,
    harm_factor,
    mean_loss,
    moved,
    neighbours,
    raw_weights,
    task_weights,
)
from fedray.core import ClientState, fit
from fedray.models import Pixels
from fedray.runtime.groups import GroupRunner

ALPHA, BETA = 1.2, 0.2
INITIAL = (1.0, 0.8, 0.6)
LOSSES = torch.tensor(
    [[0.70, 0.88, 0.80], [1.05, 0.84, 0.75], [1.15, 1.20, 0.66]], dtype=torch.float64
)
BEFORE = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [0, 2, 0, 0]], dtype=torch.float64)
TRAINED = torch.tensor([[0.3, 0.4, 0, 0], [1, 0, 0.5, 0], [0, 2, 0, 0.25]], dtype=torch.float64)
RAW = torch.tensor(
    [
        [0.600000, -0.044721, -0.074421],
        [-0.099228, -0.080000, -0.177778],
        [-0.122859, -0.065465, -0.240000],
    ],
    dtype=torch.float64,
)


def close(found, expected, tolerance=1e-6):
    expected = torch.as_tensor(expected, dtype=found.dtype)
    assert torch.allclose(found, expected, rtol=0, atol=tolerance), found


def column(k, losses=LOSSES, mode="bounded", initial=INITIAL):
    """W_d[:, k] of the worked example."""
    helpful, retained = neighbours(losses[:, k], initial[k], ALPHA)
    raw = raw_weights(losses[:, k], initial[k], TRAINED, BEFORE[k])
    return data_weights(raw, helpful, retained, BETA, mode)


def changed(i, k, loss):
    losses = LOSSES.clone()
    losses[i, k] = loss
    return losses


# --- the worked example --------------------------------------------------------------------------


def test_eq5_weights_of_the_task_prompts():
    close(task_weights(LOSSES), [0.351806, 0.335616, 0.312578])


def test_eq4_the_global_data_prompt():
    close(weighted_sum(task_weights(LOSSES), TRAINED), [0.441158, 0.765878, 0.167808, 0.078144])


def test_eq6_eq7_eq8_who_helps_and_who_is_retained():
    sets = [neighbours(LOSSES[:, k], INITIAL[k], ALPHA) for k in range(3)]
    assert [helpful.nonzero().flatten().tolist() for helpful, _ in sets] == [[0], [], []]
    assert [retained.nonzero().flatten().tolist() for _, retained in sets] == [[1, 2], [0, 1], [2]]


def test_eq8_a_loss_at_alpha_times_own_is_dropped_and_one_at_own_is_retained():
    losses = torch.tensor([1.0, 1.5, 1.4999, torch.nan, torch.inf], dtype=torch.float64)
    helpful, retained = neighbours(losses, 1.0, 1.5)
    assert not helpful.any()
    assert retained.tolist() == [True, False, True, False, False]


def test_eq11_raw_weights():
    for k in range(3):
        close(raw_weights(LOSSES[:, k], INITIAL[k], TRAINED, BEFORE[k]), RAW[k])


def test_eq14_gamma():
    helpful, retained = torch.tensor([True, False, False]), torch.tensor([False, True, True])
    for mode, expected in (("bounded", -2.687419), ("literal", -4.472136), ("zero", 0.0)):
        exact = raw_weights(LOSSES[:, 0], INITIAL[0], TRAINED, BEFORE[0])
        close(harm_factor(exact, helpful, retained, mode), expected)


@pytest.mark.parametrize(
    ("k", "mode", "expected"),
    [
        (0, "bounded", (0.652043, 0.130610, 0.217348)),
        (0, "literal", (0.529652, 0.176551, 0.293798)),
        (0, "zero", (1.0, 0.0, 0.0)),
        (1, "bounded", (0.089272, 0.110728, 0.0)),
        (1, "literal", (0.089272, 0.110728, 0.0)),
        (2, "bounded", (0.0, 0.0, 0.2)),
        (2, "literal", (0.0, 0.0, 0.2)),
    ],
)
def test_eq12_weights_of_the_data_prompts(k, mode, expected):
    close(column(k, mode=mode), expected)


@pytest.mark.parametrize(
    ("k", "mode", "expected"),
    [
        (0, "bounded", (0.326222, 0.695512, 0.065305, 0.054337)),
        (0, "literal", (0.335446, 0.799456, 0.088275, 0.073449)),
        (1, "bounded", (0.937510, 0.035709, 0.055364, 0.0)),
        (2, "bounded", (0.0, 2.0, 0.0, 0.05)),
    ],
)
def test_eq9_new_data_prompts(k, mode, expected):
    close(moved(BEFORE[k], TRAINED, column(k, mode=mode)), expected)


# --- the edges -----------------------------------------------------------------------------------


def test_edge_b_when_all_are_dropped_the_data_prompt_stays():
    weights = column(2, changed(2, 2, 0.90))
    assert weights.tolist() == [0, 0, 0]
    assert torch.equal(moved(BEFORE[2], TRAINED, weights), BEFORE[2])


def test_edge_c_a_tie_is_retained_with_weight_zero():
    tie = changed(1, 0, 1.00)
    close(column(0, tie), [0.75, 0, 0.25])
    close(column(0, tie, "literal"), [1, 0, 0])  # the guard; as printed: NaN


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([[0.7]], [1.0]),
        (torch.full((7, 7), 0.3), [1 / 7] * 7),
        (torch.zeros(4, 4), [0.25] * 4),
        (torch.full((2, 2), torch.inf), [0.5, 0.5]),
    ],
)
def test_eq5_edges(losses, expected):
    close(task_weights(torch.as_tensor(losses)), expected)


def test_a_client_with_losses_that_are_not_finite_has_no_weight():
    losses = torch.cat([LOSSES, torch.full((1, 3), torch.nan, dtype=torch.float64)])
    close(task_weights(losses), [*task_weights(LOSSES).tolist(), 0.0])
    for value in (torch.nan, torch.inf):
        weights = column(0, changed(2, 0, value))
        assert weights[2] == 0
        close(weights.sum(), 1.0)


def test_an_own_loss_of_zero_drops_everybody():
    assert column(0, initial=(0.0, 1, 1)).tolist() == [0, 0, 0]


def test_a_client_that_did_not_move_has_a_finite_weight():
    raw = raw_weights(torch.tensor([0.5, 1.0]), 1.0, torch.ones(2, 3), torch.ones(3))
    assert raw.isfinite().all()
    assert raw[1] == 0


def test_retained_clients_that_change_nothing_share_beta():
    losses = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64)
    helpful, retained = neighbours(losses, 1.0, ALPHA)
    raw = raw_weights(losses, 1.0, TRAINED, BEFORE[0])
    close(data_weights(raw, helpful, retained, BETA, "bounded"), [0.1, 0.1, 0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_prompts_of_weight_0_are_left_out_even_when_they_are_not_finite(value):
    diverged = TRAINED.clone()
    diverged[2] = value
    weights = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
    assert torch.equal(weighted_sum(weights, diverged), weighted_sum(weights, TRAINED))
    assert torch.equal(moved(BEFORE[0], diverged, weights), moved(BEFORE[0], TRAINED, weights))


def server_step(assemble):
    """The server's step, its state and the uploads of three clients."""
    assembly = assemble("dp2fl", SMALL)
    server = replace(assembly.server(CPU), round=1)
    method, nothing = assembly.algorithm, torch.zeros(0)
    validation = {name: {str(k): nothing for k in range(3)} for name in ("images", "labels")}
    state = {
        **method.init_server(server),
        "joined": torch.ones(3, dtype=torch.bool),
        "validation": validation,
        "version": torch.tensor(0),
        "given": {"receive_validation": torch.zeros(3, dtype=torch.int64)},
    }
    noise = torch.Generator().manual_seed(0)
    uplinks = {
        k: DP2FL.up(
            state["task"] + 0.1 * torch.randn(state["task"].shape, generator=noise),
            state["data"] + 0.1 * torch.randn(state["data"].shape, generator=noise),
            LOSSES[k].float(),
            INITIAL[k],
        )
        for k in range(3)
    }

    def step(state, uplinks):
        return {**state, **method.server_update(state, uplinks, server)}

    return step, state, uplinks


def test_losses_on_images_that_a_client_has_not_received_are_not_counted(assemble):
    """A client that missed new images has measured on old ones; its own it has."""
    step, state, uplinks = server_step(assemble)
    missed = {**state, "version": torch.tensor(2)}
    missed["given"] = {"receive_validation": torch.tensor([2, 0, 2])}
    losses = torch.tensor([0.0, float(uplinks[1].losses[1]), 9.0])
    told = uplinks[1].replaced(losses=losses)
    expected = step(missed, {**uplinks, 1: told})
    found = step(missed, uplinks)
    for name in ("task", "data", "personal", "relations"):
        assert torch.equal(found[name], expected[name])
    assert not torch.equal(found["personal"], step(state, uplinks)["personal"])


# --- properties ----------------------------------------------------------------------------------

positive = st.floats(1e-3, 10)
matrices = st.integers(2, 6).flatmap(
    lambda k: st.lists(st.lists(positive, min_size=k, max_size=k), min_size=k, max_size=k)
)


def random_case(seed, clients=5, width=7):
    random = np.random.default_rng(seed)
    losses = torch.tensor(random.uniform(0.5, 1.5, (clients, clients)))
    trained = torch.tensor(random.normal(size=(clients, width)))
    before = torch.tensor(random.normal(size=width))
    return losses, trained, before


@settings(max_examples=100)
@given(matrices)
def test_task_weights_are_a_distribution_that_prefers_low_losses(rows):
    losses = torch.tensor(rows, dtype=torch.float64)
    weights = task_weights(losses)
    close(weights.sum(), 1.0, 1e-9)
    assert (weights >= 0).all()
    assert (weights <= 1 / (len(rows) - 1) + 1e-12).all()
    sums = losses.sum(1)
    for a, b in itertools.permutations(range(len(rows)), 2):
        if sums[a] > sums[b]:
            assert weights[a] <= weights[b]


@settings(max_examples=200)
@given(
    st.lists(positive, min_size=1, max_size=6),
    positive,
    st.floats(1, 2),
    st.sampled_from(["bounded", "literal", "zero"]),
    st.integers(0, 1000),
)
def test_data_weights_sum_to_one_or_beta_or_nothing(losses, initial, alpha, mode, seed):
    column = torch.tensor(losses, dtype=torch.float64)
    _, trained, before = random_case(seed, len(losses))
    helpful, retained = neighbours(column, initial, alpha)
    raw = raw_weights(column, initial, trained, before)
    weights = data_weights(raw, helpful, retained, BETA, mode)
    expected = 1.0 if helpful.any() else BETA if retained.any() else 0.0
    close(weights.sum(), expected, 1e-9)
    assert (weights >= 0).all()
    assert (weights[~(helpful | retained)] == 0).all()
    if mode == "bounded" and helpful.any() and retained.any():
        assert weights[retained].max() <= weights[helpful].min() / 3 + 1e-12


# --- whole rounds --------------------------------------------------------------------------------

SMALL = {
    "data.clients": 3,
    "data.samples": 400,
    "data.partition": {"name": "dominant_class", "shots": 4},
    "batch_size": 4,
}


def prompts(run):
    model = prompted_model(run.assembly)
    first = initial_prompts(run.assembly)
    return model, [part.numel() for part in model.split_parameters(first)]


@pytest.mark.parametrize("depth", [1, 3])
def test_eq3_vision_prompts_are_maps_of_text_prompts(assemble, depth):
    assembly = assemble("dp2fl", {**SMALL, "algorithm.depth": depth})
    model = prompted_model(assembly)
    model.load_state_dict(initial_prompts(assembly))
    found = model.vision_prompts()
    assert len(found) == depth
    for layer, prompt in enumerate(found):
        mapping = model.data[layer]
        close(prompt, model.task[layer] @ mapping.weight.T + mapping.bias)
    task, data = model.split_parameters(initial_prompts(assembly))
    assert (task.numel(), data.numel()) == (depth * 2 * 16, depth * (16 + 1) * 32)
    again = model.merge_parameters(task, data)
    assert all(torch.equal(again[name], value) for name, value in model.named_parameters())


def supervised_loss(model, batch):
    return F.cross_entropy(model(batch.inputs).logits, batch.labels)


def test_a_round_is_the_equations_in_order(run):
    done = run("dp2fl", {**SMALL, "rounds": 2, "algorithm.alpha": 1.05})
    algorithm, runtime = done.assembly.algorithm, GroupRunner(done.assembly, CPU)
    first, second = done.servers[0], done.servers[1]
    trained, losses, initial_losses = [], [], []
    sets = [runtime.client(k, 1).validation.tensors(CPU) for k in range(3)]
    for k in range(3):
        down = algorithm.downlink(first, [k], None)[k]
        client = runtime.client(k, 1)
        local = algorithm.begin(client, ClientState({}), down)
        model = local.model
        initial_losses.append(mean_loss(model, *sets[k]))
        fit(local, partial(supervised_loss, model))
        trained.append([part.double() for part in model.split_parameters(client.save(model))])
        losses.append([mean_loss(model, x, y) for x, y in sets])
    tasks, datas = (torch.stack(parts) for parts in zip(*trained, strict=True))
    losses = torch.tensor(losses, dtype=torch.float32).double()
    shares = task_weights(losses)
    close(second["task"], weighted_sum(shares, tasks).float(), 1e-6)
    close(second["data"], weighted_sum(shares, datas).float(), 1e-6)
    for k in range(3):
        before = first["personal"][k].double()
        sides = neighbours(losses[:, k], initial_losses[k], 1.05)
        raw = raw_weights(losses[:, k], initial_losses[k], datas, before)
        weights = data_weights(raw, *sides, BETA, "bounded")
        close(second["personal"][k], moved(before, datas, weights).float(), 1e-6)
    assert not torch.equal(second["personal"][0], second["personal"][1])


def test_one_client_alone_keeps_what_it_trained(run):
    done = run("dp2fl", {**SMALL, "data.clients": 1, "rounds": 1, "algorithm.alpha": 1.0})
    after = done.servers[-1]
    assert not torch.equal(after["task"], after["first_task"])
    assert torch.equal(after["data"], after["personal"][0])  # W_T = 1, and PC = {itself}


def test_the_loss_reaches_the_task_prompt_through_the_images_alone(assemble):
    assembly = assemble("dp2fl", SMALL)
    model = prompted_model(assembly)
    model.load_state_dict(initial_prompts(assembly))
    images = torch.rand(4, 1, 8, 8) * 2 - 1
    image = model.image_features(Pixels(images))
    logits = model.logits(image, model.text_features().detach())
    F.cross_entropy(logits, torch.arange(4)).backward()
    assert model.task[0].grad.abs().max() > 0
    assert all(p.grad is None for p in model.clip._model.parameters())


def test_the_global_model_and_the_union_of_tests_are_measured(run):
    done = run("dp2fl", {**SMALL, "algorithm.union_test": True})
    for result in done.results:
        assert 0 <= result.metrics["global_accuracy"] <= 1
        assert ("union_accuracy" in result.metrics) == (result.round == 2)
    shares = [done.results[-1].metrics[f"share_{n}"] for n in ("helpful", "retained", "dropped")]
    assert sum(shares) == pytest.approx(1)
    # Before the first round all models are the initial one.
    assert done.results[0].metrics["global_accuracy"] == pytest.approx(
        done.results[0].metrics["local_accuracy"]
    )


def test_absent_clients_keep_their_data_prompt(run):
    done = run("dp2fl", {**SMALL, "participation": 0.34, "rounds": 3})
    for before, after, result in zip(
        done.servers, done.servers[1:], done.results[1:], strict=False
    ):
        assert len(result.participants) == 1
        for k in range(3):
            same = torch.equal(before["personal"][k], after["personal"][k])
            assert same or k in result.participants


def test_uneven_validation_sets_are_measured_one_by_one(assemble):
    assembly = assemble("dp2fl", {"data.validation_fraction": 0.3})
    assert len({len(indices) for indices in assembly.data.validation}) > 1
    runtime = GroupRunner(assembly, CPU)
    client = runtime.client(0, 1)
    model = client.load(initial_prompts(assembly))
    images, labels = client.validation.tensors(CPU)
    with torch.no_grad():
        logits = model(Pixels.of(images)).logits
    expected = F.cross_entropy(logits, labels)
    assert mean_loss(model, images, labels) == pytest.approx(float(expected), abs=1e-6)
