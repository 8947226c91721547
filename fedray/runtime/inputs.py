"""Look for an experiment's data and weights, without the network and before anything is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedray.config import Component, DataConfig, Experiment
from fedray.core import algorithms
from fedray.data.sources import Source
from fedray.data.splits import LISTS, split_files
from fedray.errors import UserError
from fedray.plugins import use
from fedray.registry import registry
from fedray.units import size_of
from fedray.weights import find_weights, hub_cache, is_cached


def check_inputs(experiment: Experiment) -> None:
    """Raise an error if an experiment's data or weights are not on this machine.

    Raises:
        UserError: with the commands that get what is missing.
    """
    missing = missing_inputs(experiment)
    if missing:
        raise UserError("; ".join(missing))


def missing_inputs(experiment: Experiment) -> list[str]:
    """Return a sentence for each input that is not on this machine, with the command to get it."""
    return [*_missing_data(experiment.data), *missing_weights(experiment)]


def _missing_data(keys: DataConfig) -> list[str]:
    source: Source = keys.source.build()
    if keys.download:
        return []
    root = Path(keys.root) if keys.root else None
    if root is not None and not root.is_dir() and (hint := source.get_hint(root)):
        return [f"data.root={root} is not on this machine{hint}"]
    try:
        found = source.find_root(root, download=False)
        if keys.split not in (None, LISTS):  # a source names what is worse than missing lists
            split_files(found, keys.split)
    except UserError as error:
        return [str(error)]
    return []


def missing_weights(experiment: Experiment) -> list[str]:
    """Return a sentence for each of an experiment's models whose weights are not here."""
    use(experiment.plugins)
    requires = algorithms.get(experiment.algorithm.name).requires
    sentences = []
    if requires.text:
        sentences.append(_missing_model("text.encoder", experiment.text.encoder))
    if requires.prompts:
        sentences.append(_missing_model("model.clip", experiment.model.clip))
    return [sentence for sentence in sentences if sentence]


def _missing_model(key: str, component: Component) -> str:
    """Return a sentence about the weights of a shipped entry; "" if they are here, or are files."""
    if not registry(component.kind).get(component.name).__module__.startswith("fedray."):
        return ""  # the parameters of a plug-in may mean something else
    values: dict[str, Any] = component.params.model_dump()
    model, tag = values.get("model"), values.get("pretrained")
    if values.get("path") or tag == "random":
        return ""
    if "pretrained" in values and model and not tag and not model.startswith("hf-hub:"):
        return ""  # refused when it is loaded: it needs a tag
    what = f"{key}={component.name}"
    known = find_weights(model or what) if tag in (None, "openai") else None
    if known is not None:
        if known.is_here:
            return ""
        size = f" ({size_of(known.bytes)})" if known.bytes else ""
        if known.package:
            return f"{what} needs the package of {known.title}{size}: {known.origin.by_hand}"
        return _not_found(what, f"{known.title}{size}", f"fedray get {known.name}", key)
    repo, file = _repository(model, tag)
    if not repo or is_cached(repo, file):
        return ""
    return _not_found(what, f"{repo} of the hub", f"hf download {repo}", key)


def _not_found(what: str, model: str, command: str, key: str) -> str:
    return (
        f"{what} needs {model}, which is not in {hub_cache()}; get it with: {command}, or name a "
        f"local copy with {key}.path"
    )


def _repository(model: str | None, tag: str | None) -> tuple[str, str | None]:
    """Return the hub's repository of a model, and its weight file if named; "" for no repository.

    Args:
        model: the hub's name, with prefix hf-hub: for open_clip; or open_clip's architecture.
        tag: open_clip's name of the weights.
    """
    if model is None:
        return "", None
    if tag is None:
        return model.removeprefix("hf-hub:"), None
    import open_clip

    place = open_clip.get_pretrained_cfg(model, tag).get("hf_hub", "")
    repo, _, file = place.rpartition("/")
    return repo, file or None
