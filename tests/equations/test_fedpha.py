"""FedPHA: projection and alignment by hand, the official code's loss, and lengths of clients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import gradients, noise
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.prompts.fedpha import alignment, project
from fedray.algorithms.prompts.prompt_averaging import GlobalPrompts
from fedray.core import Batch, ClientState
from fedray.errors import UserError
from fedray.models import ImageFeatures
from fedray.models.prompted.texts import placeholders


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


def test_the_loss_is_that_of_the_official_lines(assemble):
    assembly, local = context_of(assemble, local_lengths=[4], alpha=1.5)
    model = local.model
    batch = Batch(ImageFeatures(noise(6, model.clip.dim)), torch.arange(6))
    found = loss_of(assembly, local, batch)
    encoded = model.class_texts(placeholders(4)).encode
    _, s, v = torch.svd(model.shared_context)
    weak = v[:, int(s.shape[0] * (1 - 0.8)) :]
    projected = torch.mm(model.local_context, torch.mm(weak, weak.T))
    features, projected_features = encoded(model.local_context), encoded(projected)
    global_features = encoded(model.shared_context)
    image = F.normalize(batch.inputs.values, dim=-1)
    logits, global_logits = (
        model.clip.scale * image @ text.t() for text in (features, global_features)
    )
    pull = F.mse_loss(features, projected_features)
    push = F.relu(1.5 - torch.norm(features - global_features, dim=-1)).mean()
    expected = F.cross_entropy(logits, batch.labels) + F.cross_entropy(global_logits, batch.labels)
    torch.testing.assert_close(found, expected + pull + push)
    ours, theirs = gradients(model, found), gradients(model, expected + pull + push)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.eval()(batch.inputs).logits, logits)


def test_a_client_reads_as_many_rows_as_its_length(assemble):
    for client, length in enumerate([3, 6, 3]):
        assembly, local = context_of(assemble, client, local_lengths=[3, 6])
        batch = Batch(ImageFeatures(noise(6, local.model.clip.dim)), torch.arange(6))
        found = gradients(local.model, loss_of(assembly, local, batch))["local_context"]
        assert (found.abs().amax(1) > 0).tolist() == [row < length for row in range(6)]


@pytest.mark.parametrize("lengths", [[], [0]])
def test_lengths_are_at_least_one(assemble, lengths):
    with pytest.raises(UserError, match="local_lengths"):
        assemble("fedpha", {"algorithm.local_lengths": lengths})
