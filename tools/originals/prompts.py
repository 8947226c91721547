"""Authors' repositories with one prompt method each: their models, losses and gradients.

They are run around fedray's small CLIP, on fedray's draws. KgCoOp and CoCoOp are not federated
there; the scripts of the others are one function each, with data, files and schedules. Therefore
the rounds are here: what a client loads before it trains, and what is averaged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor

from tools.originals import fedmgp
from tools.originals.federation import BATCH, ROUNDS, TRAIN, Method, Run, State, Tensors
from tools.originals.fedmgp import LENGTH, LR, as_seen, fail, quiet_on_the_cpu, small_clip
from tools.originals.flcore import Batches, Instead

RANK = 2


class Trainer(fedmgp.Trainer):
    """The stand-in, for trainers with several optimisers and with more arguments."""

    def __init__(self, config: Any, run: Run) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        super().__init__(config, run)

    def register_model(self, name: str, model: Any, optimizer: Any, schedule: Any) -> None:
        """Keep the optimiser."""
        self.optimizers.append(optimizer)

    def model_zero_grad(self) -> None:
        """Clear the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def model_backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def model_update(self) -> None:
        """Take a step."""
        for optimizer in self.optimizers:
            optimizer.step()

    def model_backward_and_update(self, loss: Tensor) -> None:
        """Take a step on the gradients of a loss."""
        self.model_zero_grad()
        self.model_backward(loss)
        self.model_update()


Pool = Mapping[int, Tensors]


def train_epochs(trainer: Any, run: Run, client: int, *first: Any) -> None:
    """Train the loaded model on a client's batches of the round."""
    trainer.model.train()
    batches = Batches(run, client)
    for _ in range(run.assembly.setting.training.epochs):
        for images, labels in batches:
            trainer.forward_backward(*first, {"img": as_seen(images), "label": labels})


def train_numbered(trainer: Any, run: Run, client: int) -> None:
    """Train as `train_epochs`, with a number for each batch."""
    train_epochs(trainer, run, client, 0)


def train_once(trainer: Any, run: Run, client: int) -> None:
    """Take DP-FPL's step on fedray's batch, with fedray's start of the factorisation."""
    random, module = run.random("dp_fpl", client), sys.modules[type(trainer).__module__]
    images, labels = run.images(run.assembly.data.train[client])
    drawn = torch.randperm(len(labels), generator=random)[:BATCH]
    start = torch.randn(small_clip().text.token_width, RANK, generator=random)
    trainer.model.train()
    with patch.object(module, "torch", Instead(torch, normal=lambda *_, size: start)):
        trainer.forward_pass({"img": as_seen(images[drawn]), "label": labels[drawn]})
    trainer.model_update()


def give_experts(trainer: Any, client: int, pool: Pool) -> None:
    """Give a pFedMoAP client all others' prompts, or none in its first round."""
    others = [k for k in sorted(pool) if k != client] if client in pool else []
    trainer.model.nonlocal_text_features = None
    trainer.download_nonlocal_ctx([pool[k]["context"] for k in others])


@dataclass(frozen=True)
class Original:
    """How an author's trainer is found and driven.

    Attributes:
        module: in the folder `trainers`.
        trainer: the class there.
        names: of fedray's tensors, each with the original's.
        shared: fedray's names of those that are averaged.
        options: of the sections of the configuration.
        train: trains a client's loaded model for a round.
        before: called before that and before a test, with all clients' last tensors.
        uniform: whether the mean is not weighted by numbers of images.
        tests_own: whether a client is tested with its own tensors in place of the mean.
    """

    module: str
    trainer: str
    names: dict[str, str]
    shared: tuple[str, ...]
    options: dict[str, dict[str, Any]]
    train: Callable[[Any, Run, int], None] = train_epochs
    before: Callable[[Any, int, Pool], None] = lambda trainer, client, pool: None
    uniform: bool = False
    tests_own: bool = False


def configuration(original: Original) -> MagicMock:
    """Return what the original reads of its configuration; it may read more without effect."""
    config = MagicMock(FACTORIZATION="dpfpl", RANK=RANK, NOISE=0)
    config.INPUT.SIZE = (32, 32)
    config.MODEL = SimpleNamespace(BACKBONE=SimpleNamespace(NAME="small"), INIT_WEIGHTS="")
    config.DATASET = SimpleNamespace(NAME="Caltech101", USERS=len(TRAIN))
    common = {"N_CTX": LENGTH, "CTX_INIT": "", "CSC": False, "PREC": "fp32",
              "CLASS_TOKEN_POSITION": "end"}  # fmt: skip
    config.TRAINER = SimpleNamespace(
        **{name: SimpleNamespace(**{**common, **own}) for name, own in original.options.items()}
    )
    return config


