"""FedMGP: several groups of text and visual prompts, of which the server averages a few.

Bo et al., "FedMGP: Personalized Federated Learning with Multi-Group Text-Visual Prompts", NeurIPS
2025, arXiv:2511.00480.

    Eq. (2)  -> GroupedClip.groups        logits of each group
    Eq. (3)  -> group_cross_entropy
    Eq. (4)  -> diversity
    Eq. (5)  -> FedMGP.loss
    Eq. (6)  -> combine                   inference
    Eq. (7)  -> group_similarities
    Eq. (8)  -> selection_probabilities, draw_groups
    Eq. (9)  -> FedMGP.round              mean of the groups by rank

A client trains its own G groups and never starts from global prompts. It draws s groups, uploads
them, and receives the means into the same slots.

Deviations:
    - Eq. (4) as printed attracts groups to each other, and so does the released code, through an
      absolute value; the paper's prose says that groups repel each other. `sign=repel` (default)
      follows the prose, `sign=attract` equation and code. The term is averaged over pairs, classes
      and images (code), not summed; `preset=paper` sums.
    - Inference averages the groups' logits (code, Table 15), not their probabilities (Eq. 6).
    - Visual prompts are kept between rounds; the released code loses them (`keep_visual=false`).
    - Groups of text and of vision are drawn independently; the released code draws both from one
      seed (`same_draw=true`). `aggregation` applies from round 1; the released code draws randomly
      in round 1.
    - Every round begins with a new optimiser. In the released code, all clients share one SGD and
      its momentum. Therefore no preset reproduces the code's numbers: text prompts differ by 0.11,
      while training moves them by 0.06.
    - Without text prompts, the text is "a photo of a {class}."; in the released code, "vision only"
      draws new random text features in every forward pass.
    - In the released code, the methods that FedMGP is compared with send the mean to participants
      only (CIFAR, Office-Caltech10, DomainNet); here every client starts from the mean.
    - By default, images are not cropped randomly; see promptfl.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray import core
from fedray.algorithms.mean import SAMPLES, Weights
from fedray.algorithms.prompts.prompt_averaging import TRAINED
from fedray.config import LossWeight, Temperature, Tree
from fedray.models import ClassifierOutput, Inputs, Pixels
from fedray.models.inputs import values_of
from fedray.models.prompted import PromptedClip, maple_template, scaled_products, unit

Inference = Literal["logits", "prob", "max_logits", "features", "group"]
Distance = Literal["l1", "l2", "cos"]
Sign = Literal["repel", "attract"]
Reduction = Literal["mean", "sum"]

WORDS = "a photo of a"
WORD_STD = 0.01
"""Standard deviation of the noise added to initial words (official code)."""


# --- equations -----------------------------------------------------------------------------------


class Groups(NamedTuple):
    """Unit features and logits of each group.

    Attributes:
        image: [G, B, d], or [1, B, d] without visual prompts.
        text: [G, K, d], or [1, K, d] without text prompts.
        logits: [G, B, K].
    """

    image: Tensor
    text: Tensor
    logits: Tensor


def group_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over groups of the cross-entropy of logits [G, B, K], labels [B], Eq. (3)."""
    groups = len(logits)
    return F.cross_entropy(logits.flatten(0, 1), labels.repeat(groups))


def diversity(features: Tensor, measure: Distance, sign: Sign, reduction: Reduction) -> Tensor:
    """Return the diversity loss from the distances between groups, Eq. (4).

    Distances of a pair: 1 - cos(a, b) for "cos", mean_d |a_d - b_d| for "l1", ||a - b|| for "l2".

    Args:
        features: unit features of n classes or images [G, n, d], G > 1.
        measure: the distance.
        sign: see `FedMGP.sign`; "attract" returns the distance, "repel" its negative.
        reduction: "mean" over pairs and n, or "sum" over ordered pairs and n.
    """
    first, second = torch.triu_indices(len(features), len(features), 1, device=features.device)
    a, b = features[first], features[second]
    if measure == "cos":
        distance = 1 - (a * b).sum(-1)
    elif measure == "l1":
        distance = (a - b).abs().mean(-1)
    else:
        distance = ((a - b).square().sum(-1) + 1e-8).sqrt()
    value = distance.mean() if reduction == "mean" else 2 * distance.sum()
    return value if sign == "attract" else -value


