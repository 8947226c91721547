"""FedMGP: several groups of text and visual prompts, of which the server averages a few.

Bo et al., "FedMGP: Personalized Federated Learning with Multi-Group Text-Visual Prompts", NeurIPS
2025, arXiv:2511.00480.

    Eq. (2)  -> FedMGPClip.groups         logits of each group
    Eq. (3)  -> group_cross_entropy
    Eq. (4)  -> diversity
    Eq. (5)  -> FedMGP.local_loss
    Eq. (6)  -> combine                   inference
    Eq. (7)  -> similarities
    Eq. (8)  -> selection_probabilities, draw_groups
    Eq. (9)  -> rank_mean

A client trains its own G groups and never starts from a global prompt; it uploads s of them and
gets the means back into the slots that it drew.

Deviations:
    - Eq. (4) as printed, and the released code through an absolute value, pull groups together;
      the prose wants them apart. `sign: repel` (default) does what the prose says, `attract` what
      equation and code do. Pairs, classes and images are averaged (code), not summed; preset
      `paper` sums.
    - Inference takes the mean of the groups' logits (code, Table 15), not of probabilities (Eq. 6).
    - Visual prompts are kept between rounds; the released code loses them (`keep_visual: false`).
    - Text and vision draw independently; the released code draws both from one seed
      (`same_draw: true`). Aggregation modes hold from round 1, where the code is always random.
    - Every round has a fresh optimiser; in the released code one SGD serves all clients.
    - No random crops, see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool, model_validator
from torch import Tensor, nn

from fedray.algorithms.base import Algorithm, Downlinks, Exchange, Server, ServerState, Uplinks
from fedray.algorithms.fedavg import shares_of
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState
from fedray.comm import Payload, travels
from fedray.config import Frozen, Tree
from fedray.models import Classifier, ClassifierOutput
from fedray.models.clip import FrozenClip, PromptedClip
from fedray.models.clip.prompted import PHOTO, placeholders, word_embeddings

Aggregation = Literal["similarity", "random", "first", "all"]
Measure = Literal["l1", "l2", "cos"]
Sign = Literal["repel", "attract"]
Inference = Literal["logits", "prob", "max_logits", "features", "group"]

VISUAL = "visual"
HOLDERS = "holders"
"""In the server's state: which clients have P~, bool [N]."""
KNOWN, DRAWN = "known/", "drawn/"
"""In a client's memory: P~ as it knows it, and which groups it drew last, by modality."""

WORDS = "a photo of a"
WORD_STD, STD = 0.01, 0.02
"""Deviations of the noise on initial words, and of initial prompts without words (code)."""


class Groups(NamedTuple):
    """Unit features by group, and the logits that each group gives.

    Attributes:
        image: [G, B, d], or [1, B, d] without visual prompts.
        text: [G, K, d], or [1, K, d] without text prompts.
        logits: [G, B, K].
    """

    image: Tensor
    text: Tensor
    logits: Tensor


class FedMGPClip(PromptedClip):
    """G groups of text prompts [G, l_t, d_t] and visual prompts [G, l_v, d_v], at the input.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        hp: how many, how long, and how they answer together.
    """

    length_key = "algorithm.text_length"

    def __init__(self, clip: FrozenClip, names: Sequence[str], hp: FedMGP.HParams) -> None:
        super().__init__(clip, names)
        self.hp = hp
        self.template = PHOTO if hp.text_length <= 4 else placeholders(hp.text_length)
        if hp.text_length:
            self.text = nn.Parameter(torch.zeros(hp.groups, hp.text_length, clip.text.token_width))
        if hp.visual_length:
            self.visual = nn.Parameter(torch.zeros(hp.groups, hp.visual_length, clip.vision.width))
            self.reads = "images"

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Words with noise for texts of up to four tokens, else noise (section 2 of the code)."""
        length = self.hp.text_length
        if 0 < length <= 4:
            self.text.normal_(0.0, WORD_STD, generator=generator)
            self.text.add_(word_embeddings(self.clip.text, WORDS, length))
        elif length:
            self.text.normal_(0.0, STD, generator=generator)
        if self.hp.visual_length:
            self.visual.normal_(0.0, STD, generator=generator)

    def text_features(self) -> Tensor:
        """g_{k,j} of the classes in scope, all groups as one batch: [G, K, d]."""
        texts = self.class_texts(self.template)
        return texts.encode(self.text) if self.hp.text_length else texts.encode().unsqueeze(0)

    def image_features(self, inputs: Tensor) -> Tensor:
        """f_j [G, B, d]; what no prompt touches is computed once for all groups."""
        if not self.hp.visual_length:
            return super().image_features(inputs).unsqueeze(0)
        vision = self.clip.vision
        with torch.no_grad():
            embedded = vision.embed(inputs)
        if not torch.is_grad_enabled():  # large batches: one group at a time
            features = torch.stack([vision.encode_prompted(embedded, [p]) for p in self.visual])
        else:
            own = self.visual.repeat_interleave(len(inputs), dim=0)
            whole = embedded.repeat(self.hp.groups, 1, 1)
            features = vision.encode_prompted(whole, [own])
            features = features.reshape(self.hp.groups, len(inputs), -1)
        return F.normalize(features.float(), dim=-1)

    def groups(self, inputs: Tensor) -> Groups:
        """Every group's features and logits, Eq. (2)."""
        image, text = self.image_features(inputs), self.texts()
        return Groups(image, text, self.clip.scale * image @ text.transpose(1, 2))

    def forward(self, x: Tensor) -> ClassifierOutput:
        """The groups' mean image features [B, d] and their common answer [B, K]."""
        groups = self.groups(x)
        answer = combine(groups, self.hp.inference, self.hp.group, self.clip.scale)
        return ClassifierOutput(groups.image.mean(0), answer)


