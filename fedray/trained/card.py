"""The model card of an exported model: origin, measured accuracy, classes and usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.markdown import escape_html
from fedray.runtime.assembly import Assembly
from fedray.storage.kept_models import ModelFacts
from fedray.storage.run_folder import RunFolder
from fedray.trained.images import Preprocessing

MOST_CLASSES = 50
"""Maximal number of classes listed by name."""


@dataclass(frozen=True)
class Card:
    """What a model card tells of a model.

    Attributes:
        folder: the folder of the run.
        assembly: the components of the run.
        facts: the facts about the run's kept models.
        client: the id of the model's client.
        preprocessing: the preprocessing of the model's images.
        classifier: names of the tensors outside the model that predictions read.
    """

    folder: Path
    assembly: Assembly
    facts: ModelFacts
    client: int
    preprocessing: Preprocessing
    classifier: Sequence[str]

    def markdown(self) -> str:
        """Return the card in Markdown, without a licence, which the owner must add."""
        facts = [*self._what(), *self._measured(), *self._classes()]
        return "\n".join([*map(escape_html, facts), *self._use()]) + "\n"

    def _what(self) -> Iterator[str]:
        assembly, facts = self.assembly, self.facts
        e, method = assembly.experiment, assembly.algorithm
        whose = "the model that all clients share" if facts.is_global else f"client {self.client}"
        yield f"# {e.name}: {whose}"
        yield ""
        yield f"- method: {method.title} ({method.name}); {method.paper}"
        yield f"- experiment: {e.name}, seed {e.seed}, {facts.clients} clients"
        yield f"- identity: {facts.identity}"
        yield f"- data: {e.data.source.name}, partition {e.data.partition.name}"
        chosen = f" ({facts.chosen})" if facts.chosen else " (the last)"
        yield f"- round: {facts.round} of {e.rounds}{chosen}"
        architecture = assembly.models.architectures[self.client]
        yield f"- architecture: {architecture}, features of width {assembly.setting.feature_dim}"
        if method.requires.prompts:
            settings = ", ".join(f"{k}={v}" for k, v in e.model.clip.params if v is not None)
            clip = f"{e.model.clip.name}{f' ({settings})' if settings else ''}"
            yield (
                f"- frozen CLIP, which is not in the file: {clip}; the weights here are the prompts"
            )
        yield ""

    def _measured(self) -> Iterator[str]:
        facts = self.facts
        yield "## Measured"
        yield ""
        yield "| what | value |"
        yield "|---|---|"
        accuracy = None if facts.is_global else self._own_accuracy()
        if accuracy is not None:
            yield f"| accuracy on the test images of client {self.client} | {accuracy:.4f} |"
        for name in ("local_accuracy", "global_accuracy", "validation/local_accuracy"):
            if name in facts.metrics:
                yield f"| {name}, over all clients | {facts.metrics[name]:.4f} |"
        yield ""
        if facts.chosen.endswith("test"):
            yield "The round was selected on these test images, so the numbers are too optimistic."
            yield ""

    def _own_accuracy(self) -> float | None:
        """Return the client's accuracy in the model's round; None if not recorded."""
        folder = RunFolder(self.folder)
        done = [round_ for round_ in folder.rounds() if round_.round == self.facts.round]
        return done[0].per_client.get(self.client) if done else None

    def _classes(self) -> Iterator[str]:
        names = self.facts.class_names
        suffix = f", and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
        yield f"## {len(names)} classes, in the order of the logits"
        yield ""
        yield ", ".join(names[:MOST_CLASSES]) + suffix
        yield ""

    def _use(self) -> Iterator[str]:
        extra_tensors = sorted(self.classifier)
        yield "## Use"
        yield ""
        yield f"Images: {self.preprocessing}."
        yield ""
        yield "```python"
        yield "import fedray"
        yield ""
        client = "" if self.facts.is_global else f"client={self.client}"
        yield f"model = fedray.load({str(self.folder)!r}).model({client})"
        yield 'print(model.predict("image.png").names)'
        yield "```"
        yield ""
        yield "`model.safetensors` holds the weights by the names of `model.state_dict()`."
        if extra_tensors:
            names = ", ".join(f"`classifier.{name}`" for name in extra_tensors)
            yield f"The method also classifies with {names}."
