"""Backbones take torchvision's weights by name and shape, or a sentence says what does not fit."""

from __future__ import annotations

import os

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tensors import seeded
from torch import nn

from fedray.base.errors import UserError
from fedray.models import build
from fedray.models.architectures import architectures
from fedray.models.classifier import BackboneClassifier, projector
from fedray.models.pretrained import (
    _read,
    check_pretrained,
    start_from_pretrained,
)
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import resolve

WHOLE = {
    "resnet18": ("resnet18", nn.Flatten()),
    "resnet50": ("resnet50", nn.Flatten()),
    "mobilenetv2": ("mobilenet_v2", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())),
}


def theirs(name, seed=0):
    """Torchvision's network with random weights and running statistics that count."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = torchvision.models.get_model(name, weights=None)
        for tensor in model.buffers():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return model.eval()


def ours(name, channels=3):
    """A classifier's backbone with weights of its own."""
    model = build(
        name, channels=channels, image_size=64, num_classes=10, feature_dim=64, generator=seeded(0)
    )
    return model.extractor.backbone.eval()


def load(backbone, architecture, source):
    """Load weights into a backbone alone."""
    start_from_pretrained(nn.ModuleDict({"backbone": backbone}), architecture, source)


def images():
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1


@torch.no_grad()
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_features_are_torchvisions(tmp_path, name, suffix):
    reference, end = WHOLE[name]
    model, backbone, path = theirs(reference), ours(name), tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(model.state_dict(), path)
    trunk = nn.Sequential(*list(model.children())[:-1], end).eval()
    expected = trunk(images())
    assert not torch.allclose(backbone(images()), expected, rtol=1e-3)
    load(backbone, name, str(path))
    torch.testing.assert_close(backbone(images()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet34", "resnet101", "resnet152"])
def test_deeper_ones_have_the_same_shapes(name):
    with torch.device("meta"):
        backbone = architectures.get(name).make(3, 64)
        reference = torchvision.models.get_model(name, weights=None)
    shapes = [tensor.shape for tensor in backbone.state_dict().values()]
    assert shapes == [t.shape for n, t in reference.state_dict().items() if "fc." not in n]


@pytest.mark.parametrize("name", ["resnet18_small", "resnet50_small"])
def test_a_small_stem_stays_as_drawn_and_the_stages_are_loaded(tmp_path, name):
    full = name.removesuffix("_small")
    path = tmp_path / "weights.pth"
    torch.save(theirs(full).state_dict(), path)
    small, drawn, large = ours(name), ours(name), ours(full)
    load(small, name, str(path))
    load(large, full, str(path))
    for key, tensor in small.state_dict().items():
        expected = drawn if key.startswith(("conv1.", "bn1.")) else large
        assert torch.equal(tensor, expected.state_dict()[key]), key


def test_alexnet_takes_the_convolutions_and_draws_its_batch_norm(tmp_path):
    path, model = tmp_path / "weights.pt", theirs("alexnet")
    torch.save(model.state_dict(), path)
    backbone, drawn = ours("alexnet"), ours("alexnet").state_dict()
    load(backbone, "alexnet", str(path))
    convolutions = [m for m in backbone if isinstance(m, nn.Conv2d)]
    wanted = [m for m in model.features if isinstance(m, nn.Conv2d)]
    for mine, other in zip(convolutions, wanted, strict=True):
        assert torch.equal(mine.weight, other.weight)
        assert torch.equal(mine.bias, other.bias)
    norms = [key for key in drawn if "running" in key]
    assert len(norms) == 10
    assert all(torch.equal(backbone.state_dict()[key], drawn[key]) for key in norms)


def lacks(name):
    return lambda state: {key: tensor for key, tensor in state.items() if key != name}


MISFITS = {
    "layer1.2.conv1.weight": lambda state: theirs("resnet34").state_dict(),
    "layer3.0.bn2.bias": lacks("layer3.0.bn2.bias"),
    "layer2.1.conv1.weight": lambda state: {**state, "layer2.1.conv1.weight": torch.zeros(2, 2)},
    "no state dict": lambda state: [1, 2],
}


@pytest.mark.parametrize("named", MISFITS)
def test_what_does_not_fit_is_named(tmp_path, named):
    path = tmp_path / "a.pth"
    torch.save(MISFITS[named](theirs("resnet18").state_dict()), path)
    with pytest.raises(UserError) as refused:
        load(ours("resnet18"), "resnet18", str(path))
    assert "a.pth" in str(refused.value)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_weights_for_colours_do_not_fit_grey_images(tmp_path):
    torch.save(theirs("resnet18").state_dict(), tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"a\.pth .* backbone\.conv1\.weight"):
        load(ours("resnet18", channels=1), "resnet18", str(tmp_path / "a.pth"))


def test_a_file_without_batch_counters_is_read(tmp_path):
    path, state = tmp_path / "weights.pth", theirs("resnet18").state_dict()
    torch.save({n: t for n, t in state.items() if "num_batches" not in n}, path)
    backbone = ours("resnet18")
    load(backbone, "resnet18", str(path))
    assert torch.equal(backbone.bn1.running_var, state["bn1.running_var"])


@pytest.mark.parametrize(
    ("source", "group", "match"),
    [
        ("x.pth", "cnn4", "cnn4 does not correspond to a network of torchvision; set model"),
        ("x.pth", "googlenet", "googlenet does not correspond"),
        ("missing.pth", "resnet18", "missing.pth does not exist; pass a file of a state dict"),
        ("ResNet18_Weights.V1", "resnet18", "weights that torchvision has for resnet18. Did you"),
        ("ResNet50_Weights.IMAGENET1K_V1", "resnet18", "weights that torchvision has for resnet18"),
    ],
)
def test_refused_before_the_run(source, group, match):
    with pytest.raises(UserError, match=match):
        resolve("fedavg_digits", [f"model.group={group}", f"model.pretrained={source}"])


def test_torchvisions_names_are_known():
    check_pretrained("ResNet18_Weights.IMAGENET1K_V1", ["resnet18", "resnet18_small"])
    check_pretrained("MobileNet_V2_Weights.IMAGENET1K_V2", ["mobilenetv2"])
    check_pretrained("AlexNet_Weights.IMAGENET1K_V1", ["alexnet"])


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """The file of ResNet-18's weights in torch's cache, which does not exist yet."""
    _read.cache_clear()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    file = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    file.parent.mkdir(parents=True)
    yield file
    _read.cache_clear()


def unreachable(*args, **kwargs):
    raise OSError("no network")


def test_weights_in_the_cache_are_used_without_the_network(cached):
    state, backbone = theirs("resnet18").state_dict(), ours("resnet18")
    torch.save(state, cached)
    load(backbone, "resnet18", "ResNet18_Weights.IMAGENET1K_V1")
    assert torch.equal(backbone.bn1.running_var, state["bn1.running_var"])


@pytest.mark.parametrize("content", [None, b"", b"<!DOCTYPE html>", b"PK\x03\x04 torn"])
def test_weights_out_of_reach_or_damaged_are_said_so(cached, content):
    if content is not None:
        cached.write_bytes(content)
    with pytest.raises(UserError, match=r"could not be downloaded to .*resnet18-f37072fd\.pth"):
        load(ours("resnet18"), "resnet18", "ResNet18_Weights.IMAGENET1K_V1")


def test_checkpoints_of_training_scripts_are_read(tmp_path):
    path, state = tmp_path / "model_best.pth", theirs("resnet18").state_dict()
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"epoch": 90, "state_dict": wrapped, "best_acc1": 69.8}, path)
    backbone = ours("resnet18")
    load(backbone, "resnet18", str(path))
    assert torch.equal(backbone.bn1.running_var, state["bn1.running_var"])