def combine(groups: Groups, how: Inference, group: int, scale: float) -> Tensor:
    """Return the groups' combined logits [B, K] (Table 15).

    Args:
        groups: features and logits of each group.
        how: see `FedMGP.inference`; "prob" returns the logarithm of the probabilities of Eq. (6).
        group: the group to use if `how` is "group".
        scale: exp(logit_scale).
    """
    if how == "logits":
        return groups.logits.mean(0)
    if how == "prob":
        return groups.logits.softmax(-1).mean(0).log()
    if how == "features":
        return scale * scaled_products(groups.image.mean(0), groups.text.mean(0), 1.0)
    if how == "group":
        return groups.logits[group]
    surest = groups.logits.amax(-1).argmax(0)  # [B]
    return groups.logits[surest, torch.arange(len(surest), device=surest.device)]


def group_similarities(prompts: Tensor, reference: Tensor, over: Literal["sum", "max"]) -> Tensor:
    """Return sim_j = sum_i cos(vec(P_j), vec(P~_i)) [G], Eq. (7), or the maximum over i.

    Args:
        prompts: the client's prompts of one modality [G, l, d].
        reference: the server's prompts [s, l, d].
        over: the reduction over the server's groups i.
    """
    cosines = F.normalize(prompts.flatten(1), dim=1) @ F.normalize(reference.flatten(1), dim=1).T
    return cosines.sum(1) if over == "sum" else cosines.amax(1)


def selection_probabilities(similarity: Tensor, tau: float) -> Tensor:
    """Return p_j = softmax_j(sim_j / tau) [G], Eq. (8)."""
    return torch.softmax(similarity.double() / tau, dim=0)


def draw_groups(probabilities: Tensor, s: int, generator: torch.Generator) -> Tensor:
    """Draw s distinct groups one after the other, in the order of drawing [s], int64; Eq. (8).

    After each draw, the probabilities of the remaining groups are scaled to sum to 1.
    """
    possible = probabilities.clamp_min(1e-300)  # s draws may need a group whose p underflows to 0
    return torch.multinomial(possible, s, replacement=False, generator=generator)


# --- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class GroupedOutput(ClassifierOutput):
    """Mean image features [B, d], the combined prediction [B, K], and features of each group."""

    groups: Groups


class GroupedClip(PromptedClip):
    """A CLIP with G groups of text prompts [G, l_t, d_t] and visual prompts [G, l_v, d_v].

    Prompts enter at the inputs of the towers. Without visual prompts it reads `ImageFeatures`.
    """

    length_key = "algorithm.text_length"

    def make_prompts(self, hparams: Any) -> None:
        groups, length = hparams.groups, hparams.text_length
        self.template, words = maple_template(length), WORDS if length <= 4 else None
        if length:
            shape = groups, length, self.clip.text.token_width
            self.text = self.prompt(*shape, words=words, noise=WORD_STD)
        if hparams.visual_length:
            self.visual = self.prompt(groups, hparams.visual_length, self.clip.vision.width)
            self.reads = Pixels

    def text_features(self) -> Tensor:
        """Return text features g_{k,j} of the classes in scope, from one batch: [G, K, d]."""
        texts = self.class_texts(self.template)
        return texts.encode(self.text) if self.hparams.text_length else texts.encode().unsqueeze(0)

    def image_features(self, x: Inputs) -> Tensor:
        """Return image features f_j [G, B, d]; patch embeddings are shared by all groups."""
        if not self.hparams.visual_length:
            return super().image_features(x).unsqueeze(0)
        vision, images, groups = self.clip.vision, len(x), len(self.visual)
        with torch.no_grad():
            embedded = vision.embed(values_of(x, Pixels))
        if not torch.is_grad_enabled():  # large batches: one group at a time
            features = torch.stack([vision.encode_prompted(embedded, [p]) for p in self.visual])
        else:
            prompts = self.visual.repeat_interleave(images, dim=0)
            features = vision.encode_prompted(embedded.repeat(groups, 1, 1), [prompts])
            features = features.reshape(groups, images, -1)
        return unit(features)

    def groups(self, x: Inputs) -> Groups:
        """Return the features and logits of every group, Eq. (2)."""
        image, text = self.image_features(x), self.texts()
        return Groups(image, text, self.logits(image, text))

    def forward(self, x: Inputs) -> GroupedOutput:
        """Return the combined prediction, and the predictions of all groups."""
        groups, hp = self.groups(x), self.hparams
        answer = combine(groups, hp.inference, hp.group, self.clip.scale)
        return GroupedOutput(groups.image.mean(0), answer, groups)


