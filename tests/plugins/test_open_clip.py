"""A frozen CLIP is open to plug-ins: changed weights, adapters, pixels, one size per client."""

from __future__ import annotations

import pytest
from plugged import write

from fedray.config.plugins import use
from fedray.results.analyses.extra_step import reopen
from fedray.run import main

PLUGIN = '''
"""A shared frame of pixels, personal low-rank updates of rank 1, 2, 3 and one shared gate."""
from __future__ import annotations

import torch
from torch import nn

from fedray.plugin import Pixels, PromptAveraging, PromptedClip, method

BLOCK = "transformer.resblocks.1"
NAME = f"{BLOCK}.attn.in_proj_weight"


class OpenClip(PromptedClip):
    """A CLIP whose towers and images change."""

    reads = Pixels

    def __init__(self, clip, names, rank):
        super().__init__(clip, names)
        shapes = [tower.get_parameter(NAME).shape for tower in clip.towers.values()]
        self.b = nn.ParameterList(torch.zeros(out, rank) for out, _ in shapes)
        self.a = nn.ParameterList(torch.zeros(rank, width) for _, width in shapes)
        self.gates = nn.ParameterList(torch.zeros(width) for _, width in shapes)
        self.frame = nn.Parameter(torch.zeros(3, clip.vision.image_size, clip.vision.image_size))

    @torch.no_grad()
    def initialise(self, generator):
        for a in self.a:
            a.normal_(generator=generator)

    def additions(self, tower):
        weights = {NAME: self.b[tower] @ self.a[tower]}
        return {"weights": weights, "branches": {BLOCK: lambda x: self.gates[tower] * x}}

    def encode(self, x):
        return super().encode(Pixels(x.values + self.frame), **self.additions(0))

    def text_features(self):
        return self.class_texts().encode(**self.additions(1))


@method("open", "Open", "-")
class Open(PromptAveraging):
    """Averages the frame and the gates."""

    stacks = True

    everything: bool = False
    """Share the low-rank updates, too."""

    def size(self, client):
        return 1 + client % 3

    def sized_model(self, clip, class_names, size):
        return OpenClip(clip, class_names, size)

    def shared(self, model):
        if self.everything:
            return super().shared(model)
        return {"frame", "gates.0", "gates.1"}
'''


@pytest.fixture(autouse=True)
def none_afterwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    use(())


@pytest.fixture
def words(tmp_path, tiny_clip) -> list[str]:
    """Words of a plug-in and of a tiny CLIP."""
    clip = f"model.clip={{name: openclip, path: {tiny_clip}}}"
    return [*write(tmp_path, plugin=PLUGIN), clip, "data.image_size=8", "rounds=2", "lr=0.5"]


def trained(words, out, *more: str) -> int:
    given = ["promptfl_clip", *more, "data.samples=60", "data.clients=3", "data.partition=iid"]
    return main([*given, *words, "--executor", "serial", "--no-track", "--out", str(out)])


def test_a_plugin_changes_both_towers_and_its_clients_differ_in_size(words, tmp_path):
    assert trained(words, tmp_path / "out", "algorithm={name: open}") == 0
    _, found = reopen(tmp_path / "out")
    for client, state in found.clients.items():
        assert state.model["a.0"].shape[0] == 1 + client
        assert all(float(state.model[name].abs().max()) > 0 for name in ("b.0", "b.1"))
    shared = found.snapshot.server["model"]
    assert shared.keys() == {"frame", "gates.0", "gates.1"}
    assert all(float(tensor.abs().max()) > 0 for tensor in shared.values())


def test_what_is_averaged_has_one_shape(words, tmp_path, capsys):
    assert trained(words, tmp_path / "out", "algorithm={name: open, everything: true}") == 1
    assert "do not fit the model: a.0 is float32 [1, 32]" in capsys.readouterr().err
