"""A paper's experiment at a tiny size: two rounds, few clients, small things for what is not here.

`Tiny` says what it replaced. It knows no method and no key of one: whatever counts rounds, epochs
or steps becomes small by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedray.cli.dry_run import PlannedRun, check_command, split_command
from fedray.cli.main import Commands, main
from fedray.config import Experiment
from fedray.config.plugins import use
from fedray.core import algorithms
from fedray.language.descriptions import find_descriptions, shipped_names
from fedray.models import is_dense
from fedray.models.groups import group_of
from fedray.results.analyses.parameters import costs
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session

EMBEDDED = ("digits", "shapes")
CONTROLS = ("random", "orthogonal")
SMALL_MODELS = ("mlp", "cnn2", "cnn3", "cnn4")
WORDS = ("cat", "dog", "ship", "house", "tree", "bird", "car", "chair", "cup", "boat")
DOMAINS = ("amazon", "caltech", "dslr", "webcam")
ALWAYS = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "eval_every": 1,
    "threads": 1,
    "gpus": 0,
    "server_gpus": 0,
    "workers": 1,
}


@dataclass
class Tiny:
    """Runs commands at a tiny size.

    Args:
        home: where made images and results go.
        clip: a folder with a small CLIP, of width 24.
        bert: a folder with a small BERT, of width 16.

    Attributes:
        said: what was replaced, in sentences.
    """

    home: Path
    clip: Path
    bert: Path
    said: set[str] = field(default_factory=set)
    _commands: int = 0

    def run(self, command: str, most: int | None = None) -> int:
        """Run a command of a page in this process, every configuration or the ends of them.

        Returns:
            How many runs were made.
        """
        (word, given), asked = split_command(command), check_command(command)
        if not asked:
            assert main([word, *given]) == 0, command
            return 0
        if most is not None and len(asked) > most:
            asked = [asked[round(i * (len(asked) - 1) / max(most - 1, 1))] for i in range(most)]
        params = Commands().find(word).make_context(word, given).params
        self._commands += 1
        out = params.get("out") or self.home / "results" / f"command_{self._commands}"
        for number, each in enumerate(asked):
            folder = out / f"trial_{number:05d}" if word in ("sweep", "table") else out
            try:
                if word == "cost":
                    self._count(each)
                else:
                    self._run_one(each, folder)
            except Exception as error:
                error.add_note(f"{command} {each.label}")
                raise
        return len(asked)

    def _count(self, asked: PlannedRun) -> None:
        assert costs(self.shrunk(asked.experiment))[0].parameters

    def _run_one(self, asked: PlannedRun, out: Path) -> None:
        experiment = self.shrunk(asked.experiment)
        cpu = torch.device("cpu")
        done = list(Session(experiment, out, lambda a: SerialExecutor(a, cpu)).rounds())
        assert [each.round for each in done] == [0, 1, 2]

    # --- the experiment --------------------------------------------------------------------------

    def shrunk(self, experiment: Experiment) -> Experiment:
        """The experiment at a tiny size."""
        use(experiment.plugins)
        method = algorithms.get(experiment.algorithm.name)
        tree = _fewer(experiment.tree())
        _change_in_round_2(tree)
        pairs: dict[str, Any] = {**ALWAYS, "lr": min(experiment.lr, 0.01)}
        dense = not method.requires.prompts and is_dense(experiment.model.group)
        pairs |= self._data(experiment, tree, dense=dense)
        if method.requires.prompts:
            tree["model"]["clip"] = {"name": "openclip", "path": str(self.clip)}
            pairs |= {"data.image_size": 8, "data.channels": 3}
            self._say(f"model.clip={experiment.model.clip} by a CLIP for 8 pixels")
        elif not dense:
            pairs |= self._models(experiment)
        if method.requires.text:
            pairs |= self._text(experiment, tree)
        return from_tree(tree, pairs.items())

    def _data(self, experiment: Experiment, tree: dict[str, Any], *, dense: bool) -> dict[str, Any]:
        data = experiment.data
        clients = min(data.clients, len(DOMAINS))
        if "clients" in data.partition.tree():  # it says how many of which kind
            clients = data.clients
        joining = min(experiment.join.clients, 1)
        pairs: dict[str, Any] = {"data.clients": clients, "join.clients": joining}
        if joining:
            pairs["join.round"] = 2
        prompts = algorithms.get(experiment.algorithm.name).requires.prompts
        if data.source.name in EMBEDDED and not (prompts and data.source.name == "shapes"):
            pairs["data.samples"] = min(data.samples or 400, 400)
            return pairs
        pairs |= {"data.samples": None, "data.test_samples": None, "data.split": None}
        if dense:
            pairs |= {"data.source": "shapes", "data.root": None, "data.image_size": 16}
            pairs |= {"data.samples": 120}
            if experiment.text.names is not None:
                pairs["text.names"] = None
            self._say(f"{data.source} of {data.root} by shapes")
            return pairs
        by_domain = data.partition.name == "domains" or "domain" in data.source.name
        names = self._names(experiment)
        many = len(names) <= 20 or data.imbalance > 1  # of which a long tail leaves a tenth
        root = self._images(names, DOMAINS if by_domain else (), many=many)
        pairs |= {"data.source": "domain_folder" if by_domain else "image_folder"}
        pairs |= {"data.root": str(root), "data.image_size": 16, "data.channels": 3}
        if by_domain:
            pairs["data.clients"] = len(DOMAINS)
        if held := data.partition.tree().get("classes_per_client"):  # every class has an owner
            pairs["data.clients"] = max(clients, -(-len(names) // held))
        self._say(f"{data.source} of {data.root} by made images of {len(names)} classes")
        return pairs

    def _models(self, experiment: Experiment) -> dict[str, Any]:
        keys = experiment.model
        pairs: dict[str, Any] = {}
        if keys.projector is not None:
            pairs["model.projector"] = min(keys.projector, 32)
        if keys.feature_dim is not None:
            pairs["model.feature_dim"] = min(keys.feature_dim, 64)
        if keys.pretrained is not None:
            pairs["model.pretrained"] = None
            self._say("model.pretrained by drawn weights")
        members = group_of(keys.group).members
        if not set(members) <= set(SMALL_MODELS):
            pairs["model.group"] = "digits" if len(members) > 1 else "cnn2"
            self._say(f"model.group={keys.group} by {pairs['model.group']}")
        return pairs

    def _text(self, experiment: Experiment, tree: dict[str, Any]) -> dict[str, Any]:
        self._describe(experiment.text.descriptions)
        encoder = experiment.text.encoder
        if encoder.name in CONTROLS:
            return {}
        if encoder.name != "openclip":
            self._say(f"text.encoder={encoder} by a small BERT")
            tree["text"]["encoder"] = {"name": "bert", "path": str(self.bert)}
            return {"model.feature_dim": 16}
        self._say(f"text.encoder={encoder} by the text tower of a small CLIP")
        tree["text"]["encoder"] = {"name": "openclip", "path": str(self.clip)}
        return {"model.feature_dim": 24}

    def _describe(self, descriptions: str | None) -> None:
        """Make a user's file of descriptions, called as the shipped one; fill in a drafted one."""
        if descriptions is None or not descriptions.endswith(".json"):
            return
        path = self.home / descriptions
        if not path.exists():
            self._say(f"{descriptions} by our own descriptions")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(find_descriptions(path.stem).read_bytes())
            return
        drafted = json.loads(path.read_text(encoding="utf-8"))
        for name, entry in drafted.items():
            texts = entry["Fine-grained Descriptions"]
            entry["Fine-grained Descriptions"] = [text or f"a {name}" for text in texts]
        path.write_text(json.dumps(drafted), encoding="utf-8")

    def _names(self, experiment: Experiment) -> tuple[str, ...]:
        """The classes' names: those that the texts are about, or ten words."""
        chosen = getattr(experiment.data, "classes", None)
        if chosen:
            return tuple(chosen)
        drafted = self.home / str(experiment.text.descriptions)
        if drafted.is_file():
            return tuple(json.loads(drafted.read_text(encoding="utf-8")))
        root = Path(str(experiment.data.root)).name
        for name in (Path(experiment.text.descriptions or "").stem, root):
            if name in shipped_names():
                found = json.loads(find_descriptions(name).read_text(encoding="utf-8"))
                return tuple(each for each in found if "/" not in each)  # they name folders
        given = experiment.text.names
        return WORDS if given is None else tuple(f"class {i}" for i in range(len(given)))

    def _images(self, names: Sequence[str], domains: Sequence[str], *, many: bool) -> Path:
        """A folder of made images, by domain or not, with an official test split."""
        counts = {"train": 20, "test": 4} if many else {"train": 6, "test": 2}
        kind = f"{len(names)}_{names[0]}_{len(domains)}_{counts['train']}"
        root = self.home / "made" / kind.replace("/", " ")
        if root.exists():
            return root
        random = np.random.default_rng(0)
        for domain in domains or ("",):
            for split, count in counts.items():
                for name in names:
                    folder = root / domain / split / name
                    folder.mkdir(parents=True)
                    for number in range(count):
                        pixels = random.integers(0, 255, (16, 16, 3), np.uint8)
                        Image.fromarray(pixels).save(folder / f"{number}.png")
        return root

    def _say(self, sentence: str) -> None:
        self.said.add(sentence)


FEW = re.compile(r"(rounds?|epochs|steps|warmup|every)$")
"""What counts rounds, epochs or steps, by its name."""
LEAST = {"min_samples": 1, "shots": 2, "prompt_length": 4, "depth": 3}
"""The most that other numbers may be: blocks of the small CLIP, images, tokens."""


def _change_in_round_2(tree: dict[str, Any]) -> None:
    """Have data that changes do so in the last round; of several phases the first stays."""
    evolution = tree["data"].get("evolution", {})
    if evolution.get("phases"):
        evolution["phases"] = [{**evolution["phases"][0], "round": 2}]


def _fewer(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with small whole numbers where it counts something that takes time."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found[name] = _fewer(value)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            most = 1 if FEW.search(name) else LEAST.get(name)
            found[name] = value if most is None else min(value, most)
        else:
            found[name] = value
    return found
