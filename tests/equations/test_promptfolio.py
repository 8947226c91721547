"""PromptFolio: mixed text features by hand, both ends of theta, and what stays at a client."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from prompting import NAMES, clip_of, drawn, gradients, noise

from fedray.algorithms.promptfl import ContextClip
from fedray.algorithms.promptfolio import PortfolioClip, mix

SHORT = {"algorithm.length": 4}


def test_the_mixture_by_hand_is_no_unit_vector():
    shared, own = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    mixed = mix(shared, own, 0.4)
    torch.testing.assert_close(mixed, torch.tensor([[0.6, 0.4]]))
    assert float(mixed.norm()) == pytest.approx(0.52**0.5)


def test_both_contexts_are_encoded_as_one_alone(tiny_clip):
    model = drawn(PortfolioClip(clip_of(tiny_clip), NAMES, 4, theta=0.3))
    single = ContextClip(model.clip, NAMES, 4)
    found = []
    for context in (model.shared_context, model.own_context):
        single.context.data.copy_(context)
        found.append(single.text_features())
    torch.testing.assert_close(model.text_features(), 0.7 * found[0] + 0.3 * found[1])
    assert (model.text_features().norm(dim=-1) <= 1 + 1e-6).all()
    assert not torch.equal(model.shared_context, model.own_context)


@pytest.mark.parametrize(
    ("theta", "silent", "learning"),
    [(0.0, "own_context", "shared_context"), (1.0, "shared_context", "own_context")],
)
def test_at_both_ends_one_context_has_no_gradient(tiny_clip, theta, silent, learning):
    model = drawn(PortfolioClip(clip_of(tiny_clip), NAMES, 4, theta=theta))
    logits = model(noise(6, model.clip.dim)).logits
    found = gradients(model, F.cross_entropy(logits, torch.arange(6) % 5))
    assert float(found[silent].abs().max()) == 0
    assert float(found[learning].abs().max()) > 0


def test_theta_0_is_promptfl(run):
    plain = run("promptfl", SHORT)
    ours = run("promptfolio", {**SHORT, "algorithm.theta": 0})
    moved = plain.servers[-1]["context"] - plain.servers[0]["context"]
    close = ours.servers[-1]["shared_context"] - plain.servers[-1]["context"]
    assert close.abs().max() < 1e-3 * moved.abs().max()
    assert [r.per_client for r in ours.results] == [r.per_client for r in plain.results]


def test_theta_1_is_local_prompts(run):
    """But for the initial draw: the own context is the second."""
    done = run("promptfolio", {**SHORT, "algorithm.theta": 1})
    first, last = done.servers[0], done.servers[-1]
    torch.testing.assert_close(last["shared_context"], first["shared_context"], rtol=1e-6, atol=0)
    own = [model["own_context"] for model in done.models.values()]
    assert all(not torch.equal(own[0], other) for other in own[1:])


def test_only_the_shared_context_travels_and_only_the_own_one_stays(run):
    done = run("promptfolio", SHORT)
    assert set(done.servers[-1]) == {"shared_context"}
    assert all(set(model) == {"own_context"} for model in done.models.values())
    numbers = done.servers[-1]["shared_context"].numel()
    assert done.results[1].up.params == {"prompts": 4 * numbers, "statistics": 4}
    assert done.results[1].down.params == {"prompts": 4 * numbers}