def test_an_experiment_starts_from_a_file(tmp_path, monkeypatch):
    state = theirs("resnet18").state_dict()
    torch.save(state, tmp_path / "weights.pth")
    monkeypatch.chdir(tmp_path)
    colour = ["data.channels=3", "model.group=resnet18"]
    experiment = resolve("fedavg_digits", [*colour, "model.pretrained=weights.pth"])
    assert experiment.model.pretrained == str(tmp_path / "weights.pth")
    weights = Assembly(experiment).models.initial("resnet18")
    drawn = Assembly(resolve("fedavg_digits", colour)).models.initial("resnet18")
    assert torch.equal(weights["extractor.backbone.conv1.weight"], state["conv1.weight"])
    assert torch.equal(weights["head.weight"], drawn["head.weight"])
    assert all(tensor.is_contiguous() for tensor in weights.values())


@torch.no_grad()
@pytest.mark.parametrize(("feature_dim", "loaded"), [(4096, 4), (32, 2)])
def test_alexnets_hidden_layers_are_loaded_where_they_are_as_wide(tmp_path, feature_dim, loaded):
    path = tmp_path / "weights.pt"
    shapes = {"classifier.1": (4096, 9216), "classifier.4": (4096, 4096)}
    state = {
        f"{layer}.{name}": torch.tensor(i + 0.5).expand(shape if name == "weight" else shape[:1])
        for i, (layer, shape) in enumerate(shapes.items())
        for name in ("weight", "bias")
    }
    torch.save(state, path)
    with torch.device("meta"):
        hidden = projector(9216, 4096, feature_dim)
    hidden = hidden.to_empty(device="cpu")
    for tensor in hidden.state_dict().values():
        tensor.zero_()
    start_from_pretrained(nn.ModuleDict({"projector": hidden}), "alexnet", str(path))
    values = {name: float(tensor.flatten()[-1]) for name, tensor in hidden.state_dict().items()}
    assert (values["0.weight"], values["0.bias"]) == (0.5, 0.5)
    assert values["3.weight"] == (1.5 if loaded == 4 else 0)
    assert not any(value for name, value in values.items() if name.startswith(("1.", "4.")))


