"""Files of texts and weights that a run reads: what they hold, and whether that has changed.

An experiment names them, so that its identity knows them by their paths alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedray.config import WEIGHT_FILES, Component, Experiment, TextConfig, flatten
from fedray.core import algorithms
from fedray.errors import UserError
from fedray.records import checksum

_HOLDS = {"text.descriptions": "texts", "text.names": "names"}
"""What a key's file holds; that of any other key holds weights."""


def outside_files(experiment: Experiment, class_names: Sequence[str]) -> dict[str, str]:
    """Hashes of what the run's own files of texts and weights hold; empty where it has none.

    Of texts those count that the run puts: what a file says of other classes may change.

    Args:
        experiment: what is run.
        class_names: its data's classes.

    Raises:
        UserError: when a file is not there, or does not fit the classes.
    """
    requires, found = algorithms.get(experiment.algorithm.name).requires, dict[str, str]()
    if requires.text:
        found |= _texts(experiment.text, class_names)
        found |= _encoder(experiment.text.encoder)
    if requires.prompts:
        found |= _clip(experiment.model.clip)
    else:
        found |= _pretrained(experiment.model.pretrained)
    return found


def _texts(keys: TextConfig, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    from fedray.language.names import names_for
    from fedray.language.styles import class_texts, text_style

    if keys.names is not None:
        names = names_for(keys.names, names)
        if isinstance(keys.names, str) and keys.names.endswith(".json"):
            yield "text.names", checksum(json.dumps(names))
    style, file = text_style(keys.style), keys.descriptions
    if file is not None and file.endswith(".json") and style.needs_descriptions:
        texts = class_texts(style, names, file, keys.template)
        yield "text.descriptions", checksum(json.dumps(texts))


def _encoder(component: Component) -> Iterator[tuple[str, str]]:
    if component.params.get("path") is not None:
        from fedray.language.encoders import encoder_choice

        yield "text.encoder.path", checksum(encoder_choice(component).content())


def _clip(component: Component) -> Iterator[tuple[str, str]]:
    if component.params.get("path") is not None:
        from fedray.models.clip import ClipChoice

        yield "model.clip.path", checksum(ClipChoice.of(component).source().content)


def _pretrained(source: str | None) -> Iterator[tuple[str, str]]:
    if source is None or Path(source).suffix not in WEIGHT_FILES:
        return
    from fedray.language.encoders.weights import digest

    if not Path(source).is_file():
        raise UserError(f"model.pretrained={source} does not exist; pass a file of a state dict")
    yield "model.pretrained", checksum(digest([Path(source)]))


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The keys whose files hold something else by now."""
    return [key for key, content in before.items() if now.get(key, content) != content]


def said(key: str, experiment: Experiment) -> str:
    """What a key's file holds, and which file that is: "texts of text.descriptions=pets.json"."""
    return f"{_HOLDS.get(key, 'weights')} of {key}={flatten(experiment.tree())[key]}"