@dataclass(frozen=True)
class GlobalGroups(Payload):
    """P~: the server's s groups, by modality [s, l, d]."""

    prompts: Mapping[str, Tensor] = travels("prompts")


@dataclass(frozen=True)
class SelectedGroups(Payload):
    """The s groups that a client drew, in the order of drawing, and how many images it has."""

    prompts: Mapping[str, Tensor] = travels("prompts")
    samples: int = travels("statistics")


@dataclass(frozen=True)
class Written(Payload):
    """That a client has taken over P~."""

    done: int = travels("statistics")


@algorithms.add
class FedMGP(Algorithm):
    """Several groups of prompts; s of them are averaged by rank."""

    name = "fedmgp"
    paper = "Bo et al., NeurIPS 2025, arXiv:2511.00480"
    shares = "s of G prompt groups"
    prompted = True
    has_head = False

    class HParams(Frozen):
        """FedMGP's hyper-parameters; the paper calls the group count G, and m in Table 5."""

        groups: int = Field(5, ge=1, le=64)
        """G, groups of prompts per client. Table 5: 1 to 5."""
        text_length: int = Field(2, ge=0, le=64)
        """l_t, tokens of a text prompt; 0: none (Table 7). Table 6: 2 to 16."""
        visual_length: int = Field(2, ge=0, le=64)
        """l_v, tokens of a visual prompt; 0: none (Table 7)."""
        selected: int = Field(2, ge=1, le=64)
        """s, groups that travel. Table 4: 1 to 4."""
        tau: float = Field(1.0, gt=0)
        """τ of Eq. (8). Table 14."""
        diversity: float = Field(1.0, ge=0)
        """λ, weight of Eq. (4) in Eq. (5); 0: cross-entropy alone. Table 8."""
        measure: Measure = "l1"
        """How groups are compared in Eq. (4). Table 16: l1, l2, cos."""
        sign: Sign = "repel"
        """repel: groups are driven apart (prose); attract: together (Eq. 4 and code)."""
        reduction: Literal["mean", "sum"] = "mean"
        """mean over pairs, classes and images (code), or sums over ordered pairs and classes
        (Eq. 4 as printed)."""
        aggregation: Aggregation = "similarity"
        """similarity: DAM, Eq. (7) to (9); random: uniform draws; first: always groups 0..s-1
        (FAM); all: every group (CAM). Table 17."""
        similarity: Literal["sum", "max"] = "sum"
        """Over the server's groups: sum (Eq. 7), or the largest (code)."""
        same_draw: StrictBool = False
        """Whether text and vision draw from one stream (code)."""
        weights: Literal["samples", "uniform"] = "samples"
        """Of Eq. (9): n_c (paper), or equal (code)."""
        inference: Inference = "logits"
        """logits: mean over groups (code); prob: mean of probabilities (Eq. 6); max_logits: the
        group with the largest logit; features: averaged features; group: only one. Table 15."""
        group: int = Field(0, ge=0)
        """Which group answers with inference=group."""
        keep_visual: StrictBool = True
        """false: visual prompts restart from their initial values in every round and evaluation,
        as they do in the released code."""

        @model_validator(mode="after")
        def _fits(self) -> FedMGP.HParams:
            if self.selected > self.groups:
                raise ValueError(
                    f"selected={self.selected} of groups={self.groups} cannot be drawn; set "
                    f"algorithm.selected to at most {self.groups}"
                )
            if self.group >= self.groups:
                raise ValueError(
                    f"group={self.group} does not exist, there are groups 0 to {self.groups - 1}"
                )
            if not self.text_length and not self.visual_length:
                raise ValueError(
                    "text_length and visual_length are both 0, so nothing learns; set one of them"
                )
            return self

        @property
        def travelling(self) -> int:
            """How many groups a client uploads: s, or G with aggregation=all."""
            return self.groups if self.aggregation == "all" else self.selected

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, dict[str, Any]]:
        """`paper`: the equations as printed; `official`: the released code."""
        own: dict[str, dict[str, Any]] = {
            "paper": {"measure": "cos", "sign": "attract", "reduction": "sum", "inference": "prob"},
            "official": {
                "sign": "attract",
                "similarity": "max",
                "weights": "uniform",
                "same_draw": True,
                "keep_visual": False,
            },
        }
        return {
            preset: {f"algorithm.{key}": value for key, value in values.items()}
            for preset, values in own.items()
        }

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """G groups."""
        return FedMGPClip(clip, class_names, self.hp)

    # --- server ----------------------------------------------------------------------------------

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """P~ of the last round, to those who do not have it; nobody has any before round 2."""
        if not state:
            return dict.fromkeys(clients)
        groups = _groups_of(state)
        return {client: None if state[HOLDERS][client] else groups for client in clients}

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """P~ of this round, Eq. (9), and who is about to have it."""
        holders = torch.zeros(server.setting.clients, dtype=torch.bool)
        return {**rank_mean(shares_of(uplinks, self.hp.weights), uplinks), HOLDERS: holders}

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Train and draw; average by rank; write back to those whose groups arrived (Algorithm 1).

        A participant that stays away from the last step is sent P~ when it comes again.
        """
        down = self.downlink(state, exchange.participants, exchange.server)
        uplinks = exchange.call("client_update", down)
        if not uplinks:
            return state
        state = self.server_update(state, uplinks, exchange.server)
        reached = [client for client in exchange.participants if client in uplinks]
        written = exchange.call("write_back", dict.fromkeys(reached, _groups_of(state)))
        holders = state[HOLDERS].clone()
        holders[list(written)] = True
        return {**state, HOLDERS: holders}

    # --- client ----------------------------------------------------------------------------------

    def start(self, client: Client, state: ClientState, down: Any) -> Mapping[str, Tensor]:
        """The client's own groups, never the server's."""
        if self.hp.keep_visual or not self.hp.visual_length:
            return state.model
        return {**state.model, VISUAL: client.initial()[VISUAL]}

    def local_loss(self, model: Classifier, batch: Batch, down: Any, state: ClientState) -> Tensor:
        """Cross-entropy of every group, and the diversity term, Eq. (5)."""
        assert isinstance(model, FedMGPClip)
        groups = model.groups(batch.images)
        loss = group_cross_entropy(groups.logits, batch.labels)
        if not self.hp.diversity or self.hp.groups == 1:
            return loss
        weight: float = self.hp.diversity
        return loss + weight * self._diversity(groups)

    def _diversity(self, groups: Groups) -> Tensor:
        """Eq. (4) over the modalities that have several groups."""
        hp = self.hp
        terms = []
        if len(groups.text) > 1:
            terms.append(diversity(groups.text, hp.measure, hp.sign, hp.reduction))
        if len(groups.image) > 1:
            own = diversity(groups.image, hp.measure, hp.sign, hp.reduction)
            terms.append(own if hp.reduction == "mean" else own / groups.image.shape[1])
        apart = torch.stack(terms)
        return apart.mean() if hp.reduction == "mean" else apart.sum()

    def client_update(
        self, client: Client, state: ClientState, down: GlobalGroups | None
    ) -> tuple[SelectedGroups, ClientState]:
        """Train all groups, draw s of them, upload these."""
        _, trained = super().client_update(client, state, down)
        known = {
            key.removeprefix(KNOWN): own
            for key, own in state.memory.items()
            if key.startswith(KNOWN)
        }
        reference = down.prompts if down is not None else known
        drawn = {
            name: self._draw(client, name, own, reference.get(name))
            for name, own in trained.model.items()
        }
        memory = {**state.memory, **{DRAWN + name: own for name, own in drawn.items()}}
        selected = {name: trained.model[name][own] for name, own in drawn.items()}
        return SelectedGroups(selected, len(client.train)), ClientState(trained.model, memory)

    def _draw(self, client: Client, name: str, own: Tensor, reference: Tensor | None) -> Tensor:
        """Which groups travel, in the order of their ranks [s], int64."""
        hp = self.hp
        purpose = "groups" if hp.same_draw else f"groups/{name}"
        random = self.setting.streams.torch(purpose, round_=client.round, client=client.id)
        if hp.aggregation in ("all", "first"):
            drawn = torch.arange(hp.travelling)
        elif hp.aggregation == "random" or reference is None:
            drawn = torch.randperm(hp.groups, generator=random)[: hp.selected]
        else:
            likeness = similarities(own, reference, hp.similarity)
            drawn = draw_groups(selection_probabilities(likeness, hp.tau), hp.selected, random)
        for group in range(hp.groups):
            client.metrics[f"drawn_{name}_{group}"] = float(group in drawn)
        return drawn

    def write_back(
        self, client: Client, state: ClientState, down: GlobalGroups
    ) -> tuple[Written, ClientState]:
        """Put P~ into the slots that were drawn, rank by rank, and remember it."""
        model = {name: own.clone() for name, own in state.model.items()}
        for name, values in down.prompts.items():
            model[name][state.memory[DRAWN + name]] = values
        known = {KNOWN + name: values for name, values in down.prompts.items()}
        return Written(1), ClientState(model, {**state.memory, **known})


def _groups_of(state: ServerState) -> GlobalGroups:
    """P~ as it is sent."""
    return GlobalGroups({name: own for name, own in state.items() if name != HOLDERS})


def group_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over groups of each group's cross-entropy, Eq. (3).

    Args:
        logits: [G, B, K].
        labels: y [B].
    """
    groups = len(logits)
    return F.cross_entropy(logits.flatten(0, 1), labels.repeat(groups))


