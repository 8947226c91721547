"""FedMGP's repository, with the prompt methods that it is compared with.

https://github.com/weihao-bo/FedMGP. Its models, losses and averages are run around fedray's small
CLIP; Dassl's trainer, which moves images and saves files, has a stand-in.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.algorithms.prompts.fedmgp import draw_groups
from fedray.config import component
from fedray.models.clip import FrozenClip, load_clip
from tools.originals.federation import (
    BATCH,
    CPU,
    ROUNDS,
    TRAIN,
    Method,
    Run,
    State,
    Tensors,
)
from tools.originals.flcore import Batches, Instead

REPOSITORY = "weihao-bo/FedMGP"
MARKS = ("trainers/fedmgp.py", "federated_core/base_federated_learner.py")
LENGTH, GROUPS, SELECTED, LR = 4, 3, 2, 0.02
DASSL = ("", ".dassl", ".dassl.engine", ".dassl.engine.trainer", ".dassl.utils", ".dassl.metrics",
         ".dassl.optim", ".dassl.data")  # fmt: skip


class Trainer:
    """Dassl's trainer without data, files and schedule: plain SGD that begins anew every round."""

    device = "cpu"

    def __init__(self, config: Any, run: Run) -> None:
        self.cfg, self.run, self.batch_idx, self.num_batches = config, run, 0, 0
        names = [name.replace("_", " ") for name in run.assembly.data.class_names]
        loaders = [SimpleNamespace(batch_size=BATCH)] * len(TRAIN)
        self.dm = SimpleNamespace(
            dataset=SimpleNamespace(classnames=names), fed_train_loader_x_dict=loaders
        )
        self.build_model()  # type: ignore[attr-defined]

    def register_model(self, *_: Any) -> None:
        """Keep nothing: there is one optimiser."""

    def model_backward_and_update(self, loss: Tensor) -> None:
        """Take a step."""
        self.optim.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optim.step()

    def train(self, idx: int, **_: Any) -> None:
        """Train the model on a client's batches."""
        self.model.train()
        batches = Batches(self.run, idx)
        for _ in range(self.run.assembly.setting.training.epochs):
            for images, labels in batches:
                self.forward_backward({"img": as_seen(images), "label": labels})


def plain_sgd(model: nn.Module, _: Any) -> torch.optim.Optimizer:
    """Return SGD of the parameters that are trained."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], LR)


def small_clip() -> FrozenClip:
    """Return fedray's small CLIP."""
    return load_clip(component("CLIP", "small").build(), CPU)


def as_seen(images: Tensor) -> Tensor:
    """Return images in [-1, 1] as the vision tower sees them."""
    vision = small_clip().vision
    return ((images + 1) / 2).expand(-1, 3, -1, -1).sub(vision.mean).div(vision.std)


def prepare(checkout: Path, trainer: type[Trainer] = Trainer) -> None:
    """Make the checkout's modules importable, and let it build fedray's small CLIP."""
    for name in (*(f"Dassl{name}" for name in DASSL), *(name[1:] for name in DASSL[1:])):
        sys.modules[name] = MagicMock(
            TrainerX=trainer, count_num_param=lambda model: 0, build_optimizer=plain_sgd
        )
        sys.modules[name].TRAINER_REGISTRY.register = lambda: lambda cls: cls  # type: ignore[attr-defined]
    tokenizer = ModuleType("clip.simple_tokenizer")
    tokenizer.SimpleTokenizer = lambda: SimpleNamespace(encode=str.split)  # type: ignore[attr-defined]
    sys.modules["clip.simple_tokenizer"] = tokenizer
    einops = ModuleType("einops")
    einops.repeat = lambda x, _, b: x.expand(b, *x.shape)  # type: ignore[attr-defined]
    sys.modules["einops"] = einops
    sys.path.insert(0, str(checkout))
    os.environ.setdefault("PROJECT", str(checkout))  # pFedMoAP's clip reads it
    clip, model = import_module("clip.clip"), import_module("clip.model")
    text, blocks = small_clip().text, {160: 5, 128: 4}  # heads by width
    clip.tokenize = lambda texts: text._tokenizer(
        [texts] if isinstance(texts, str) else texts, context_length=text.limit
    )
    clip._MODELS, clip._download = {"small": ""}, str
    model.convert_weights = lambda whole: None  # to float16
    model.QuickGELU.forward = lambda self, x: F.gelu(x)
    build = clip.build_model

    def build_model(weights: Tensors, *details: Any) -> nn.Module:
        named = {n.removeprefix("text."): t for n, t in weights.items()}
        whole: nn.Module = build(named, *details)
        for module in whole.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.num_heads = blocks[module.embed_dim]
                module.head_dim = module.embed_dim // module.num_heads
        return whole

    clip.build_model = build_model


