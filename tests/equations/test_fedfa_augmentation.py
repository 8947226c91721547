"""FedFA's feature augmentation: its numbers by hand, where it stands, and what travels."""

from __future__ import annotations

import pytest
import torch
from tensors import seeded

from fedray.algorithms.averaging.fedfa_augmentation import (
    AugmentationLayers,
    FedFAAugmentation,
    augment_maps,
    channel_statistics,
    fusion_weights,
    variance_over_clients,
)
from fedray.models import Pixels, build, convolution_stages

ONE_KIND = {"model.group": "cnn2"}


def model():
    return build(
        "cnn2", channels=1, image_size=8, num_classes=10, feature_dim=16, generator=seeded()
    )


def layers(probability=1.0, variances=None, **more):
    return AugmentationLayers(probability, 0.99, seeded(3), variances or {}, **more)


# --- equations ------------------------------------------------------------------------------------


def test_channel_statistics_by_hand():
    maps = torch.tensor([[[[1.0, 3.0], [5.0, 7.0]], [[2.0, 2.0], [2.0, 2.0]]]])
    mean, std = channel_statistics(maps)
    assert mean.tolist() == [[4.0, 2.0]]
    torch.testing.assert_close(std, torch.tensor([[(20 / 3) ** 0.5, 1e-3]]))


def test_fusion_weights_by_hand():
    found = fusion_weights(torch.tensor([1.0, 3.0]))  # g = .5, .75
    torch.testing.assert_close(found, torch.tensor([0.8, 1.2]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("variances", [[0.0, 0.0, 0.0], [1e-9, 5.0, 1e6], [2.0, 2.0, 2.0]])
def test_fusion_weights_sum_to_the_number_of_channels(variances):
    found = fusion_weights(torch.tensor(variances))
    assert found.sum().item() == pytest.approx(3)
    if len(set(variances)) == 1:
        assert found.tolist() == pytest.approx([1, 1, 1])


def test_variance_over_clients_by_hand():
    running = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    assert variance_over_clients(running).tolist() == [2.0, 8.0]


def test_augmented_maps_have_the_drawn_statistics():
    maps = torch.randn(4, 3, 5, 5, generator=seeded())
    mean, std = channel_statistics(maps)
    alpha, beta = std + torch.rand(4, 3, generator=seeded(1)), mean - 1
    found = channel_statistics(augment_maps(maps, mean, std, alpha, beta))
    torch.testing.assert_close(found[0], beta, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], alpha, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(augment_maps(maps, mean, std, std, mean), maps)


def test_a_draw_by_hand():
    statistic = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    layer = layers(variances={"0.mean": torch.tensor([1.0, 3.0])}, running={})
    found = layer._draw("0.mean", statistic, 0.0)
    spread = (torch.tensor([1.8, 2.2]) * torch.tensor([2.0, 1e-6])).sqrt()
    noise = torch.randn(2, 2, generator=seeded(3))
    torch.testing.assert_close(found, statistic + noise * spread, atol=1e-5, rtol=0)
    torch.testing.assert_close(layer.running["0.mean"], torch.tensor([0.02, 0.05]))
    layer._draw("0.mean", statistic, 0.0)
    torch.testing.assert_close(layer.running["0.mean"], torch.tensor([0.0398, 0.0995]))


# --- where it stands ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "stages"),
    [
        ("mlp", 8, 0),
        ("cnn2", 8, 2),
        ("cnn3", 8, 3),
        ("alexnet", 63, 5),
        ("vgg11", 32, 8),
        ("resnet18", 32, 5),
        ("resnet8s", 32, 4),
    ],
)
def test_a_layer_stands_after_every_stage(name, size, stages):
    made = build(
        name, channels=3, image_size=size, num_classes=2, feature_dim=8, generator=seeded()
    )
    seen = []
    for end in convolution_stages(made):
        end.register_forward_hook(lambda *args: seen.append(args[2].shape))
    made.eval()(Pixels(torch.zeros(2, 3, size, size)))
    assert len(seen) == stages
    assert all(len(shape) == 4 for shape in seen)
    assert [shape[2] for shape in seen] == sorted((shape[2] for shape in seen), reverse=True)


def test_in_alexnet_they_stand_behind_the_pools():
    alexnet = build(
        "alexnet", channels=3, image_size=127, num_classes=2, feature_dim=8, generator=seeded()
    )
    kinds = [type(end).__name__ for end in convolution_stages(alexnet)]
    assert kinds == ["MaxPool2d", "MaxPool2d", "ReLU", "ReLU", "MaxPool2d"]


def test_layers_come_and_go():
    images, plain = Pixels(torch.randn(6, 1, 8, 8, generator=seeded())), model()
    before = plain(images).logits
    with layers().on(plain):
        augmented = plain(images).logits
    assert not torch.allclose(augmented, before)
    assert torch.equal(plain(images).logits, before)
    with layers(0.0).on(plain):
        assert torch.equal(plain(images).logits, before)
    with layers().on(plain):
        one = Pixels(images.values[:1])  # a batch of one
        assert torch.equal(plain(one).logits, plain(one).logits)


def test_maps_of_one_pixel_pass_as_they_are():
    # cnn2's second stage has maps of one pixel here
    tiny = build("cnn2", channels=1, image_size=4, num_classes=2, feature_dim=8, generator=seeded())
    layer = layers()
    with layer.on(tiny):
        images = Pixels(torch.randn(3, 1, 4, 4, generator=seeded()))
        assert torch.isfinite(tiny(images).logits).all()
    assert set(layer.running) == {"0.mean", "0.std"}


# --- whole runs -----------------------------------------------------------------------------------


def test_what_the_server_makes_of_running_means(assemble):
    assembly = assemble("fedfa_augmentation", ONE_KIND)
    algorithm, server = assembly.algorithm, assembly.server(torch.device("cpu"))
    weights = {"w": torch.zeros(1)}
    uplinks = {
        0: FedFAAugmentation.up(
            weights, 5, {"0.mean": torch.tensor([1.0, 0.0]), "1.std": torch.ones(1)}
        ),
        2: FedFAAugmentation.up(weights, 9, {"0.mean": torch.tensor([3.0, 4.0])}),
    }
    before = {"model": weights, "variances": {"1.std": torch.ones(1) * 7}}
    after = algorithm.server_update(before, uplinks, None)
    assert after["variances"]["0.mean"].tolist() == [2.0, 8.0]  # without weights
    assert after["variances"]["1.std"].tolist() == [7.0]  # of one client there is no variance
    assert algorithm.downlink(after, [0], server)[0].variances.keys() == {"0.mean", "1.std"}


def test_statistics_travel_and_running_means_stay(run):
    done = run("fedfa_augmentation", {**ONE_KIND, "rounds": 3, "algorithm.probability": 1})
    statistics = 2 * (16 + 32)
    assert done.results[1].down.params.get("statistics", 0) == 0
    assert done.results[2].down.params["statistics"] == 4 * statistics
    names = {f"{stage}.{what}" for stage in (0, 1) for what in ("mean", "std")}
    for memory in done.memories.values():
        assert set(memory["running"]) == names
    means = torch.stack([done.memories[client]["running"]["0.mean"] for client in range(4)])
    assert not torch.equal(means[0], means[1])
    torch.testing.assert_close(done.servers[-1]["variances"]["0.mean"], means.var(dim=0))
