"""FedMGP's Table 3: numbers trained and sent by each method with ViT-B/16, by the gate's ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prompting import Alone, empty_client, first_exchange, trained_numbers

from fedray.models.clip import load_clip
from fedray.runtime.assembly import Assembly

pytestmark = pytest.mark.slow  # a ViT-B/16; `test_traffic` counts every method on a small CLIP
VIT_B_16 = {"model": "ViT-B-16-quickgelu", "pretrained": "random", "path": None}


@pytest.fixture(scope="module", autouse=True)
def _one_clip():
    """It is made once, and leaves its memory behind."""
    yield
    load_clip.cache_clear()


@pytest.fixture
def vit_b_16(assemble):
    """`vit_b_16(method, hparams)` gives the parts of an experiment around a random ViT-B/16."""

    def vit_b_16(method: str, hparams: dict[str, int]) -> Assembly:
        changes: dict[str, Any] = {f"algorithm.{name}": value for name, value in hparams.items()}
        if method == "dp2fl":
            changes["data.validation_fraction"] = 0.2
        changes["model.clip"] = VIT_B_16
        data = assemble(method, changes).data
        large = np.broadcast_to(np.zeros(1, np.uint8), (len(data.images.labels), 1, 224, 224))
        enlarged = replace(data, images=replace(data.images, images=large))
        return assemble(method, changes, enlarged)

    return vit_b_16


@pytest.mark.parametrize(
    ("method", "hparams", "trained", "sent", "kind"),
    [
        ("zero_shot", {}, 0, 0, "prompts"),
        ("local_prompts", {}, 8_192, 0, "prompts"),
        ("promptfl", {}, 8_192, 8_192, "prompts"),
        ("promptfl_fedprox", {}, 8_192, 8_192, "prompts"),
        ("promptfl_pfedme", {}, 8_192, 8_192, "prompts"),
        ("fedotp", {}, 16_384, 8_192, "prompts"),
        ("promptfolio", {}, 16_384, 8_192, "prompts"),
        ("fedpgp", {"copies": 2}, 24_832, 16_384, "prompts"),
        ("fedpgp", {}, 12_416, 8_192, "prompts"),
        # Table 3 has 4,208,128: FedMGP's port counts a context of 4 tokens that nothing uses.
        ("fedtpg", {}, 4_208_128 - 4 * 512, 4_208_128 - 4 * 512, "weights"),
        ("fedclip", {}, 525_312, 525_312, "weights"),
        ("maple_fedavg", {}, 1_024 + 393_984, 1_024 + 393_984, "prompts"),
        ("vpt", {}, 12 * 8 * 768, 12 * 8 * 768, "prompts"),
        ("ivlp", {}, 12 * 2 * (768 + 512), 12 * 2 * (768 + 512), "prompts"),
        ("lora", {}, 12 * 3 * 4 * (768 + 512), 12 * 3 * 4 * (768 + 512), "weights"),
        ("pfedmma", {}, 8 * (65 * (768 + 512) + 64 + 33 * 32), 8 * 33 * 32, "weights"),
    ],
)
def test_trained_and_sent(vit_b_16, method, hparams, trained, sent, kind):
    assembly = vit_b_16(method, hparams)
    down, up = first_exchange(assembly)
    assert trained_numbers(assembly) == trained
    assert down.params == ({kind: sent} if sent else {})
    assert up.params == ({kind: sent, "statistics": 1} if sent else {})


def test_fedmgp_trains_five_groups_and_sends_two(vit_b_16):
    assembly = vit_b_16("fedmgp", {})
    alone = Alone(assembly, empty_client(assembly, (0,)))
    assembly.algorithm.round(assembly.algorithm.init_server(alone.server), alone)
    assert trained_numbers(assembly) == 12_800
    assert alone.up.params == {"prompts": 5_120, "statistics": 1}  # the number of its images
    assert alone.down.params == {"prompts": 5_120}


def test_dp2fl_sends_task_and_data_prompts_each_way(vit_b_16):
    task, data = 1_024, 393_984
    assert trained_numbers(vit_b_16("dp2fl", {"depth": 9})) == 9 * task + 3_545_856
    assembly = vit_b_16("dp2fl", {"depth": 1})
    client, method = empty_client(assembly, (0,)), assembly.algorithm
    alone = Alone(assembly, replace(client, validation=client.train))
    state = method.give(method.init_server(alone.server), alone)
    assert alone.up.params == {"images": 224 * 224, "statistics": 1}
    method.round(state, alone)
    assert (state["task"].numel(), state["data"].numel()) == (task, data)
    assert trained_numbers(assembly) == task + data
    assert alone.up.params["prompts"] == alone.down.params["prompts"] == task + data
    losses = method.setting.clients + 1  # of each on its own images, and own
    assert alone.up.params["statistics"] == 1 + losses
