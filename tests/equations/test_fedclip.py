"""FedCLIP: a gate on image features, the only thing that learns and travels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from prompting import NAMES, clip_of, drawn, gradients, noise

from fedray.algorithms.fedclip import AdapterClip
from fedray.algorithms.zero_shot import ZeroShotClip


def test_a_constant_gate_is_zero_shot(tiny_clip):
    model = AdapterClip(clip_of(tiny_clip), NAMES)
    features = noise(6, model.clip.dim)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        plain = ZeroShotClip(model.clip, NAMES)(features).logits
        torch.testing.assert_close(model(features).logits, plain)
        assert (drawn(model)(features).logits - plain).abs().max() > 1e-3


def test_the_gate_by_its_formula(tiny_clip):
    model = drawn(AdapterClip(clip_of(tiny_clip), NAMES))
    image = F.normalize(noise(3, model.clip.dim), dim=-1)
    w1, b1, w2, b2 = model.parameters()
    gate = torch.softmax(torch.tanh(image @ w1.T + b1) @ w2.T + b2, dim=-1)
    expected = F.normalize(gate * image, dim=-1)
    torch.testing.assert_close(model.image_features(3.0 * image), expected)


def test_all_of_the_adapter_learns(tiny_clip):
    model = drawn(AdapterClip(clip_of(tiny_clip), NAMES))
    loss = F.cross_entropy(model(noise(5, model.clip.dim)).logits, torch.arange(5))
    assert all(float(value.abs().max()) > 0 for value in gradients(model, loss).values())


def test_the_adapter_is_what_travels(run):
    done = run("fedclip", {"lr": 0.5})
    width = done.assembly.empty("prompted_clip").clip.dim
    numbers = 2 * (width**2 + width)
    assert done.results[1].up.params == {"weights": 4 * numbers, "statistics": 4}
    assert any(
        not torch.equal(tensor, done.servers[0][name]) for name, tensor in done.servers[-1].items()
    )
