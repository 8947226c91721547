"""KgCoOp: the loss from the official code's lines."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import gradients, noise
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ImageFeatures


def loss_and_model(assemble, **hparams):
    changes = {f"algorithm.{name}": value for name, value in hparams.items()}
    assembly = assemble("kgcoop", changes)
    client, start = empty_client(assembly), initial_prompts(assembly)
    model = client.load({"context": start["context"] + noise(*start["context"].shape)})
    batch = Batch(ImageFeatures(noise(6, model.clip.dim)), torch.arange(6))
    local = LocalContext(client, model, ClientState({}), PromptAveraging.down(start))
    return loss_of(assembly, local, batch), model, batch


@pytest.mark.parametrize("template", ["a photo of a {}.", "a small {}, a digit."])
def test_the_loss_is_the_official_codes(assemble, template):
    loss, model, batch = loss_and_model(assemble, **{"lambda": 3.0, "template": template})
    text, old = model.text_features(), model.fixed_texts(template)
    logits = model.clip.scale * F.normalize(batch.inputs.values, dim=-1) @ text.T
    score = 1.0 - torch.mean(torch.nn.CosineSimilarity(dim=1, eps=1e-07)(text, old))
    torch.testing.assert_close(loss, F.cross_entropy(logits, batch.labels) + 3.0 * score)
    assert float(gradients(model, score)["context"].abs().max()) > 0