def test_a_file_that_was_written_anew_is_read_anew(tmp_path):
    path, hidden = tmp_path / "weights.pth", nn.Sequential(nn.Linear(2, 2))
    for value in (1, 2):
        shapes = {"classifier.1.weight": (2, 2), "classifier.1.bias": (2,)}
        torch.save({name: torch.full(shape, float(value)) for name, shape in shapes.items()}, path)
        os.utime(path, ns=(value, value))
        start_from_pretrained(nn.ModuleDict({"projector": hidden}), "alexnet", str(path))
        assert hidden[0].bias.tolist() == [value] * 2


def test_the_baselines_network_has_the_papers_number_of_parameters():
    alexnet = architectures.get("alexnet")
    with torch.device("meta"):  # 9216-4096-4096-10 with batch norm
        model = BackboneClassifier(alexnet.make(3, 256), alexnet.raw, 4096, 10, hidden=4096)
    assert sum(p.numel() for p in model.parameters()) == 57_063_498


@torch.no_grad()
def test_images_are_scaled_as_the_weights_expect(tmp_path):
    state = theirs("resnet18").state_dict()
    torch.save(state, tmp_path / "weights.pth")
    colour = ["data.channels=3", "model.group=resnet18"]
    experiment = resolve("fedavg_digits", [*colour, f"model.pretrained={tmp_path / 'weights.pth'}"])
    models = Assembly(experiment).models
    model = models.empty("resnet18")
    model.load_state_dict(models.initial("resnet18"))
    official = theirs("resnet18")
    official.fc = nn.Identity()
    pixels = (images() + 1) / 2
    transform = torchvision.transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    expected = official(transform(pixels))
    found = model.eval().extractor(images())
    assert torch.allclose(found[:, :512], expected, rtol=1e-4, atol=1e-5)
    assert "versions" in experiment.record()
    assert "versions" not in resolve("fedavg_digits", colour).record()
