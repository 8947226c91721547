"""FedTSP's equations by hand, and the properties that follow from them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, log1p

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference import mean_by_class
from tensors import CPU, gaussian

from fedray.algorithms.prototypes.class_prototypes import PrototypeSharing, local_prototypes
from fedray.algorithms.text_guided.fedtsp import (
    FedTSP,
    normalised_l2_loss,
    semantic_prototype_loss,
    server_loss,
)
from fedray.base.streams import Streams
from fedray.config import component, override
from fedray.core import (
    Batch,
    ClientState,
    LocalContext,
    Server,
    Setting,
    TrainingConfig,
)
from fedray.core.gate import quantise
from fedray.language.encoders import EncoderChoice
from fedray.language.prototypes import insert_prompts
from fedray.language.styles import class_texts
from fedray.language.tower import TextTower
from fedray.models import ClassifierOutput, Pixels
from fedray.runtime.groups import GroupRunner
from fedray.runtime.resolve import from_tree

NAMES = ("zero", "one", "two", "three", "four")
C, D = len(NAMES), 16
SETTING = Setting(NAMES, D, rounds=3, clients=4, training=TrainingConfig(), streams=Streams(0))


def fedtsp(**hparams) -> FedTSP:
    return FedTSP(**hparams).with_setting(SETTING)


def bert(folder) -> EncoderChoice:
    return component("text encoder", "bert", path=str(folder)).build()


@pytest.fixture
def server(tiny_bert) -> Server:
    texts = [
        [f"a photo of {name} : with {what} line ." for what in ("thin", "dark")] for name in NAMES
    ]
    tower = TextTower(bert(tiny_bert), texts, CPU)
    return Server(1, SETTING, tower, CPU, lambda name: {}, ("mlp",) * 4, lambda name: None)


def upload(held: dict[int, int], seed: int) -> PrototypeSharing.up:
    """A client's upload from {class: images}."""
    classes, counts = torch.tensor([*held]), torch.tensor([*held.values()])
    return PrototypeSharing.up(classes, gaussian(len(held), D, seed=seed), counts)


# Classes 0, 2 and 3 have 2, 1 and 4 holders; nobody has 1 and 4.
UPLINKS = {
    0: upload({0: 30, 3: 5}, seed=1),
    1: upload({0: 10, 2: 8, 3: 1}, seed=2),
    2: upload({3: 2}, seed=3),
    3: upload({3: 20}, seed=4),
}
PRESENT, ABSENT = [0, 2, 3], [1, 4]


# --- the equations -------------------------------------------------------------------------------


