"""FedGLCL's loss by hand, the card's properties, and what travels when."""

from __future__ import annotations

import pytest
import torch
from answers import run_tests
from tensors import same

from fedray.algorithms.averaging.fedavg import ExtraParameters
from fedray.algorithms.losses import cosine_matrix
from fedray.algorithms.text_guided.fedglcl import BIAS, WEIGHT, text_contrast
from fedray.config import component
from fedray.core import ClientState, LocalContext
from fedray.evaluation.answers import shares
from fedray.language.tower import TextTower
from fedray.language.trainable import class_embeddings
from fedray.runtime.groups import GroupRunner

ONE_KIND = {"model.group": "cnn3", "model.projector": 24}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_eq6_by_hand():
    images = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    text = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    torch.testing.assert_close(cosine_matrix(images, text), torch.tensor([[0.6, 0.8], [0.0, 1.0]]))


def test_eq7_by_hand():
    delta, y = torch.tensor([[0.6, 0.8]]), torch.tensor([1])
    assert text_contrast(delta, y, 1.0, "negatives").item() == pytest.approx(-0.2)
    assert text_contrast(delta, y, 1.0, "all").item() == pytest.approx(0.598139, abs=1e-6)


# --- FedGLCL-L ------------------------------------------------------------------------------------

LAYER = {**ONE_KIND, "algorithm.blocks": 0}


def test_the_trained_text_is_the_sent_one_through_the_projection(assemble):
    algorithm = assemble("fedglcl_l", LAYER).algorithm

    def text(vectors, projection):
        state = ClientState({}, {"text": vectors})
        return algorithm.text(LocalContext(None, None, state, None, projection))

    projection = {WEIGHT: torch.tensor([[0.0, 1.0], [3.0, 0.0]]), BIAS: torch.tensor([0.5, 0.0])}
    assert text(torch.tensor([[1.0, 2.0]]), projection).tolist() == [[2.5, 3.0]]
    sent = draw(4, 16).float()
    assert torch.equal(text(sent, algorithm.extra_parameters()), sent)


def test_predictions_use_the_global_projection(run):
    """One that turns the texts around changes what the same image encoder says."""
    learning = {"rounds": 6, "local_epochs": 2, "optimizer.momentum": 0.9}
    done = run("fedglcl_l", {**LAYER, **learning, "data.partition": "iid"})
    runtime, last = GroupRunner(done.assembly, torch.device("cpu")), done.servers[-1]
    state = ClientState({}, done.memories[0])

    def accuracy(projection):
        down = ExtraParameters.down(last["model"], projection)
        return shares(run_tests(runtime, [0], state=state, down=down, r=6))[0, 0]

    as_it_is = accuracy(last["extra"])
    assert as_it_is == done.results[-1].per_client[0]
    turned = accuracy({**last["extra"], WEIGHT: -last["extra"][WEIGHT]})
    assert turned < as_it_is - 0.2


# --- FedGLCL-L with blocks of the text encoder ---------------------------------------------------

PARTS = [0, 1, 2, "all"]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("blocks", PARTS[1:])
def test_the_blocks_that_learn_compute_what_the_encoder_does(tiny_bert, blocks, pooling):
    choice = component("text encoder", "bert", path=str(tiny_bert), pooling=pooling).build()
    texts = [["a photo of zero", "zero"], ["small round one with a long line", "one : two"]]
    tower = TextTower(choice, texts, torch.device("cpu"))
    found = tower.trainable(None if blocks == "all" else blocks)
    made = class_embeddings(found.tensors, found.start, found.mask, found.shape)
    torch.testing.assert_close(
        made, tower.frozen_prototypes(of_unit_length=True), atol=2e-6, rtol=0
    )
    count = sum(t.numel() for t in found.tensors.values())
    block = 4 * (16 * 16 + 16) + 2 * 16 * 32 + 32 + 16 + 4 * 16
    words = len({word for pair in texts for text in pair for word in text.split()}) + 3
    expected = {1: block, 2: 2 * block, "all": 2 * block + 16 * (words + 24 + 2 + 2)}
    assert count == expected[blocks]  # [CLS], [SEP] and [PAD] are words too


@pytest.mark.parametrize("blocks", PARTS)
def test_before_round_1_a_text_encoder_that_learns_is_fedglcl(run, blocks):
    changes = {**ONE_KIND, "rounds": 1, "algorithm.tau": 0.5}
    plain = run("fedglcl", changes)
    trained = run("fedglcl_l", {**changes, "algorithm.blocks": blocks})
    assert trained.results[0].per_client == plain.results[0].per_client
    start, end = (trained.servers[i]["extra"] for i in (0, 1))
    assert same(trained.servers[0]["model"], plain.servers[0]["model"])
    moved = [name for name in start if not torch.equal(start[name], end[name])]
    if blocks == 0:
        assert set(start) == set(moved) == {WEIGHT, BIAS}
        return
    silent = {name for name in start if name.endswith("key.bias")}  # softmax does not see it
    assert set(start) - set(moved) <= silent | {"text.embeddings.token_type_embeddings.weight"}
    assert any("encoder.layer.0." in name for name in moved)
    assert all("encoder.layer.1." not in name for name in start) == (blocks == 1)


def test_what_learns_of_the_text_encoder_is_sent_every_round_and_its_inputs_once(run):
    done = run("fedglcl_l", {**ONE_KIND, "algorithm.blocks": 1})
    extra = sum(t.numel() for t in done.servers[0]["extra"].values())
    model = sum(t.numel() for t in done.servers[0]["model"].values())
    assert done.results[1].up.params["weights"] + done.results[1].up.params["statistics"] == (
        pytest.approx(4 * (model + extra), abs=8)
    )
    assert "text_embeddings" in done.results[0].down.params
    assert "text_embeddings" not in done.results[1].down.params
