"""Dense prediction: a pixel is a sample, for every method that says so; Dice by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedray.algorithms import algorithms
from fedray.client import ClientState, to_batch
from fedray.errors import UserError
from fedray.evaluation import Score, dice, overlap
from fedray.models import BackboneClassifier, Pixels, skeleton

SHAPES = {
    "data.source": "shapes",
    "data.image_size": 16,
    "data.partition": "domains",
    "data.test": "official",
    "data.samples": 160,
    "model.group": "unet_tiny",
}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- Dice ----------------------------------------------------------------------------------------


def test_overlap_by_hand():
    guesses, labels = torch.tensor([0, 0, 1, 1, 2, 0]), torch.tensor([0, 1, 1, 1, 0, 0])
    assert overlap(guesses, labels, 4).tolist() == [[2, 2, 0, 0], [3, 3, 0, 0], [3, 2, 1, 0]]


def test_dice_by_hand():
    scores = {
        1: Score.by_class((2, 2, 0, 0), (3, 3, 0, 0), (3, 2, 1, 0)),
        0: Score.by_class((2, 1, 0, 0), (2, 2, 0, 0), (3, 1, 0, 0)),
    }
    ground, a, b = (4 / 6 + 4 / 5) / 2, (4 / 5 + 2 / 3) / 2, 0.0
    found = dice(scores, ("ground", "a", "b", "c"), {"north": [0], "south": [1], "west": [2]})
    assert found == pytest.approx(
        {
            "dice_ground": ground,
            "dice_a": a,
            "dice_b": b,  # client 0 has neither guessed nor got any: client 1's counts alone
            "dice": (a + b) / 2,  # without the background, and without c, which is nowhere
            "dice_in_north": 2 / 3,
            "dice_in_south": (4 / 5 + 0) / 2,
        }
    )


def test_there_is_no_dice_of_images():
    assert dice({0: Score(3, 4), 1: Score(0, 0)}, ()) == {}


def test_a_client_without_test_images_counts_in_nothing():
    one = Score.by_class((1, 0), (1, 1), (2, 0))
    without = Score.by_class((0, 0), (0, 0), (0, 0))
    assert dice({0: one, 1: without}, ("a", "b")) == dice({0: one}, ("a", "b"))
    assert dice({1: without}, ("a", "b")) == {}


# --- pixels are samples --------------------------------------------------------------------------


def test_rows_are_pixels_in_the_masks_order():
    maps = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    batch = to_batch(torch.zeros(2, 3, 4, 5, dtype=torch.uint8), maps[:, 1].to(torch.uint8))
    assert torch.equal(Pixels()(maps)[:, 1], batch.labels)
    assert batch.labels.dtype == torch.int64


def test_a_linear_layer_on_pixels_is_a_1x1_convolution():
    head, maps = nn.Linear(3, 7), draw(2, 3, 4, 5)
    weight = head.weight[:, :, None, None]
    torch.testing.assert_close(head(Pixels()(maps)), Pixels()(F.conv2d(maps, weight, head.bias)))


@pytest.mark.parametrize("group", ["unet", "unet_tiny"])
@pytest.mark.parametrize("size", [(16, 16), (19, 26)])
def test_every_pixel_gets_its_features(group, size):
    shape = {"channels": 3, "image_size": 16, "feature_dim": 24}
    with torch.device("meta"):
        images = torch.empty(2, 3, *size)
    out = skeleton(group, num_classes=5, **shape).to("meta")(images)
    assert out.features.shape == (2 * size[0] * size[1], 24)
    assert out.logits.shape == (2 * size[0] * size[1], 5)
    bare = skeleton(group, num_classes=0, **shape).to("meta")(images)
    assert bare.logits.shape == bare.features.shape


@pytest.mark.parametrize("method", ["fedavg", "fedglcl"])
@pytest.mark.parametrize("denominator", ["all", "negatives"])
def test_on_images_of_one_pixel_it_is_the_loss_of_images(assemble, method, denominator):
    """The same weights once as a network for images, once as one for pixels."""
    options = {"algorithm.denominator": denominator} if method == "fedglcl" else {}
    algorithm = assemble(method, {**options, "model.group": "cnn2"}).algorithm
    classes = 10 if algorithm.has_head else 0
    of_images = BackboneClassifier(
        nn.Sequential(nn.Conv2d(3, 16, 1), nn.Flatten()), 16, 16, classes
    )
    of_pixels = BackboneClassifier(
        nn.Sequential(of_images.extractor.backbone[0], Pixels()), 16, 16, classes, dense=True
    )
    of_pixels.head = of_images.head
    images = (40 * draw(6, 3, 1, 1) + 128).clamp(0, 255).to(torch.uint8)
    labels = torch.tensor([0, 3, 9, 3, 1, 0])
    masks = labels.to(torch.uint8).view(6, 1, 1)
    state = ClientState({}, {"text": F.normalize(draw(10, 16, seed=1))})
    found = [
        algorithm.local_loss(model, to_batch(images, own), None, state)
        for model, own in ((of_images, labels), (of_pixels, masks))
    ]
    assert torch.equal(*found)


def test_the_loss_is_the_mean_over_all_pixels(assemble):
    algorithm = assemble("fedglcl", {"model.group": "cnn2"}).algorithm
    maps, masks = draw(2, 16, 3, 3), torch.arange(18).remainder(10).view(2, 3, 3)
    text = F.normalize(draw(10, 16, seed=1))
    one_by_one = [
        -torch.log_softmax(text @ F.normalize(maps[i, :, y, x], dim=0) / 0.07, 0)[masks[i, y, x]]
        for i in range(2)
        for y in range(3)
        for x in range(3)
    ]
    output = BackboneClassifier(Pixels(), 16, 16, 0, dense=True)(maps)
    ours = algorithm.supervised_loss(output, masks.flatten(), ClientState({}, {"text": text}))
    torch.testing.assert_close(ours, torch.stack(one_by_one).mean())


# --- methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in algorithms.names() if algorithms.get(n).dense])
def test_every_dense_method_predicts_pixels(run, name):
    done = run(name, {**SHAPES, "rounds": 1, "finetune_epochs": int(algorithms.get(name).has_head)})
    last = done.results[-1].metrics
    pixels = [len(own) * 16 * 16 for own in done.assembly.data.test]
    assert sum(pixels) == 160 * 16 * 16
    assert 0 < last["local_accuracy"] < 1
    assert {"dice", "dice_background", "dice_circle", "dice_in_night"} <= last.keys()
    for client, accuracy in done.results[-1].per_client.items():
        assert accuracy * pixels[client] == pytest.approx(round(accuracy * pixels[client]))


@pytest.mark.parametrize("name", [n for n in algorithms.names() if not algorithms.get(n).dense])
def test_every_other_method_refuses_and_names_the_key(assemble, name):
    with pytest.raises(UserError, match=rf"model\.group=unet_tiny .* algorithm={name} cannot"):
        assemble(name, SHAPES)


def test_a_method_does_not_inherit_that_it_is_dense():
    class Own(algorithms.get("fedavg")):
        """A method that says nothing of pixels."""

    assert algorithms.get("fedavg").dense
    assert not Own.dense


def test_images_without_masks_are_refused(assemble):
    with pytest.raises(UserError, match=r"model\.group=unet_tiny .* data\.source=digits has no m"):
        assemble("fedavg", {"model.group": "unet_tiny"}).data  # noqa: B018


def test_a_model_for_images_learns_the_dominant_shape(run):
    done = run("fedavg", {**SHAPES, "model.group": "cnn3", "rounds": 1})
    assert not any(name.startswith("dice") for name in done.results[-1].metrics)
    assert done.assembly.targets is done.assembly.data.images.labels


@pytest.mark.slow
def test_fedglcl_learns_shapes(run):
    """Above guessing background everywhere, which has no Dice, and above the untrained model."""
    learnt = {
        "rounds": 8,
        "local_epochs": 2,
        "batch_size": 8,
        "lr": 0.1,
        "momentum": 0.9,
        "eval_every": 8,
        "data.samples": None,
        "text.encoder": {"name": "orthogonal", "dim": 16},
    }
    done = run("fedglcl", {**SHAPES, **learnt})
    first, last = done.results[0].metrics, done.results[-1].metrics
    images = done.assembly.data.images
    background = np.mean(images.masks[images.origin == 1] == 0)
    assert last["local_accuracy"] > background + 0.03
    assert last["dice"] > first["dice"] + 0.3
    assert min(last[f"dice_{name}"] for name in images.class_names) > 0.2