def drive(original: Original, run: Run, initial: Sequence[Tensors]) -> list[State]:
    """Run the trainer on fedray's draws; return a state per round, round 0 first."""
    module = import_module(f"trainers.{original.module}")
    weights = small_clip()._model.state_dict()
    fake = Instead(torch, jit=SimpleNamespace(load=fail), load=lambda *_, **__: dict(weights))
    with quiet_on_the_cpu():
        with patch.dict(module.load_clip_to_cpu.__globals__, {"torch": fake}):
            trainer = getattr(module, original.trainer)(configuration(original), run)
        parameters = dict(trainer.model.named_parameters())
        shared: Tensors = {name: initial[0][name] for name in original.shared}
        kept: dict[int, Tensors] = {}

        def load(client: int, tensors: Tensors, pool: Pool) -> None:
            with torch.no_grad():
                for ours, value in tensors.items():
                    parameter = parameters[original.names[ours]]
                    parameter.copy_(value.reshape(parameter.shape))
            original.before(trainer, client, pool)

        def saved(like: Tensors) -> Tensors:
            found = {ours: parameters[original.names[ours]].detach().clone() for ours in like}
            return {ours: tensor.reshape(like[ours].shape) for ours, tensor in found.items()}

        def state() -> State:
            models, right = [], []
            for client, drawn in enumerate(initial):
                own = kept.get(client, {})
                order = (shared, own) if original.tests_own else (own, shared)
                load(client, {**drawn, **order[0], **order[1]}, kept)
                models.append(saved(drawn))
                images, labels = run.images(run.assembly.data.test[client])
                with torch.no_grad():
                    output = trainer.model.eval()(as_seen(images))
                answers = (output[0] if isinstance(output, tuple) else output).argmax(1)
                right.append(float((answers == labels).float().mean()))
            return State(models, right)

        states = [state()]
        for run.round in range(1, ROUNDS + 1):
            uploads: dict[int, Tensors] = {}
            for client in run.participants[run.round]:
                load(client, {**initial[client], **kept.get(client, {}), **shared}, kept)
                original.train(trainer, run, client)
                uploads[client] = saved(initial[client])
            kept.update(uploads)
            sizes = {k: 1 if original.uniform else TRAIN[k] for k in uploads}
            shared = {
                name: sum(n * uploads[k][name] for k, n in sizes.items()) / sum(sizes.values())
                for name in original.shared
            }
            states.append(state())
    return states


@dataclass(frozen=True)
class Authors:
    """A repository with one method; its attributes are those of the other modules.

    Attributes:
        REPOSITORY: on GitHub.
        MARKS: files of a checkout.
        METHODS: the method.
    """

    REPOSITORY: str
    MARKS: tuple[str, ...]
    METHODS: dict[str, Method]
    prepare = staticmethod(partial(fedmgp.prepare, trainer=Trainer))


def _authors(
    repository: str, name: str, original: Original, *values: str, changes: tuple[str, ...] = ()
) -> Authors:
    values = ("model.clip=small", "data.image_size=32", "local_epochs=1", f"lr={LR}",
              f"algorithm.length={LENGTH}", *values)  # fmt: skip
    method = Method(partial(drive, original), (), values, changes)
    return Authors(repository, (f"trainers/{original.module}.py",), {name: method})


def _learner(names: Mapping[str, str]) -> dict[str, str]:
    return {ours: f"prompt_learner.{theirs}" for ours, theirs in names.items()}


def _layers(names: Mapping[str, str]) -> dict[str, str]:
    parts = ("weight", "bias")
    return {f"{ours}.{p}": f"{theirs}.{p}" for ours, theirs in names.items() for p in parts}


_CONTEXT = {"context": "prompt_learner.ctx"}
_META = _learner(_layers({"first": "meta_net.linear1", "second": "meta_net.linear2"}))
_GATING = _layers({f"gating.{name}": f"gating.W_{name[0]}" for name in
                   ("query", "key", "value", "out")})  # fmt: skip
_FEDERATED = "averaged by numbers of images"

AUTHORS = (
    _authors(
        "htyao89/KgCoOp", "kgcoop",
        Original("kgcoop", "KgCoOp", _CONTEXT, ("context",),
                 {"COOP": {"CTX_INIT": True, "W": 8.0}, "COCOOP": {}}),
        changes=(_FEDERATED,),
    ),
    _authors(
        "KaiyangZhou/CoOp", "cocoop",
        Original("cocoop", "CoCoOp", {**_CONTEXT, **_META}, ("context", *_META),
                 {"COCOOP": {"CTX_INIT": "a photo of a"}}),
        changes=(_FEDERATED,),
    ),
    _authors(
        "ljaiverson/pFedMoAP", "pfedmoap",
        Original("pfedmoap", "PFEDMOAP", {**_CONTEXT, **_GATING}, ("context",),
                 {"PFEDMOAP": {"NUM_EXPERTS": len(TRAIN), "GATING_HEADS": 8, "LMBDA": 0.5,
                               "GATING_EMBED_DIM": 128, "SCALING": 10.0}},
                 before=give_experts, tests_own=True),
        changes=("all experts are those of the round's start, in tests the newest",
                 "one learning rate", "no experts in any client's first round"),
    ),
    _authors(
        "CYFang6/FedPHA", "fedpha",
        Original("GL_SVDMSE", "GL_SVDMSE",
                 _learner({"shared_context": "ctx_global", "local_context": "ctx_local"}),
                 ("shared_context",),
                 {"GL_SVDMSE": {"N": 1, "ratio": 0.8, "alpha": 1.0, "lambda_orthogonal": 1}},
                 train_numbered),
        f"algorithm.local_lengths=[{LENGTH}]",
    ),
    _authors(
        "linhhtran/DP-FPL", "dp_fpl",
        Original("DP_FPL", "DP_FPL",
                 _learner({"shared_context": "global_ctx", "local_context": "local_ctx"}),
                 ("shared_context",), {"DP_FPL": {}}, train_once, uniform=True),
        f"algorithm.rank={RANK}",
        changes=("a client's context is stepped with its own gradient", "one batch a round"),
    ),
)  # fmt: skip
