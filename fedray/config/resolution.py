"""Resolve a tree to a complete experiment: expand presets, check names, fill in defaults.

A resolved experiment does not depend on how it was written; what a run records of it resolves to
itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedray.base.errors import UserError, nearest
from fedray.config.experiment import Experiment
from fedray.config.experiment_plugins import completed_by_installed, with_plugins
from fedray.config.files import COMPONENTS, override, with_canonical_names
from fedray.config.registry import registry
from fedray.config.schema import Component, Tree, validate

_may_miss: ContextVar[bool] = ContextVar("_may_miss", default=False)


def load_experiment(tree: Tree, pairs: Iterable[tuple[str, Any]] = ()) -> Experiment:
    """Resolve a tree and overrides to an experiment.

    The method's preset overrides the tree, and `pairs` override both. The result holds the values
    of a preset, not its name, and every parameter of each component, defaults included. Paths are
    absolute, because actors run in other folders.

    Args:
        tree: plain data, as returned by `read_experiment`.
        pairs: dotted keys and values, as returned by `parse_assignments`.
    """
    pairs = list(pairs)
    tree = with_plugins(tree, pairs, named=False)
    pairs = [pair for pair in pairs if pair[0] != "plugins"]
    experiment = validate(Experiment, _with_preset(tree, pairs))
    for key in COMPONENTS:
        component = attrgetter(key)(experiment)
        if hasattr(component.params, "following"):  # unset parameters depend on other keys
            params = component.params.following(experiment)
            experiment = _replaced(experiment, key, replace(component, params=params))
    return completed_by_installed(_with_root(experiment))


def _with_preset(tree: Tree, pairs: list[tuple[str, Any]]) -> Tree:
    whole = with_canonical_names(override(tree, pairs))
    algorithm = whole.get("algorithm", {})
    if not isinstance(algorithm, dict) or algorithm.get("preset") is None:
        return whole
    whole = override(override(whole, preset_keys(whole).items()), pairs)
    whole["algorithm"].pop("preset")
    return whole


def preset_keys(tree: Tree) -> Tree:
    """Return the keys that `algorithm.preset` sets; empty without a preset.

    Raises:
        UserError: if the method has no such preset.
    """
    algorithm = with_canonical_names(tree).get("algorithm", {})
    if not isinstance(algorithm, dict) or algorithm.get("preset") is None:
        return {}
    method = registry("algorithm").get(str(algorithm.get("name")))
    presets: dict[str, Tree] = method.presets(tree)
    preset = str(algorithm["preset"])
    if preset not in presets:
        raise UserError(
            f"algorithm.preset: {algorithm.get('name')} has no preset '{preset}'."
            f"{nearest(preset, presets)}"
        )
    return presets[preset]


def _replaced(experiment: Experiment, key: str, component: Component) -> Experiment:
    part, _, inner = key.partition(".")
    if not inner:
        return experiment.model_copy(update={part: component})
    section = getattr(experiment, part).model_copy(update={inner: component})
    return experiment.model_copy(update={part: section})


def _with_root(experiment: Experiment) -> Experiment:
    root = experiment.data.root
    if root is None:
        return experiment
    try:
        data = experiment.data.model_copy(update={"root": str(resolve_root(root))})
    except MissingRoot as error:
        if _may_miss.get():
            return experiment
        raise MissingRoot(f"{error}{experiment.data.source.build().get_hint(Path(root))}") from None
    return experiment.model_copy(update={"data": data})


class MissingRoot(UserError):
    """The folder `data.root` does not exist."""


@contextmanager
def missing_roots_allowed() -> Iterator[None]:
    """Resolve experiments whose data is missing, to find out what else they need."""
    token = _may_miss.set(True)
    try:
        yield
    finally:
        _may_miss.reset(token)


def resolve_root(root: str) -> Path:
    """Resolve `data.root`: below $FEDRAY_DATA if it exists there, else below the working directory.

    Raises:
        MissingRoot: if the folder does not exist in either place.
    """
    path = Path(root).expanduser()
    base = os.environ.get("FEDRAY_DATA")
    folders = [Path(base), Path.cwd()] if base else [Path.cwd()]
    candidates = list(dict.fromkeys(folder / path for folder in folders))
    for candidate in candidates:
        if candidate.is_dir():
            return candidate.resolve()
    tried = " and ".join(str(candidate) for candidate in candidates)
    hint = "" if base else "set FEDRAY_DATA to the folder that contains it, or "
    raise MissingRoot(
        f"data.root={root} is not a folder (looked at {tried}); {hint}pass data.root=/its/path"
    )