def diversity(
    features: Tensor, measure: Measure, sign: Sign, reduction: Literal["mean", "sum"]
) -> Tensor:
    """How far groups are apart, to be minimised; Eq. (4).

    Distances of unordered pairs: cos: 1 - cos(a, b); l1: mean_d |a_d - b_d|; l2: ||a - b||.

    Args:
        features: unit, of n classes or images [G, n, d], G > 1.
        measure: which distance.
        sign: "attract" minimises the distance, "repel" its negative.
        reduction: "mean" over pairs and n, or "sum" over ordered pairs and n.
    """
    first, second = zip(*combinations(range(len(features)), 2), strict=True)
    a, b = features[list(first)], features[list(second)]
    if measure == "cos":
        distance = 1 - (a * b).sum(-1)
    elif measure == "l1":
        distance = (a - b).abs().mean(-1)
    else:
        distance = ((a - b).square().sum(-1) + 1e-8).sqrt()
    value = distance.mean() if reduction == "mean" else 2 * distance.sum()
    return value if sign == "attract" else -value


def similarities(own: Tensor, reference: Tensor, over: Literal["sum", "max"]) -> Tensor:
    """sim_j = sum_i cos(vec(P_j), vec(P~_i)) [G], Eq. (7); or the largest over i (code).

    Args:
        own: the client's prompts of one modality [G, l, d].
        reference: the server's [s, l, d].
        over: how the server's groups are put together.
    """
    cosines = F.normalize(own.flatten(1), dim=1) @ F.normalize(reference.flatten(1), dim=1).T
    return cosines.sum(1) if over == "sum" else cosines.amax(1)