@dataclass(frozen=True)
class Original:
    """How a method's classes are found and driven.

    Attributes:
        module: in the folder `trainers`.
        trainer: the class there.
        learner: module and class in `federated_core.trainers`.
        names: of fedray's tensors, each with the original's, and an index if it is a part of it.
        options: of the section of the configuration that has the trainer's name.
        change: changes the learner before its first round.
        before: changes the trainer's module, before the trainer is built.
    """

    module: str
    trainer: str
    learner: tuple[str, str]
    names: dict[str, tuple[str, int | None]]
    options: dict[str, Any]
    change: Callable[[Any, Run], None] = lambda learner, run: None
    before: Callable[[], None] = lambda: None


def configuration(original: Original) -> SimpleNamespace:
    """Return what the original reads of its configuration."""
    options = SimpleNamespace(N_CTX=LENGTH, CTX_INIT="", PREC="fp32", **original.options)
    return SimpleNamespace(
        TRAINER=SimpleNamespace(**{original.trainer.upper(): options}),
        INPUT=SimpleNamespace(SIZE=(32, 32)),
        MODEL=SimpleNamespace(BACKBONE=SimpleNamespace(NAME="small"), INIT_WEIGHTS=""),
        DATASET=SimpleNamespace(NAME="digits", USERS=len(TRAIN), FRAC=0.4),
        OPTIM=SimpleNamespace(ROUND=ROUNDS),
        SEED=-1,
    )


def drive(original: Original, run: Run, initial: Sequence[Tensors]) -> list[State]:
    """Run the learner's own `train` on fedray's draws; return a state per round, round 0 first."""
    config, states = configuration(original), []
    module = import_module(f"trainers.{original.module}")
    file, name = original.learner
    learner = object.__new__(getattr(import_module(f"federated_core.trainers.{file}"), name))
    weights = small_clip()._model.state_dict()
    fake = Instead(torch, jit=SimpleNamespace(load=fail), load=lambda *_, **__: weights)
    linear = Instead(nn, Linear=lambda i, o: nn.Linear(i, 160 if o == 768 else o))

    def select(round_: int) -> Sequence[int]:
        run.round = round_ + 1
        return run.participants[run.round]

    def state(*_: Any) -> None:
        models, right = [], []
        for client, kept in enumerate(learner.client_weights["local"]):
            found = {
                ours: kept[theirs] if index is None else kept[theirs][index]
                for ours, (theirs, index) in original.names.items()
            }
            models.append({ours: found[ours].detach().clone() for ours in initial[0]})
            learner._load_trainable_params(learner.trainer.model, kept)
            images, labels = run.images(run.assembly.data.test[client])
            with torch.no_grad():
                answers = learner.trainer.model.eval()(as_seen(images)).argmax(1)
            right.append(float((answers == labels).float().mean()))
        states.append(State(models, right))

    with (
        quiet_on_the_cpu(),
        patch.object(module, "torch", fake),
        patch.object(module, "nn", linear),
    ):
        original.before()
        trainer = getattr(module, original.trainer)(config, run)
        with torch.no_grad():
            for ours, (theirs, index) in original.names.items():
                parameter = trainer.model.get_parameter(theirs)
                (parameter if index is None else parameter[index]).copy_(initial[0][ours])
        vars(learner).update(
            cfg=config, args=SimpleNamespace(model=original.trainer), trainer=trainer,
            client_weights={"local": [{} for _ in TRAIN]}, client_data_sizes=list(TRAIN),
            is_special_dataset=False, debug_mode=False, num_comm_rounds=ROUNDS, current_round=0,
            select_clients=select, _record_client_data_sizes=lambda: None,
            _evaluate_with_strategy=state, _finalize_training=lambda: None,
            **learner._get_trainer_specific_attributes(),
        )  # fmt: skip
        begin = learner.initialize_model_weights

        def initialize() -> None:
            begin()
            for client in range(len(TRAIN)):
                learner._store_components(client, trainer.model.state_dict())
            state()

        learner.initialize_model_weights = initialize
        original.change(learner, run)
        learner.train()
    return states


