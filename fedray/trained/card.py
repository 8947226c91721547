"""The model card of an exported model: what it is, its measured accuracy, and how to use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedray.markdown import escape_html
from fedray.records import RunFolder

if TYPE_CHECKING:
    from fedray.trained.model import TrainedModel

MOST_CLASSES = 50
"""Named one by one; of more the first."""


def card(model: TrainedModel) -> str:
    """Return a model's page in Markdown, without a licence, which its owner has to give."""
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
        settings = ", ".join(f"{k}={v}" for k, v in e.model.clip.params.items() if v is not None)
        clip = f"{e.model.clip.name}{f' ({settings})' if settings else ''}"
        yield f"- frozen CLIP, which is not in the file: {clip}; the weights here are the prompts"
    yield ""


def _measured(model: TrainedModel) -> Iterator[str]:
    facts = model.owner.facts
    yield "## Measured"
    yield ""
    yield "| what | value |"
    yield "|---|---|"
    own = None if model.owner.is_global else _own_accuracy(model)
    if own is not None:
        yield f"| accuracy on the test images of client {model.client} | {own:.4f} |"
    for name in ("local_accuracy", "global_accuracy", "validation/local_accuracy"):
        if name in facts.metrics:
            yield f"| {name}, over all clients | {facts.metrics[name]:.4f} |"
    yield ""
    if facts.chosen.endswith("test"):
        yield "The round was chosen on these test images, so the numbers are too good."
        yield ""


def _own_accuracy(model: TrainedModel) -> float | None:
    """Return the client's own accuracy in that round, where the run's records say so."""
    folder = RunFolder(model.owner.folder)
    if not folder.has_result:
        return None
    done = [each for each in folder.rounds() if each.round == model.owner.facts.round]
    return done[0].per_client.get(model.client) if done else None


def _classes(model: TrainedModel) -> Iterator[str]:
    names = list(model.class_names)
    rest = f", and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
    yield f"## {len(names)} classes, in the order of the logits"
    yield ""
    yield ", ".join(names[:MOST_CLASSES]) + rest
    yield ""


def _use(model: TrainedModel) -> Iterator[str]:
    besides = sorted(model.classifier)
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
    if besides:
        named = ", ".join(f"`classifier.{name}`" for name in besides)
        yield f"The method classifies with {named} besides."