# --- the method ----------------------------------------------------------------------------------


@core.method("fedmgp", "FedMGP", "Bo et al., NeurIPS 2025, arXiv:2511.00480")
class FedMGP(core.PromptMethod, core.LocalTraining):
    """Several groups of prompts per client, of which the server averages s by rank.

    The paper writes G for the number of groups, in Table 5 m.
    """

    version = 3  # the mean is a sum that is divided once
    clip_model = GroupedClip
    down: ClassVar[Any] = {
        "prompts": core.sent("prompts", "the mean of the participants' prompt groups")
    }
    """P~, the server's s groups, by modality [s, l, d]."""
    up: ClassVar[Any] = {"prompts": TRAINED, "samples": SAMPLES}
    """A client's s drawn groups, in the order of drawing, and its number of training images."""
    evaluation_only: ClassVar[tuple[str, ...]] = ("inference", "group")

    groups: int = Field(5, ge=1, le=64)
    """G, number of prompt groups per client; 1 has no diversity term. Table 5: 1 to 5."""
    text_length: int = Field(2, ge=0, le=64)
    """l_t, tokens of a text prompt; 0: no text prompts (Table 7). Table 4: 2 to 16."""
    visual_length: int = Field(2, ge=0, le=64)
    """l_v, tokens of a visual prompt; 0: no visual prompts (Table 7)."""
    selected: int = Field(2, ge=1, le=64)
    """s, number of groups that are uploaded and averaged. Table 6: 1 to 4."""
    tau: Temperature = 1.0
    """τ of Eq. (8), temperature of the selection; large values draw uniformly. Table 14."""
    diversity: LossWeight = 1.0
    """λ, weight of Eq. (4) in Eq. (5); 0 uses the cross-entropy only. Table 8."""
    measure: Distance = "l1"
    """Distance between groups in Eq. (4): l1, l2 or cos (Table 16)."""
    sign: Sign = "repel"
    """Sign of Eq. (4): repel increases distances (prose); attract decreases them (Eq. 4 as
    printed, released code)."""
    reduction: Reduction = "mean"
    """Reduction of Eq. (4): mean over pairs, classes and images (released code), or sum over
    ordered pairs and classes (Eq. 4 as printed)."""
    aggregation: Literal["similarity", "random", "first", "all"] = "similarity"
    """Groups that are uploaded: similarity, drawn by Eqs. (7) to (9) (DAM); random, drawn
    uniformly; first, always groups 0..s-1 (FAM); or all (CAM). Table 17."""
    similarity: Literal["sum", "max"] = "sum"
    """Reduction over the server's groups in Eq. (7): sum (as printed), or max (released
    code)."""
    same_draw: StrictBool = False
    """Whether text and vision draw groups from one random stream (released code)."""
    weights: Weights = "samples"
    """Client weights in Eq. (9): samples, n_c (paper), or uniform (released code)."""
    inference: Inference = "logits"
    """Combination of groups in tests: logits, mean logits (released code); prob, mean
    probabilities (Eq. 6); max_logits, the group with the largest logit; features, mean
    features; or group, only the group with the number `group`. Table 15."""
    group: int = Field(0, ge=0, le=63)
    """Number of the group that predicts if inference=group."""
    keep_visual: StrictBool = True
    """Whether visual prompts are kept between rounds; false: they restart from their initial
    values in every round and evaluation (released code)."""

    def check(self) -> None:
        if self.selected > self.groups:
            raise ValueError(f"set selected={self.selected} to at most groups={self.groups}")
        if self.group >= self.groups:
            raise ValueError(f"set group={self.group} to less than groups={self.groups}")
        if not self.text_length and not self.visual_length:
            raise ValueError("no prompt is trained; set text_length or visual_length to at least 1")

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, Tree]:
        """Return `paper`: the equations as printed, and `official`: the released code."""
        return {
            "paper": {
                "algorithm.measure": "cos",
                "algorithm.sign": "attract",
                "algorithm.reduction": "sum",
                "algorithm.inference": "prob",
            },
            "official": {
                "algorithm.sign": "attract",
                "algorithm.similarity": "max",
                "algorithm.weights": "uniform",
                "algorithm.same_draw": True,
                "algorithm.keep_visual": False,
            },
        }

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return initial prompts, which are not sent, under the version of those without P~."""
        return {"prompts": server.initial(server.architecture), "version": torch.tensor(-1)}

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Send P~ of the last round to clients that lack it; in round 1, send nothing."""
        groups = self.down(state["prompts"])
        held = core.held_versions(state, "write_back", self.setting)
        return {c: None if held[c] == state["version"] else groups for c in clients}

    def round(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Train and draw, average by rank, Eq. (9), and send P~ to clients whose groups arrived.

        This is Algorithm 1. A participant that does not reply to the last step receives P~ when it
        takes part again.
        """
        state, version = super().round(state, exchange), exchange.server.round
        if not exchange.replied:
            return state
        state = {**state, "version": torch.tensor(version)}
        down = dict.fromkeys(sorted(exchange.replied), self.down(state["prompts"]))
        return exchange.give(state, "write_back", down, version=version)

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the client's groups, never the server's."""
        groups = dict(state.model)
        if "visual" in groups and not self.keep_visual:
            groups["visual"] = client.initial()["visual"]
        return core.LocalContext(client, client.load(groups), state, down)

    def loss(self, output: Any, batch: core.Batch, local: core.LocalContext) -> Tensor:
        """Return the groups' mean cross-entropy plus the diversity term, Eq. (5)."""
        loss = group_cross_entropy(output.groups.logits, batch.labels)
        if not self.diversity or self.groups == 1:
            return loss
        return loss + self.diversity * self._diversity(output.groups)

    def _diversity(self, groups: Groups) -> Tensor:
        """Return Eq. (4) over the modalities that have several groups."""
        how = self.measure, self.sign, self.reduction
        terms = []
        if len(groups.text) > 1:
            terms.append(diversity(groups.text, *how))
        if len(groups.image) > 1:
            term = diversity(groups.image, *how)
            terms.append(term if self.reduction == "mean" else term / groups.image.shape[1])
        values = torch.stack(terms)
        return values.mean() if self.reduction == "mean" else values.sum()

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        """Draw s of the trained groups and upload them; keep all groups."""
        client, down, memory = local.client, local.down, local.state.memory
        reference = memory.get("known", {}) if down is None else down.prompts
        groups = client.save(local.model)
        drawn = {
            modality: self._draw(client, modality, prompts, reference.get(modality))
            for modality, prompts in groups.items()
        }
        selected = {modality: groups[modality][which] for modality, which in drawn.items()}
        next_state = core.ClientState(groups, {**memory, "drawn": drawn})
        return {"prompts": selected, "samples": len(client.train)}, next_state

    def _draw(
        self, client: core.Client, modality: str, prompts: Tensor, reference: Tensor | None
    ) -> Tensor:
        """Draw the groups to upload, in the order of their ranks [s], int64."""
        purpose = "groups" if self.same_draw else f"groups/{modality}"
        random = client.random(purpose)
        if self.aggregation in ("all", "first"):
            drawn = torch.arange(self.groups if self.aggregation == "all" else self.selected)
        elif self.aggregation == "random" or reference is None:
            drawn = torch.randperm(self.groups, generator=random)[: self.selected]
        else:
            similarity = group_similarities(prompts, reference, self.similarity)
            probabilities = selection_probabilities(similarity.cpu(), self.tau)
            drawn = draw_groups(probabilities, self.selected, random)
        for group in range(self.groups):
            client.reports[f"drawn_{modality}_{group}"] = float(group in drawn)
        return drawn

    def write_back(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[None, core.ClientState]:
        """Write P~ into the drawn slots, rank by rank, and keep P~ for the next selection."""
        groups = {modality: prompts.clone() for modality, prompts in state.model.items()}
        for modality, prompts in down.prompts.items():
            groups[modality][state.memory["drawn"][modality]] = prompts
        return None, core.ClientState(groups, {**state.memory, "known": down.prompts})
