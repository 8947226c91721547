"""Similarity by layer: the measure's properties, a model's layers, what the command compares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import analyse as main
from hypothesis import given
from hypothesis import strategies as st

from fedray.config import load_experiment, read_mapping
from fedray.evaluation.similarity import centred_gram, linear_cka
from fedray.models import Pixels, build, layers
from fedray.results.analyses.cka import layer_grams, similarities
from fedray.results.analyses.extra_step import probe_images, reopen
from fedray.run import main as fedray_run
from fedray.runtime.assembly import Assembly

SHAPE = {"channels": 1, "image_size": 16, "num_classes": 10, "feature_dim": 16}
RUN = [
    "fedavg_digits",
    "--executor",
    "serial",
    "--no-track",
    "model.group=cnn3",
    "model.feature_dim=16",
]
RUN += [
    "data.validation_fraction=null",
    "data.clients=4",
    "data.partition=iid",
    "data.samples=240",
    "batch_size=16",
    "local_epochs=1",
    "lr=0.05",
    "rounds=2",
]


def gaussian(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cka(x: torch.Tensor, y: torch.Tensor) -> float:
    return linear_cka(centred_gram(x), centred_gram(y))


# --- the measure ---------------------------------------------------------------------------------


@given(st.integers(3, 20), st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
def test_it_is_the_norm_of_the_cross_covariance(n, p, q, seed):
    x, y = gaussian(n, p, seed=seed), gaussian(n, q, seed=seed + 1)
    a, b = x - x.mean(0), y - y.mean(0)
    expected = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert cka(x, y) == pytest.approx(float(expected), abs=1e-9)
    assert cka(x, y) == pytest.approx(cka(y, x), abs=1e-12)
    assert -1e-12 <= cka(x, y) <= 1 + 1e-12


@given(st.integers(3, 20), st.integers(1, 12), st.floats(0.01, 100), st.integers(0, 1000))
def test_rotation_scale_and_shift_do_not_matter_and_a_stretched_axis_does(n, p, scale, seed):
    x = gaussian(n, p, seed=seed)
    rotation = torch.linalg.qr(gaussian(p, p, seed=seed + 1)).Q
    other = gaussian(n, 5, seed=seed + 2)
    moved = scale * x @ rotation + gaussian(p, seed=seed + 3)
    assert cka(x, x) == pytest.approx(1)
    assert cka(moved, x) == pytest.approx(1)
    assert cka(moved, other) == pytest.approx(cka(x, other), abs=1e-9)


def test_numbers_by_hand():
    x = torch.tensor([[1.0], [-1.0], [0.0], [0.0]])
    y = torch.tensor([[0.0], [0.0], [2.0], [-2.0]])
    assert cka(x, y) == 0
    # K = x x^T and L = x x^T + y y^T: <K, L> = 4, ||K|| = 2, ||L|| = sqrt(4 + 64)
    assert cka(x, torch.cat([x, y], 1)) == pytest.approx(4 / (2 * 68**0.5))
    assert cka(x, torch.ones(4, 3)) == 0


# --- a model's layers ----------------------------------------------------------------------------


def test_a_layer_is_every_convolution_and_linear_map():
    model = build("resnet8s", **SHAPE, generator=torch.Generator().manual_seed(0))
    found = list(layers(model))
    assert found[0] == "backbone.conv1"
    assert found[-1] == "head"
    assert len(found) == sum(
        isinstance(m, torch.nn.Conv2d | torch.nn.Linear) for m in model.modules()
    )
    images = Pixels(torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(1)))
    grams = layer_grams(model, images)
    assert list(grams) == found
    torch.testing.assert_close(grams["head"], centred_gram(model(images).logits))
    assert not any(module._forward_hooks for module in model.modules())


# --- the command ---------------------------------------------------------------------------------


def done(folder: Path, *keys: str) -> Path:
    assert fedray_run([*RUN, *keys, "--out", str(folder)]) == 0
    return folder


def test_the_local_model_of_a_single_client_is_the_next_rounds_global_model(tmp_path):
    keys = ["data.clients=1"]
    folders = [done(tmp_path / str(rounds), *keys, f"rounds={rounds}") for rounds in (2, 3)]
    (found,) = similarities(folders[0], 50)
    experiment = load_experiment(read_mapping(folders[0] / "run.json"))
    assembly = Assembly(experiment)
    images = probe_images(assembly.data, 50, assembly.streams, torch.device("cpu"))
    assert len(images) == 50
    grams = []
    for folder in folders:
        model = assembly.models.empty("cnn3", torch.device("cpu"))
        model.load_state_dict(reopen(folder)[1].snapshot.server["model"])
        grams.append(layer_grams(model, images))
    assert found == {layer: linear_cka(grams[1][layer], gram) for layer, gram in grams[0].items()}
    assert min(found.values()) < 0.999


@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "fedetf", "fedproto_global", "scaffold"])
def test_clients_that_hardly_learn_have_the_global_model(method, tmp_path):
    keys = (f"algorithm={method}", "model.group=mlp", "model.feature_dim=10", "rounds=1")
    for lr, alike in (("1e-9", True), ("0.5", False)):
        found = list(similarities(done(tmp_path / lr, *keys, f"lr={lr}"), 40))
        assert len(found) == 4
        assert {"backbone.1"} <= set(found[0])
        values = [value for similarity in found for value in similarity.values()]
        assert (min(values) > 1 - 1e-6) == alike


def test_the_command_compares_methods_and_leaves_the_runs_alone(tmp_path, capsys):
    for method, more in (("fedavg", []), ("fedprox", ["algorithm.mu=10"])):
        for seed in (0, 1):
            done(tmp_path / f"{method}{seed}", f"algorithm={method}", f"seed={seed}", *more)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/**/*")}
    capsys.readouterr()
    assert main(["cka", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / "cka.md").read_text().splitlines()
    assert lines[0] == "| layer | fedavg | fedprox |"
    assert [line.split(" | ")[0] for line in lines[2:6]] == [
        "| backbone.0", "| backbone.4", "| backbone.8", "| head"
    ]  # fmt: skip
    free, held = (float(cell.split()[0]) for cell in lines[5].split(" | ")[1:])
    assert held > free  # FedProx holds models near the global one
    assert (tmp_path / "out" / "cka.png").read_bytes()[:4] == b"\x89PNG"
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["algorithm=fedbn"], "fedbn has no global model"),
        (
            ["checkpoint_every=0", "keep.models=none"],
            "has no checkpoint; run it again with checkpoint_every=1",
        ),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(keys, message, tmp_path, refused):
    assert message in refused("cka", done(tmp_path / "run", "rounds=1", *keys))
