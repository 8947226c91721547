"""FedPHA: lengths of clients."""

from __future__ import annotations

import torch
from clips import gradients, noise
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.core import Batch, ClientState
from fedray.models import ImageFeatures


def context_of(assemble, client=0, **hparams):
    changes = {f"algorithm.{name}": value for name, value in hparams.items()}
    assembly = assemble("fedpha", {"algorithm.length": 4, **changes})
    runtime, start = empty_client(assembly), initial_prompts(assembly)
    object.__setattr__(runtime, "id", client)
    down = PromptAveraging.down({"shared_context": start["shared_context"]})
    state = ClientState({"local_context": start["local_context"]})
    return assembly, assembly.algorithm.begin(runtime, state, down)


def test_a_client_reads_as_many_rows_as_its_length(assemble):
    for client, length in enumerate([3, 6, 3]):
        assembly, local = context_of(assemble, client, local_lengths=[3, 6])
        batch = Batch(ImageFeatures(noise(6, local.model.clip.dim)), torch.arange(6))
        found = gradients(local.model, loss_of(assembly, local, batch))["local_context"]
        assert (found.abs().amax(1) > 0).tolist() == [row < length for row in range(6)]
