"""PromptFolio: both ends of theta are other methods, and what stays at a client."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of, drawn, gradients, noise

from fedray.algorithms.prompts.promptfolio import PortfolioClip, mix
from fedray.models import ImageFeatures
from fedray.models.prompted import ContextClip

SHORT = {"algorithm.length": 4}


def test_theta_1_is_local_prompts(run):
    """But for the initial draw: the local context is the second."""
    done = run("promptfolio", {**SHORT, "algorithm.theta": 1})
    first, last = (done.servers[round_]["model"] for round_ in (0, -1))
    torch.testing.assert_close(last["shared_context"], first["shared_context"], rtol=1e-6, atol=0)
    local = [model["local_context"] for model in done.models.values()]
    assert all(not torch.equal(local[0], other) for other in local[1:])


def test_the_mixture_by_hand_is_no_unit_vector():
    shared, local = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    mixed = mix(shared, local, 0.4)
    torch.testing.assert_close(mixed, torch.tensor([[0.6, 0.4]]))
    assert float(mixed.norm()) == pytest.approx(0.52**0.5)


def test_both_contexts_are_encoded_as_one_alone(tiny_clip):
    model = drawn(PortfolioClip(clip_of(tiny_clip), DIGITS, 4, theta=0.3))
    single = ContextClip(model.clip, DIGITS, 4)
    found = []
    for context in (model.shared_context, model.local_context):
        single.context.data.copy_(context)
        found.append(single.text_features())
    torch.testing.assert_close(model.text_features(), 0.7 * found[0] + 0.3 * found[1])
    assert (model.text_features().norm(dim=-1) <= 1 + 1e-6).all()
    assert not torch.equal(model.shared_context, model.local_context)


@pytest.mark.parametrize(
    ("theta", "silent", "learning"),
    [(0.0, "local_context", "shared_context"), (1.0, "shared_context", "local_context")],
)
def test_at_both_ends_one_context_has_no_gradient(tiny_clip, theta, silent, learning):
    model = drawn(PortfolioClip(clip_of(tiny_clip), DIGITS, 4, theta=theta))
    logits = model(ImageFeatures(noise(6, model.clip.dim))).logits
    found = gradients(model, F.cross_entropy(logits, torch.arange(6) % 5))
    assert float(found[silent].abs().max()) == 0
    assert float(found[learning].abs().max()) > 0
