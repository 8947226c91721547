"""What a method cannot do with what an experiment gives it."""

from __future__ import annotations

import pytest

from fedray.config import load_experiment
from fedray.errors import UserError
from fedray.runtime.compatibility import check


@pytest.mark.parametrize(
    ("method", "keys", "message"),
    [
        ("fedavg", {"data.augment": "flip_crop"}, None),
        ("fedavg", {"model.group": "unet_tiny"}, None),
        (
            "fedproto",
            {"model.group": "unet_tiny"},
            r"fedproto cannot: .* choose .*fedavg",
        ),
        (
            "fedavg",
            {"model.group": "unet_tiny", "data.augment": "flip_crop"},
            r"data\.augment=flip_crop transforms images but not their masks",
        ),
        ("promptfl", {"finetune_epochs": 1}, r"finetune_epochs=1 trains heads, but promptfl's"),
        (
            "promptfl",
            {"model.pretrained": "weights.pth"},
            r"model\.pretrained=.* loads backbones, but promptfl trains prompts",
        ),
        (
            "fedavg",
            {"data.novel": True, "data.test": "official"},
            r"data\.novel=true tests classes",
        ),
        ("promptfl", {"data.novel": True, "data.test": "official"}, None),
    ],
)
def test_requirements_are_held_against_what_is_given(method, keys, message):
    def checked() -> None:
        check(load_experiment({"algorithm": method}, keys.items()))

    if message is None:
        checked()
    else:
        with pytest.raises(UserError, match=message):
            checked()