def selection_probabilities(likeness: Tensor, tau: float) -> Tensor:
    """p_j = softmax_j(sim_j / tau) [G], Eq. (8)."""
    return torch.softmax(likeness.double() / tau, dim=0)


def draw_groups(probabilities: Tensor, s: int, generator: torch.Generator) -> Tensor:
    """Draw s distinct groups one after the other, in the order of drawing [s], int64; Eq. (8).

    After each draw the others' probabilities are scaled up to 1.
    """
    possible = probabilities.clamp_min(1e-300)  # a group that nearly never comes may have to
    return torch.multinomial(possible, s, replacement=False, generator=generator)


def rank_mean(
    shares: Mapping[int, float], uplinks: Mapping[int, SelectedGroups]
) -> dict[str, Tensor]:
    """P~_i = sum_c p_c P_c[sel_c[i]], matched by rank i in each client's draw, Eq. (9).

    Args:
        shares: p_c by client.
        uplinks: each client's groups in the order of drawing.

    Returns:
        By modality [s, l, d].
    """
    first = next(iter(uplinks.values())).prompts
    mean = {name: torch.zeros_like(own) for name, own in first.items()}
    for client, upload in uplinks.items():
        for name, own in upload.prompts.items():
            mean[name].add_(own, alpha=shares[client])
    return mean


def combine(groups: Groups, how: Inference, group: int, scale: float) -> Tensor:
    """The groups' common answer [B, K] (Table 15); "prob" gives log-probabilities, Eq. (6).

    Args:
        groups: what each of them sees.
        how: see `FedMGP.HParams.inference`.
        group: the one that answers with "group".
        scale: exp(logit_scale).
    """
    if how == "logits":
        return groups.logits.mean(0)
    if how == "prob":
        return groups.logits.softmax(-1).mean(0).log()
    if how == "features":
        return scale * (groups.image.mean(0) @ groups.text.mean(0).T)
    if how == "group":
        return groups.logits[group]
    surest = groups.logits.amax(-1).argmax(0)  # [B]
    return groups.logits[surest, torch.arange(len(surest), device=surest.device)]