@contextlib.contextmanager
def quiet_on_the_cpu() -> Iterator[None]:
    """Print nothing, and keep everything in float32 on the CPU."""
    with (
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stdout(io.StringIO()),
        patch.object(Tensor, "half", lambda self: self),
        patch.object(Tensor, "cuda", lambda self: self),
        patch.object(nn.Module, "half", lambda self: self),
        patch.object(nn.Module, "cuda", lambda self: self),
    ):
        yield


def fail(*_: Any, **__: Any) -> None:
    """Fail as `torch.jit.load` does for a state dict."""
    raise RuntimeError


def photo_reference(learner: Any, run: Run) -> None:
    """Compare FedPGP's contexts with "a photo of a {class}."."""
    clip, prompts = import_module("clip.clip"), learner.trainer.model.prompt_learner
    texts = [f"a photo of a {name}." for name in learner.trainer.dm.dataset.classnames]
    prompts.embedding.copy_(small_clip()._model.text.token_embedding(clip.tokenize(texts)))


def on_the_cpu(learner: Any, run: Run) -> None:
    """Look up class names on the CPU."""
    learner.trainer.model.device = CPU


def small_generator() -> None:
    """Give FedTPG's generator the widths of the small CLIP."""
    module = import_module("trainers.fedtpg")
    if not isinstance(module.PromptTranslator, partial):
        module.PromptTranslator = partial(module.PromptTranslator, prompt_dim=128, textemb_dim=256)


def fedray_draws(learner: Any, run: Run) -> None:
    """Let FedMGP draw groups as fedray does, from the original's similarities."""

    def first(texts: Any, visuals: Any, clients: Sequence[int], count: int) -> Any:
        order = {k: torch.randperm(GROUPS, generator=run.random("groups", k)) for k in clients}
        ranks = {k: drawn[:count].tolist() for k, drawn in order.items()}
        return ranks, ranks

    def later(found: Any, count: int, client: int, highest: bool, tau: float) -> list[int]:
        chances = torch.tensor([s for _, s in found], dtype=torch.float64).div(tau).softmax(0)
        return draw_groups(chances, count, run.random("groups", client)).tolist()

    learner._first_round_ranking, learner._probabilistic_prompt_selection = first, later


def _method(
    original: Original,
    *switches: str,
    changes: tuple[str, ...] = (),
    values: tuple[str, ...] = (f"algorithm.length={LENGTH}",),
) -> Method:
    values = ("model.clip=small", "data.image_size=32", "local_epochs=1", f"lr={LR}", *values)
    return Method(partial(drive, original), switches, values, changes)


def _text(name: str) -> tuple[str, None]:
    return f"prompt_learner.{name}", None


OFFICIAL = ("algorithm.sign=attract", "algorithm.similarity=max", "algorithm.weights=uniform",
            "algorithm.same_draw=true", "algorithm.keep_visual=false")  # fmt: skip
"""The preset `official`."""


def _generator_names() -> dict[str, tuple[str, Any]]:
    blocks = "meta_net.encoder.cross_attend_blocks"
    attention, feed = f"{blocks}.0", f"{blocks}.1"
    layers = {"norm_queries": f"{attention}.norm", "norm_names": f"{attention}.norm_context",
              "out": f"{attention}.fn.out_proj", "norm": f"{feed}.net.0", "widen": f"{feed}.net.1",
              "narrow": f"{feed}.net.3"}  # fmt: skip
    names: dict[str, tuple[str, Any]] = {"generator.queries": _text("meta_net.soft_prompt")}
    for ours, theirs in layers.items():
        for part in ("weight", "bias"):
            names[f"generator.{ours}.{part}"] = _text(f"{theirs}.{part}")
    for number, which in enumerate(("queries", "keys", "values")):
        part = slice(128 * number, 128 * (number + 1))
        names[f"generator.to_{which}.weight"] = _text(f"{attention}.fn.{which[0]}_proj_weight")
        names[f"generator.to_{which}.bias"] = (f"prompt_learner.{attention}.fn.in_proj_bias", part)
    return names


