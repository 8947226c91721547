"""Linear maps that do not learn: the numbers of `F.linear`, and gradients to their inputs alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tensors import gaussian
from torch.utils.checkpoint import checkpoint

from fedray.language.encoders import frozen
from fedray.language.encoders.frozen import FrozenLinear


@pytest.fixture
def parts() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Three maps of 24 inputs to 40 outputs."""
    return [gaussian(40, 24, seed=i) for i in range(3)], [
        gaussian(40, seed=9 + i) for i in range(3)
    ]


def run(function, rows: int = 50):
    x = gaussian(rows, 24, seed=5).requires_grad_()
    y = function(x)
    weighed = (y * gaussian(*y.shape, seed=6)).sum()
    return y.detach(), torch.autograd.grad(weighed, x)[0]


def close(found, expected) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        largest = float(theirs.abs().max())
        torch.testing.assert_close(mine, theirs, atol=2e-6 * largest, rtol=0)


@pytest.mark.parametrize("rows", [1, 7, 50, 333])
def test_outputs_and_gradients_are_those_of_torch(parts, rows):
    weights, biases = parts
    whole = torch.cat(weights), torch.cat(biases)
    close(run(FrozenLinear(*parts), rows), run(lambda x: F.linear(x, *whole), rows))
    close(
        run(FrozenLinear(weights[:1], biases[:1]), rows),
        run(lambda x: F.linear(x, weights[0], biases[0]), rows),
    )


def test_the_same_inputs_give_the_same_bits(parts):
    first, again = run(FrozenLinear(*parts)), run(FrozenLinear(*parts))
    assert all(map(torch.equal, first, again))


def test_a_gradient_that_is_no_block_of_memory(parts):
    linear = FrozenLinear(*parts)
    x = gaussian(6, 24).requires_grad_()
    [found] = torch.autograd.grad(linear(x).sum(), x)  # one number, expanded
    close([found], [torch.cat(parts[0]).sum(0).expand(6, -1)])


def test_what_is_computed_again_for_the_gradient_has_the_same_bits(parts):
    linear = FrozenLinear(*parts)
    again = run(lambda x: checkpoint(linear, x, use_reentrant=False))
    assert all(map(torch.equal, run(linear), again))


def test_the_weights_have_no_gradient_and_nothing_of_the_inputs_is_kept(parts):
    for tensor in parts[0]:
        tensor.requires_grad_()
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        FrozenLinear(*parts)(gaussian(5, 24).requires_grad_()).sum().backward()
    assert not kept
    assert all(tensor.grad is None for tensor in parts[0])


def test_where_onednn_is_not_torch_multiplies(parts, monkeypatch):
    monkeypatch.setattr(frozen, "_multiply", lambda *args: pytest.fail("oneDNN is asked"))
    weights, biases = ([tensor.double() for tensor in of] for of in parts)
    x = gaussian(5, 24).double()
    assert torch.equal(
        FrozenLinear(weights, biases)(x), F.linear(x, torch.cat(weights), torch.cat(biases))
    )
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    whole = torch.cat(parts[0]), torch.cat(parts[1])
    assert torch.equal(FrozenLinear(*parts)(x.float()), F.linear(x.float(), *whole))
