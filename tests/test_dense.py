"""Dense prediction: a pixel is a sample, for every method that says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lab import refused
from tensors import CPU, gaussian
from torch import nn

from fedray.core import Batch, ClientState, LocalContext, Samples, algorithms
from fedray.models import BackboneClassifier, Pixels
from fedray.models.backbones.unet import PerPixel

SHAPES = {
    "data.source": "shapes",
    "data.image_size": 16,
    "data.partition": "domains",
    "data.test": "official",
    "data.samples": 160,
    "model.group": "unet_tiny",
}


def to_batch(images, masks) -> Batch:
    """A batch of images uint8 [B, channels, H, W] with labels [B] or masks [B, H, W]."""
    samples = Samples(images.numpy(), masks.numpy(), np.arange(len(images)))
    return samples.batch(*samples.tensors(CPU))


# --- pixels are samples --------------------------------------------------------------------------


def test_rows_are_pixels_in_the_masks_order():
    maps = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    batch = to_batch(torch.zeros(2, 3, 4, 5, dtype=torch.uint8), maps[:, 1].to(torch.uint8))
    assert torch.equal(PerPixel()(maps)[:, 1], batch.labels)
    assert batch.labels.dtype == torch.int64


@pytest.mark.parametrize("method", ["fedavg", "fedglcl"])
@pytest.mark.parametrize("denominator", ["all", "negatives"])
def test_on_images_of_one_pixel_it_is_the_loss_of_images(assemble, method, denominator):
    """The same weights once as a network for images, once as one for pixels."""
    options = {"algorithm.denominator": denominator} if method == "fedglcl" else {}
    algorithm = assemble(method, {**options, "model.group": "cnn2"}).algorithm
    classes = 10 if algorithm.requires.head else 0
    of_images = BackboneClassifier(
        nn.Sequential(nn.Conv2d(3, 16, 1), nn.Flatten()), 16, 16, classes
    )
    of_pixels = BackboneClassifier(
        nn.Sequential(of_images.extractor.backbone[0], PerPixel()), 16, 16, classes, dense=True
    )
    of_pixels.head = of_images.head
    images = (40 * gaussian(6, 3, 1, 1) + 128).clamp(0, 255).to(torch.uint8)
    labels = torch.tensor([0, 3, 9, 3, 1, 0])
    masks = labels.to(torch.uint8).view(6, 1, 1)
    state = ClientState({}, {"text": F.normalize(gaussian(10, 16, seed=1))})
    found = []
    for model, targets in ((of_images, labels), (of_pixels, masks)):
        batch = to_batch(images, targets)
        local = LocalContext(None, model, state, None)
        found.append(algorithm.loss(model(batch.inputs), batch, local))
    assert torch.equal(*found)


def test_the_loss_is_the_mean_over_all_pixels(assemble):
    algorithm = assemble("fedglcl", {"model.group": "cnn2"}).algorithm
    maps, masks = gaussian(2, 16, 3, 3), torch.arange(18).remainder(10).view(2, 3, 3)
    text = F.normalize(gaussian(10, 16, seed=1))
    one_by_one = [
        -torch.log_softmax(text @ F.normalize(maps[i, :, y, x], dim=0) / 0.07, 0)[masks[i, y, x]]
        for i in range(2)
        for y in range(3)
        for x in range(3)
    ]
    batch = Batch(Pixels(maps), masks.flatten())
    output = BackboneClassifier(PerPixel(), 16, 16, 0, dense=True)(batch.inputs)
    local = LocalContext(None, None, ClientState({}, {"text": text}), None)
    ours = algorithm.loss(output, batch, local)
    torch.testing.assert_close(ours, torch.stack(one_by_one).mean())


# --- methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [m.name for m in algorithms.entries() if m.dense])
def test_every_dense_method_predicts_pixels(run, name):
    epochs = int(algorithms.get(name).requires.head)
    encoder = {"name": "random", "dim": 16}  # the tiny BERT knows no names of shapes
    text = {"text.encoder": encoder} if algorithms.get(name).requires.text else {}
    done = run(name, {**SHAPES, **text, "rounds": 1, "finetune_epochs": epochs})
    last = done.results[-1].metrics
    pixels = [len(indices) * 16 * 16 for indices in done.assembly.data.test]
    assert sum(pixels) == 160 * 16 * 16
    assert 0 < last["local_accuracy"] < 1
    assert {"dice", "dice_background", "dice_circle", "dice_in_night"} <= last.keys()
    for client, accuracy in done.results[-1].per_client.items():
        assert accuracy * pixels[client] == pytest.approx(round(accuracy * pixels[client]))


@pytest.mark.parametrize("name", [m.name for m in algorithms.entries() if not m.dense])
def test_every_other_method_refuses_and_names_the_key(assemble, name):
    refused(lambda: assemble(name, SHAPES), "model.group=unet_tiny")


def test_images_without_masks_are_refused(assemble):
    refused(
        lambda: assemble("fedavg", {"model.group": "unet_tiny"}).data,
        "model.group=unet_tiny",
        "data.source=digits",
    )


def test_a_model_for_images_learns_the_dominant_shape(run):
    done = run("fedavg", {**SHAPES, "model.group": "cnn3", "rounds": 1})
    assert not any(name.startswith("dice") for name in done.results[-1].metrics)
    samples = done.assembly.models.samples(CPU)(np.arange(2))
    assert np.shares_memory(samples._all_labels, done.assembly.data.images.labels)


@pytest.mark.slow
def test_fedglcl_learns_shapes(run):
    """Above guessing background everywhere, which has no Dice, and above the untrained model."""
    learnt = {
        "rounds": 8,
        "local_epochs": 2,
        "batch_size": 8,
        "lr": 0.1,
        "optimizer.momentum": 0.9,
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