def test_eq2_is_cross_entropy_plus_lambda_times_r():
    output = ClassifierOutput(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
    batch = Batch(Pixels(torch.zeros(1, 1, 8, 8)), torch.tensor([1]))
    local = LocalContext(None, None, ClientState({}), FedTSP.down(torch.eye(2), 0.5))
    r = -log(exp(0.8 / 0.5) / (exp(0.6 / 0.5) + exp(0.8 / 0.5)))
    assert float(fedtsp(lambda_=2.0).loss(output, batch, local)) == pytest.approx(log(2) + 2 * r)
    assert float(fedtsp(lambda_=0.0).loss(output, batch, local)) == pytest.approx(log(2))


def test_eq3_label_and_description_make_the_text():
    style = component("text style", "handcrafted").build()
    assert class_texts(style, ["polar_bear"], None, None) == [["A photo of a polar bear."]]


def test_eq4_prompts_replace_the_first_m_positions():
    k, n, m, width = 2, 5, 2, 3
    words = torch.arange(C * k * n * width, dtype=torch.float32).reshape(C * k, n, width)
    prompts = -1 - torch.arange(C * m * width, dtype=torch.float32).reshape(C, m, width)
    found = insert_prompts(words, prompts, k)
    assert found.shape == words.shape
    for text in range(C * k):
        for position in range(n):
            source = prompts[text // k] if position < m else words[text]
            expected = source[position]
            assert torch.equal(found[text, position], expected)


@pytest.mark.parametrize("group", ["cnn2", "cnn3"])
def test_eq5_is_the_mean_feature_of_the_training_images(assemble, group):
    assembly = assemble("fedtsp", {"model.group": group})
    client = GroupRunner(assembly, CPU).client(1, 1)
    model = client.load(client.initial())
    model.train()
    found = local_prototypes(client, model)

    images = torch.from_numpy(assembly.data.images.images[assembly.data.train[1]])
    labels = torch.from_numpy(assembly.data.images.labels[assembly.data.train[1]])
    model.load_state_dict(client.initial())
    model.eval()
    with torch.no_grad():
        features = model(Pixels(images.float() / 127.5 - 1)).features
    assert found["classes"].tolist() == sorted(set(labels.tolist()))
    for row, number in enumerate(found["classes"]):
        of_class = features[labels == number]
        assert found["counts"][row] == len(of_class)
        torch.testing.assert_close(found["vectors"][row], of_class.mean(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("how", "expected"), [("weighted", (0.75, 0.25)), ("uniform", (0.5, 0.5))])
def test_eq6_worked_example(how, expected):
    uplinks = {
        client: PrototypeSharing.up(torch.tensor([1]), row.unsqueeze(0), torch.tensor([count]))
        for client, row, count in [(0, torch.eye(2)[0], 30), (7, torch.eye(2)[1], 10)]
    }
    found, present = mean_by_class(uplinks, 3, how)
    torch.testing.assert_close(found, torch.tensor([(0.0, 0.0), expected, (0.0, 0.0)]))
    assert present.tolist() == [False, True, False]


@pytest.mark.parametrize(("direction", "expected"), [("t2i", 0.455700), ("i2t", 0.442058)])
def test_eq7_worked_example(direction, expected):
    text = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    found = server_loss(text, torch.eye(2), torch.tensor(0.0), direction)
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_eq7_divides_by_tau():
    text, image = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.eye(2)
    first, second = log1p(exp(-1 / 0.5)), log1p(exp((0.6 - 0.8) / 0.5))
    found = server_loss(text, image, -torch.tensor(0.5).log(), "t2i")
    assert float(found) == pytest.approx((first + second) / 2, abs=1e-6)


def test_eq8_has_absent_classes_in_the_denominator():
    feature, label = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
    text = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    expected = -log(exp(0.8) / (exp(0.6) + exp(0.8) + exp(-0.8)))
    assert float(semantic_prototype_loss(feature, label, text, 1.0)) == pytest.approx(expected)


# --- what follows from them ----------------------------------------------------------------------


@given(st.lists(st.floats(0.01, 100), min_size=2 * C, max_size=2 * C), st.booleans())
@settings(max_examples=30)
def test_eq7_eq8_do_not_see_lengths(factors, t2i):
    scales = torch.tensor(factors).unsqueeze(1)
    text, image, labels = gaussian(C, D), gaussian(C, D, seed=1), torch.arange(C)
    direction, scale = ("t2i" if t2i else "i2t"), torch.tensor(1.0)
    for found, expected in [
        (
            server_loss(text * scales[:C], image * scales[C:], scale, direction),
            server_loss(text, image, scale, direction),
        ),
        (
            semantic_prototype_loss(image * scales[C:], labels, text * scales[:C], 0.1),
            semantic_prototype_loss(image, labels, text, 0.1),
        ),
    ]:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_equal_weights_in_eq6_give_other_prompts(server):
    prompts = {}
    for how in ("weighted", "uniform"):
        method = fedtsp(proto_agg=how, prompt_length=2, server_epochs=3, prompt_lr=1.0, tau=0.5)
        state = method.server_update(method.init_server(server), UPLINKS, server)
        prompts[how] = state["prompts"]
    assert not torch.equal(prompts["uniform"], prompts["weighted"])


def test_a_server_step_leaves_absent_classes_and_the_language_model_alone(server):
    method = fedtsp(prompt_length=2, server_epochs=4, prompt_lr=1.0, tau=0.5)
    before = method.init_server(server)
    after = {**before, **method.server_update(before, UPLINKS, server)}
    for name in ("prompts", "vectors"):
        assert torch.equal(after[name][ABSENT], before[name][ABSENT])
        moved = (after[name] != before[name])[PRESENT].flatten(1)
        assert bool(moved.any(1).all())
    parameters = list(server.tower.encoder.weights())
    assert len(parameters) > 20
    assert not any(p.requires_grad or p.grad is not None for p in parameters)


@pytest.mark.parametrize(
    ("classes", "text", "keys", "expected"),
    [
        (10, "a very long text with many more tokens of {} in it", {}, (1, 1)),
        (11, "a very long text with many more tokens of {} in it", {}, (10, 20)),
        (11, "a {}", {}, (1, 20)),
        (11, "a {}", {"past_text": True}, (10, 20)),
        (11, "a {}", {"prompt_length": 2, "server_epochs": 3}, (2, 3)),
        (11, "a {}", {"prompt_length": 0}, (0, 0)),
    ],
)
def test_tokens_and_steps_follow_the_number_of_classes(tiny_bert, classes, text, keys, expected):
    names = ("zero", "one", "two", "three", "four", "thin", "dark", "line", "photo", "of", "with")
    words = names[:classes]
    setting = replace(SETTING, class_names=words)
    tower = TextTower(bert(tiny_bert), [[text.format(word)] for word in words], CPU)
    server = Server(1, setting, tower, CPU, lambda name: {}, ("mlp",) * 4, lambda name: None)
    method = FedTSP(**keys).with_setting(setting)
    prompts = method.init_server(server).get("prompts", torch.zeros(classes, 0))
    assert (prompts.shape[1], method.steps) == expected


def test_server_epochs_are_steps_in_a_row(server):
    many = fedtsp(server_epochs=3, prompt_lr=0.5, tau=0.5)
    single = fedtsp(server_epochs=1, prompt_lr=0.5, tau=0.5)
    at_once = {
        **many.init_server(server),
        **many.server_update(many.init_server(server), UPLINKS, server),
    }
    state = single.init_server(server)
    for _ in range(3):
        state = {**state, **single.server_update(state, UPLINKS, server)}
    assert torch.equal(at_once["prompts"], state["prompts"])


def test_a_learnt_tau_takes_one_sgd_step_and_is_sent(server):
    method = fedtsp(learn_tau=True, tau=0.5, prompt_lr=0.1)
    before = method.init_server(server)
    after = {**before, **method.server_update(before, UPLINKS, server)}
    image, present = mean_by_class(UPLINKS, C, "weighted")
    scale = before["log_scale"].clone().requires_grad_()
    loss = server_loss(before["vectors"][present], image[present], scale, "t2i")
    (gradient,) = torch.autograd.grad(loss, scale)
    torch.testing.assert_close(after["log_scale"], before["log_scale"] - 0.1 * gradient)
    assert float(gradient) != 0
    sent = method.downlink(after, [3], server)[3]
    assert sent.tau == pytest.approx(exp(-float(after["log_scale"])))
    fixed = fedtsp(tau=0.5)
    kept = {
        **fixed.init_server(server),
        **fixed.server_update(fixed.init_server(server), UPLINKS, server),
    }
    assert torch.equal(kept["log_scale"], before["log_scale"])


def test_retrieval_is_of_the_prototypes_that_the_uploads_were_trained_with(server):
    method = fedtsp(prompt_length=2, server_epochs=4, prompt_lr=5.0, tau=0.5)
    state = method.init_server(server)
    for _ in range(3):
        before, state = state, {**state, **method.server_update(state, UPLINKS, server)}
        down = method.downlink(before, [0], server)[0]
        assert torch.equal(state["sent"], down.vectors)
        assert not torch.equal(state["sent"][PRESENT], state["vectors"][PRESENT])
    rows = [F.normalize(matrix[PRESENT], dim=1) for matrix in (down.vectors, state["image"])]
    nearest = (rows[0] @ rows[1].T).argmax(dim=1)
    expected = float((nearest == torch.arange(len(PRESENT))).float().mean())
    assert method.analyse(state, server).metrics["retrieval_top1"] == pytest.approx(expected)


def test_a_zero_feature_gives_no_nan():
    features = torch.zeros(2, D, requires_grad=True)
    text = gaussian(C, D)
    loss = semantic_prototype_loss(features, torch.tensor([0, 1]), text, 0.01)
    assert loss.item() == pytest.approx(log(C))
    (gradient,) = torch.autograd.grad(loss, features)
    assert bool(torch.isfinite(gradient).all())
    l2 = normalised_l2_loss(features, torch.tensor([0, 1]), text)
    assert l2.item() == pytest.approx(1 / D)
    zero_row = server_loss(
        text, text * torch.tensor([[0.0], [1], [1], [1], [1]]), torch.tensor(0.0), "t2i"
    )
    assert bool(torch.isfinite(zero_row))


def test_the_l2_variant_by_hand_and_at_its_bound():
    text, label = torch.tensor([[0.0, 2.0]]), torch.tensor([0])
    assert float(normalised_l2_loss(torch.tensor([[3.0, 4.0]]), label, text)) == pytest.approx(
        (0.6**2 + 0.2**2) / 2
    )
    assert float(normalised_l2_loss(-text, label, text)) == pytest.approx(4 / 2)


# --- the quantiser -------------------------------------------------------------------------------

VECTORS = arrays.arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
)


@pytest.mark.parametrize(
    ("bits", "expected"), [(2, (0.9, 0.0, 0.9)), (4, (0.9, -0.257143, 0.514286))]
)
def test_quantiser_worked_example(bits, expected):
    found = quantise(torch.tensor([0.9, -0.3, 0.5]), bits)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=0)


@given(VECTORS, st.sampled_from([2, 4, 8, 16]))
def test_quantiser_is_idempotent_and_off_by_half_a_step_at_most(values, bits):
    v = torch.from_numpy(values)
    found = quantise(v, bits)
    assert torch.equal(quantise(found, bits), found)
    alpha = float(v.abs().max())
    step = alpha / (2 ** (bits - 1) - 1)
    error = (found.double() - v.double()).abs().max()
    assert float(error) <= step / 2 + alpha * 2**-24  # the result is a float32


def test_a_matrix_is_quantised_row_by_row():
    rows = torch.tensor([[0.9, -0.3, 0.5], [90.0, -30.0, 50.0]])
    found = quantise(rows, 4)
    torch.testing.assert_close(found[1], 100 * found[0])


# --- whole runs ----------------------------------------------------------------------------------


def test_m_0_keeps_the_text_constant(run):
    frozen = run("fedtsp", {"algorithm.prompt_length": 0, "rounds": 3, "algorithm.tau": 0.1})
    first = frozen.servers[0]
    assert "prompts" not in first
    assert all(torch.equal(state["vectors"], first["vectors"]) for state in frozen.servers)
    assert sum(frozen.results[0].up.params.values()) == 0
    method = frozen.assembly.algorithm
    server = frozen.assembly.server(CPU)
    uplink = PrototypeSharing.up(torch.tensor([0, 3]), gaussian(2, 16), torch.tensor([4, 1]))
    after = {**first, **method.server_update(first, {0: uplink}, server)}
    assert torch.equal(after["vectors"], first["vectors"])
    assert torch.equal(after["log_scale"], first["log_scale"])

    trained = run("fedtsp", {"algorithm.prompt_length": 1, "rounds": 1})
    assert not torch.equal(trained.servers[1]["vectors"], trained.servers[0]["vectors"])


def test_the_order_of_the_paper_and_of_the_code(run):
    paper = run("fedtsp", {"rounds": 1, "algorithm.tau": 0.1})
    code = run("fedtsp", {"rounds": 1, "algorithm.tau": 0.1, "algorithm.init_order": "code"})
    held = [
        len(np.unique(paper.assembly.data.images.labels[indices]))
        for indices in paper.assembly.data.train
    ]
    assert paper.results[0].up.params["prototypes"] == sum(held) * 16
    assert sum(code.results[0].up.params.values()) == 0
    assert bool((paper.servers[0]["present"]).all())
    assert not bool((code.servers[0]["present"]).any())
    assert torch.equal(paper.servers[0]["first"], code.servers[0]["vectors"])


def test_official_code_sets_exactly_the_documented_switches(assemble):
    def switched(tree):
        plain = from_tree(tree).tree()
        official = from_tree(override(tree, [("algorithm.preset", "official_code")])).tree()
        return dict(_differences(plain, official))

    tree = assemble("fedtsp").experiment.tree()
    expected = {
        "algorithm.past_text": True,
        "algorithm.proto_agg": "uniform",
        "algorithm.server_dir": "i2t",
        "algorithm.learn_tau": True,
        "algorithm.init_order": "code",
        "shuffle": False,
        "drop_last": True,
    }
    assert switched(tree) == {**expected, "text.encoder.bert_compat": True}
    assert switched(override(tree, [("text.encoder", {"name": "orthogonal"})])) == expected


def _differences(a, b, place=""):
    """Dotted keys at which `b` has another value than `a`, with that value."""
    for key, value in b.items():
        if isinstance(value, dict) and isinstance(a.get(key), dict):
            yield from _differences(a[key], value, f"{place}{key}.")
        elif a.get(key, ...) != value:
            yield f"{place}{key}", value


def test_prompts_past_the_text_run_and_change_nothing_where_they_fit(run):
    # "[CLS] a photo of a zero . [SEP]" has 8 tokens; Table 4, ID 4 has 10 context tokens
    longer = run("fedtsp", {"algorithm.prompt_length": 10, "algorithm.past_text": True})
    assert longer.servers[-1]["prompts"].shape[1] == 10
    short = {"algorithm.prompt_length": 3, "rounds": 1}
    plain, allowed = run("fedtsp", short), run("fedtsp", {**short, "algorithm.past_text": True})
    assert torch.equal(plain.servers[-1]["vectors"], allowed.servers[-1]["vectors"])
