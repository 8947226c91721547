"""The model card of an exported model: origin, measured accuracy, classes and usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedray.markdown import escape_html
from fedray.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedray.trained.model import TrainedModel

MOST_CLASSES = 50
"""Maximal number of classes listed by name."""


def card(model: TrainedModel) -> str:
    """Return the model card in Markdown, without a licence, which the owner must add."""
    facts = [*_what(model), *_measured(model), *_classes(model)]
    return "\n".join([*map(escape_html, facts), *_use(model)]) + "\n"


def _what(model: TrainedModel) -> Iterator[str]:
    assembly, facts = model.owner.assembly, model.owner.facts
    e, method = assembly.experiment, assembly.algorithm
    whose = (
        "the model that all clients share" if model.owner.is_global else f"client {model.client}"
    )
    yield f"# {e.name}: {whose}"
    yield ""
    yield f"- method: {method.title} ({method.name}); {method.paper}"
    yield f"- experiment: {e.name}, seed {e.seed}, {facts.clients} clients"
    yield f"- identity: {facts.identity}"
    yield f"- data: {e.data.source.name}, partition {e.data.partition.name}"
    chosen = f" ({facts.chosen})" if facts.chosen else " (the last)"
    yield f"- round: {facts.round} of {e.rounds}{chosen}"
    architecture = assembly.models.architectures[model.client]
    yield f"- architecture: {architecture}, features of width {assembly.setting.feature_dim}"
    if method.requires.prompts:
        settings = ", ".join(f"{k}={v}" for k, v in e.model.clip.params if v is not None)
        clip = f"{e.model.clip.name}{f' ({settings})' if settings else ''}"
        yield f"- frozen CLIP, which is not in the file: {clip}; the weights here are the prompts"
    yield ""


def _measured(model: TrainedModel) -> Iterator[str]:
    facts = model.owner.facts
    yield "## Measured"
    yield ""
    yield "| what | value |"
    yield "|---|---|"
    accuracy = None if model.owner.is_global else _own_accuracy(model)
    if accuracy is not None:
        yield f"| accuracy on the test images of client {model.client} | {accuracy:.4f} |"
    for name in ("local_accuracy", "global_accuracy", "validation/local_accuracy"):
        if name in facts.metrics:
            yield f"| {name}, over all clients | {facts.metrics[name]:.4f} |"
    yield ""
    if facts.chosen.endswith("test"):
        yield "The round was selected on these test images, so the numbers are too optimistic."
        yield ""


def _own_accuracy(model: TrainedModel) -> float | None:
    """Return the client's accuracy in the model's round; None if not recorded."""
    folder = RunFolder(model.owner.folder)
    if not folder.has_result:
        return None
    done = [round_ for round_ in folder.rounds() if round_.round == model.owner.facts.round]
    return done[0].per_client.get(model.client) if done else None


def _classes(model: TrainedModel) -> Iterator[str]:
    names = list(model.class_names)
    suffix = f", and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
    yield f"## {len(names)} classes, in the order of the logits"
    yield ""
    yield ", ".join(names[:MOST_CLASSES]) + suffix
    yield ""


def _use(model: TrainedModel) -> Iterator[str]:
    extra_tensors = sorted(model.classifier)
    yield "## Use"
    yield ""
    yield f"Images: {model.preprocessing}."
    yield ""
    yield "```python"
    yield "import fedray"
    yield ""
    client = "" if model.owner.is_global else f"client={model.client}"
    yield f"model = fedray.load({str(model.owner.folder)!r}).model({client})"
    yield 'print(model.predict("image.png").names)'
    yield "```"
    yield ""
    yield "`model.safetensors` holds the weights by the names of `model.state_dict()`."
    if extra_tensors:
        names = ", ".join(f"`classifier.{name}`" for name in extra_tensors)
        yield f"The method also classifies with {names}."
