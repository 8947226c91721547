"""FedPHA: projection and alignment by hand, and lengths of clients."""

from __future__ import annotations

import pytest
import torch
from clips import gradients, noise
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.prompts.fedpha import alignment, project
from fedray.algorithms.prompts.prompt_averaging import GlobalPrompts
from fedray.core import Batch, ClientState
from fedray.models import ImageFeatures


def test_the_projection_by_hand_keeps_the_weak_directions():
    shared = torch.diag(torch.tensor([5.0, 4.0, 1.0]))[:, [2, 0, 1]]  # strongest: column 1
    shared = torch.cat([shared, torch.zeros(3, 1)], dim=1)
    local = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert project(local, shared, 1.0).tolist() == [[1.0, 2.0, 3.0, 0.0]]
    assert project(local, shared, 0.6).tolist() == [[1.0, 0.0, 3.0, 0.0]]  # floor(3 * 0.4) = 1


def test_the_alignment_by_hand():
    own = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    shared = torch.tensor([[1.0, 0.6], [0.0, -1.0]])  # distances 0.6 and 2
    projected = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    assert alignment(own, projected, shared, 1.0).item() == pytest.approx(0.5 + 0.4 / 2)
    assert alignment(own, own, shared, 0.5).item() == 0


def context_of(assemble, client=0, **hparams):
    changes = {f"algorithm.{name}": value for name, value in hparams.items()}
    assembly = assemble("fedpha", {"algorithm.length": 4, **changes})
    runtime, start = empty_client(assembly), initial_prompts(assembly)
    object.__setattr__(runtime, "id", client)
    down = GlobalPrompts({"shared_context": start["shared_context"]}, {})
    state = ClientState({"local_context": start["local_context"]})
    return assembly, assembly.algorithm.begin(runtime, state, down)


def test_a_client_reads_as_many_rows_as_its_length(assemble):
    for client, length in enumerate([3, 6, 3]):
        assembly, local = context_of(assemble, client, local_lengths=[3, 6])
        batch = Batch(ImageFeatures(noise(6, local.model.clip.dim)), torch.arange(6))
        found = gradients(local.model, loss_of(assembly, local, batch))["local_context"]
        assert (found.abs().amax(1) > 0).tolist() == [row < length for row in range(6)]