_CONTEXT = {"context": _text("ctx")}
_PAIR = {"shared_context": ("prompt_learner.ctx", 0), "local_context": ("prompt_learner.ctx", 1)}
_STORED = "each client's own context is stored before its first round"

METHODS = {
    "promptfl": _method(
        Original("promptfl", "PromptFL", ("promptfl_learner", "PromptFLLearner"), _CONTEXT, {})
    ),
    "promptfolio": _method(
        Original(
            "promptFolio", "PromptFolio", ("fedopt_learner", "FedOPTLearner"), _PAIR, {"N": 2}
        ),
        changes=("theta is 0.4, not the share of participants", _STORED),
    ),
    "fedotp": _method(
        Original(
            "fedopt", "FedOPT", ("fedopt_learner", "FedOPTLearner"), _PAIR,
            {"N": 2, "CSC": False, "CLASS_TOKEN_POSITION": "end", "THRESH": 0.0, "EPS": 0.1,
             "OT": "COT", "TOP_PERCENT": 0.8, "MAX_ITER": 100},
        ),
        "algorithm.threshold=1e-30",
        changes=("a hundred iterations, without a threshold", _STORED),
    ),
    "fedpgp": _method(
        Original(
            "fedpgp", "FedPGP", ("fedpgp_learner", "FedPGPLearner"),
            {"sigma": _text("sigma"), "u": _text("U"), "v": _text("V")},
            {"N": 1, "CSC": False, "CLASS_TOKEN_POSITION": "end", "BOTTLENECK": 8, "mu": 0.5,
             "temp": 0.5},
            photo_reference,
        ),
        changes=('the reference is "a photo of a {class}."', "one prompt"),
    ),
    "fedtpg": _method(
        Original(
            "fedtpg", "FedTPG", ("fedtpg_learner", "FedTPGLearner"), _generator_names(),
            {"D_CTX": 1, "DEPTH": 0}, on_the_cpu, small_generator,
        ),
        "algorithm.weights=samples", "algorithm.classes=all",
        changes=("float32 throughout", "the widths of the small CLIP"),
    ),
    "maple_fedavg": _method(
        Original(
            "fedmaple", "MaPLe", ("fedmaple_learner", "FedMaPLeLearner"),
            {"task.0": _text("ctx"), "data.0.weight": _text("proj.weight"),
             "data.0.bias": _text("proj.bias")},
            {"PROMPT_DEPTH": 1},
        ),
        changes=("float32 throughout", "the vision width of the small CLIP"),
    ),
    "fedmgp": _method(
        Original(
            "fedmgp", "FedMGP", ("fedmgp_learner", "FedMGPLearner"),
            {"text": _text("ctx"), "visual": ("image_encoder.VPT", None)},
            {"N_CTX_VISION": LENGTH, "N_CTX_TEXT": LENGTH, "NUM_PROMPTS_VISION": GROUPS,
             "NUM_PROMPTS_TEXT": GROUPS, "PROMPT_DEPTH_VISION": 1, "PROMPT_DEPTH_TEXT": 1,
             "USE_DIVERGENT_LOSS": True, "DIVERGENT_LOSS_WEIGHT": 1.0, "DIVERGENT_LOSS_TYPE": "l1",
             "TOPK": SELECTED, "AGGREGATE_HIGHEST_SIM": True, "SELECT_MODE": "similarity",
             "PROBABILISTIC_SELECTION": True, "TEMPERATURE": 1.0},
            fedray_draws,
        ),
        *OFFICIAL,
        values=(f"algorithm.groups={GROUPS}", f"algorithm.text_length={LENGTH}",
                f"algorithm.visual_length={LENGTH}"),
        changes=("fedray's draws of groups", "float32 throughout", "SGD without momentum"),
    ),
}  # fmt: skip
