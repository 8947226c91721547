"""FedMGP's Table 3: numbers trained and sent by each method with ViT-B/16, by the gate's ledger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prompting import first_exchange

from fedray.models.clip import load_clip

VIT_B_16 = {"model": "ViT-B-16-quickgelu", "pretrained": "random", "path": None}


@pytest.fixture(scope="module", autouse=True)
def _one_clip():
    """It is made once, and leaves its memory behind."""
    yield
    load_clip.cache_clear()


@pytest.mark.parametrize(
    ("method", "knobs", "trained", "sent"),
    [
        ("zero_shot", {}, 0, 0),
        ("local_prompts", {}, 8_192, 0),
        ("promptfl", {}, 8_192, 8_192),
        ("promptfl_fedprox", {}, 8_192, 8_192),
        ("promptfl_pfedme", {}, 8_192, 8_192),
        ("fedotp", {}, 16_384, 8_192),
        ("promptfolio", {}, 16_384, 8_192),
        ("fedpgp", {"copies": 2}, 24_832, 16_384),
        ("fedpgp", {}, 12_416, 8_192),
        # Table 3 has 4,208,128: FedMGP's port counts a context of 4 tokens that nothing uses.
        ("fedtpg", {}, 4_208_128 - 4 * 512, 4_208_128 - 4 * 512),
        ("fedclip", {}, 525_312, 525_312),
    ],
)
def test_trained_and_sent(assemble, method, knobs, trained, sent):
    changes = {f"algorithm.{name}": value for name, value in knobs.items()}
    assembly = assemble(method, {"model.clip": VIT_B_16, **changes})
    images = assembly.data.images
    large = np.broadcast_to(np.zeros(1, np.uint8), (len(images.labels), 1, 224, 224))
    assembly.__dict__["data"] = replace(assembly.data, images=replace(images, images=large))
    down, up, learning = first_exchange(assembly)
    assert learning == trained
    assert down.total_params == sent
    assert up.total_params - up.params.get("statistics", 0) == sent
    assert up.params.get("statistics", 0) == (1 if sent else 0)
