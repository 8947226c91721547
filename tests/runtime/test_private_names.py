"""Private names of libraries that the package uses: pyproject.toml bounds the versions."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
NAMES = {
    "torch": (
        "torch:_foreach_norm",
        "torch:Tensor._make_wrapper_subclass",
        "torch.utils.backend_registration:_DummyBackendModule",
        "torch.utils.backend_registration:_setup_privateuseone_for_python_backend",
        "torch.optim:Optimizer.add_param_group.__wrapped__",
        "torch.optim:Optimizer.zero_grad.__wrapped__",
        "torch.optim:SGD.step.__wrapped__",
    ),
    "open_clip_torch": (
        "open_clip.transformer:VisionTransformer._embeds",
        "open_clip.transformer:VisionTransformer._pool",
        "open_clip.transformer:ResidualAttentionBlock.attention",
        "open_clip.transformer:TextTransformer.build_causal_mask",
    ),
}
"""By package: module and attribute. Check these by hand before a bound is raised."""


@pytest.mark.parametrize("package", NAMES)
def test_the_installed_version_is_bounded_and_has_the_private_names(package):
    [found] = re.findall(rf'^  "{package}(?:\[.*\])?([<>].*)",$', PROJECT.read_text("utf-8"), re.M)
    bound = SpecifierSet(found)
    assert "<" in {part.operator for part in bound}
    assert bound.contains(version(package))
    for name in NAMES[package]:
        module, _, attributes = name.partition(":")
        value = import_module(module)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
