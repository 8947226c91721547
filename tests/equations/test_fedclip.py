"""A gate on image features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from clips import clip_of, drawn, gradients, noise, prompted

from fedray.algorithms.prompts.fedclip import FedCLIP, batch_contrast
from fedray.core import takes_equal_mean
from fedray.models import ImageFeatures


def test_a_constant_gate_is_zero_shot(tiny_clip):
    model = prompted("fedclip", clip_of(tiny_clip))
    features = ImageFeatures(noise(6, model.clip.dim))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        plain = prompted("zero_shot", model.clip, template="a picture of a {}")(features).logits
        torch.testing.assert_close(model(features).logits, plain)
        assert (drawn(model)(features).logits - plain).abs().max() > 1e-3


def test_the_gate_reads_the_towers_output_as_it_is(tiny_clip):
    """I = (2, 1), W = identity: softmax(tanh I) * I = (0.550437 * 2, 0.449563), of unit length."""
    model = prompted("fedclip", clip_of(tiny_clip))
    image = torch.zeros(1, model.clip.dim)
    image[0, :2] = torch.tensor([2.0, 1.0])
    with torch.no_grad():
        for weight, bias in (model.adapter[0].parameters(), model.adapter[2].parameters()):
            weight.copy_(torch.eye(model.clip.dim))
            bias.copy_(torch.full_like(bias, -100.0).index_fill(0, torch.tensor([0, 1]), 0.0))
    with torch.no_grad():
        features = model.image_features(ImageFeatures(image))[0]
        scaled = model.image_features(ImageFeatures(F.normalize(image)))[0]
    torch.testing.assert_close(features[:2], torch.tensor([0.925785, 0.378053]), atol=1e-5, rtol=0)
    assert (features - scaled).abs().max() > 1e-3


def test_the_loss_contrasts_a_batch_in_both_directions():
    """Images of classes 0, 1, 0: rows and columns are images and their texts, as in CLIP's loss."""
    logits = torch.tensor([[2.0, 0.0], [1.0, 3.0], [0.0, 1.0]])
    e = torch.e
    rows = [
        torch.tensor(e**2 / (e**2 + 1 + e**2)),
        torch.tensor(e**3 / (e + e**3 + e)),
        torch.tensor(1 / (1 + e + 1)),
    ]
    columns = [
        torch.tensor(e**2 / (e**2 + e + 1)),
        torch.tensor(e**3 / (1 + e**3 + e)),
        torch.tensor(1 / (e**2 + e + 1)),
    ]
    expected = -sum(p.log() for p in rows + columns) / 6
    torch.testing.assert_close(batch_contrast(logits, torch.tensor([0, 1, 0])), expected)


def test_a_batch_of_one_has_no_contrast_and_clients_weigh_equally():
    assert batch_contrast(torch.tensor([[2.0, 0.0]]), torch.tensor([1])) == 0
    assert takes_equal_mean(FedCLIP())
    assert FedCLIP.version == 3


def test_all_of_the_adapter_learns(tiny_clip):
    model = drawn(prompted("fedclip", clip_of(tiny_clip)))
    loss = F.cross_entropy(model(ImageFeatures(noise(5, model.clip.dim))).logits, torch.arange(5))
    assert all(float(value.abs().max()) > 0 for value in gradients(model, loss).values())
