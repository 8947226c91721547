"""Frozen CLIPs together with the open_clip models that they were made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from clips import Pair, frozen, save_clip
from torch import Tensor

from fedray.models.clip import FrozenClip


@pytest.fixture(scope="session", params=["CLIP", "CustomTextCLIP"])
def pair(request, tmp_path_factory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    official = save_clip(folder, custom=request.param == "CustomTextCLIP")
    return Pair(frozen(folder), official)


@pytest.fixture(scope="session")
def native(tmp_path_factory) -> Pair:
    folder = tmp_path_factory.mktemp("native")
    return Pair(frozen_after(folder), None)


def frozen_after(folder: Path) -> FrozenClip:
    save_clip(folder)
    return frozen(folder)


@pytest.fixture(scope="session")
def clip(native) -> FrozenClip:
    return native.clip


@pytest.fixture
def images() -> Tensor:
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(3)) * 2 - 1
