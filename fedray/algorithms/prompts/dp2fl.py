"""DP2FL: a task prompt for all, and a data prompt for each client mixed from those that help it.

"DP2FL: Dual Prompt Personalized Federated Learning in Foundation Models", arXiv:2504.16357.

    Eq. (3)  -> DualPromptClip.vision_prompts  (algorithms/maple.py)
    Eq. (4)  -> weighted_sum
    Eq. (5)  -> task_weights
    Eq. (6)  -> neighbours      PC: clients whose prompts lower the loss
    Eq. (7)  -> neighbours      RNC: those that raise it by less than a factor alpha
    Eq. (8)  -> neighbours      DNC: all others
    Eq. (9)  -> moved
    Eq. (11) -> raw_weights
    Eq. (12) -> data_weights
    Eq. (14) -> harm_factor

The task prompt Pt is MaPLe's text prompts, the data prompt Pd the maps that make vision prompts of
them. A round of Algorithm 1:

    client_update  train (PT, Pd_k); losses of the result on every client's validation images
    server_update  W_T: PT and PD by Eqs. (4) and (5); W_d: every Pd_k by Eqs. (6) to (14)

Validation images are uploaded by their owners and sent to everyone before the first round, or when
a client joins. That is the method, and no protection of anybody's images.

Deviations:
    - The server mixes every Pd_k and sends it to its client. In the paper it sends all Pd~_i and
      all losses, and clients mix: the same numbers, at K times the download.
    - own^(r), the loss of (PT^(r), Pd_k^(r)) on V_k, is measured and uploaded at the start of the
      client's next round instead of the end of this one: the same model, images and number.
    - Eq. (14) as printed gives the most harmful of the retained clients the largest weight, without
      bound. `gamma_mode` "bounded" (default) keeps each below a third of the smallest helpful one.
    - Ratios 0/0 of Eqs. (5), (11), (12) and (14) are defined as said at the functions.
    - Fewer than all clients in a round (the paper has all): K are those that replied; the others
      keep their data prompts, and find the task prompt of the day when they come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.base import (
    Algorithm,
    Analysis,
    Downlinks,
    Exchange,
    Server,
    ServerState,
    Uplinks,
)
from fedray.algorithms.maple import DualPromptClip, MapleHParams, MapleLocal
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState
from fedray.comm import Payload, travels
from fedray.models import Classifier
from fedray.models.pixels import to_float

GammaMode = Literal["bounded", "literal", "zero"]

TASK, DATA = "task", "data"
FIRST_TASK, FIRST_DATA = "first_task", "first_data"
PERSONAL = "personal"
JOINED = "joined"
HOLDS = "holds"
RELATIONS = "relations"
SMALLEST = 1e-12
NOT_MEASURED = -1.0
BATCH = 100


@dataclass(frozen=True)
class ValidationImages(Payload):
    """A client's validation images V_k, uint8, and their labels."""

    images: Tensor = travels("images", "v channels height width")
    labels: Tensor = travels("statistics", "v")


@dataclass(frozen=True)
class ValidationSets(Payload):
    """Several clients' validation images and labels, by the owner's id."""

    images: Mapping[str, Tensor] = travels("images")
    labels: Mapping[str, Tensor] = travels("statistics")


@dataclass(frozen=True)
class DualPrompts(Payload):
    """A task prompt and a data prompt, each as one vector."""

    task: Tensor = travels("prompts", "t")
    data: Tensor = travels("prompts", "p")


@dataclass(frozen=True)
class TrainedPrompts(DualPrompts):
    """A client's trained prompts Pt~, Pd~ and what they achieve.

    Attributes:
        losses: on the validation images of each client [N]; -1 where it does not hold them.
        own: loss on V_k of the prompts that training started from.
    """

    losses: Tensor = travels("statistics", "n")
    own: float = travels("statistics")


@algorithms.add
class DP2FL(Algorithm):
    """Prompts for the task are averaged, prompts for the data are mixed client by client."""

    name = "dp2fl"
    paper = "arXiv:2504.16357"
    shares = "task and data prompts, losses, and validation images once"
    prompted = True
    has_head = False
    needs_validation = True
    prompts = MapleLocal.prompts

    class HParams(MapleHParams):
        """DP2FL's hyper-parameters, and those of the prompts."""

        alpha: float = Field(1.2, ge=1)
        """A client that raises the loss to less than alpha times is retained; 1: FedFomo's rule."""
        beta: float = Field(0.2, ge=0, le=1)
        """Length of the move towards the others when nobody helps; 0: none."""
        gamma_mode: GammaMode = "bounded"
        """Eq. (14): bounded (see Deviations), literal, or zero, which leaves retained clients out
        when somebody helps."""
        newcomer: Literal["init", "init_global", "global"] = "global"
        """What a client that joins starts from (Tables 3 and 4). init: (PT^(0), PD^(0));
        init_global: (PT, PD^(0)); global: (PT, PD)."""
        union_test: StrictBool = False
        """Whether every client's model is tested on all clients' test images after the last round
        (Table 4, "All"): `union_accuracy`."""

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """PT^(0) and PD^(0), which every client's data prompt starts from."""
        model = cast(DualPromptClip, server.model)
        task, data = model.apart(server.initial(server.architecture))
        clients = self.setting.clients
        return {
            TASK: task,
            DATA: data,
            FIRST_TASK: task,
            FIRST_DATA: data,
            PERSONAL: data.repeat(clients, 1),
            JOINED: torch.zeros(clients, dtype=torch.bool),
            HOLDS: torch.zeros(clients, clients, dtype=torch.bool),
            RELATIONS: torch.zeros(3, dtype=torch.int64),
        }

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Everyone's validation images to everyone."""
        state = self._share_validation(state, exchange, exchange.everyone)
        joined, holds = state[JOINED].clone(), state[HOLDS].clone()
        joined[list(exchange.everyone)] = True
        for client in exchange.everyone:
            holds[client, _owners(state)] = True
        return {**state, JOINED: joined, HOLDS: holds}

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Validation images that are missing, then downlink, client step, server step."""
        return super().round(
            self._share_validation(state, exchange, exchange.participants), exchange
        )

    def _share_validation(
        self, state: ServerState, exchange: Exchange, clients: Sequence[int]
    ) -> ServerState:
        """Ask for validation images that the server lacks, and send each client what it lacks."""
        unknown = [k for k in clients if _images(k) not in state]
        offers = exchange.call("offer_validation", dict.fromkeys(unknown)) if unknown else {}
        for owner, offer in offers.items():
            state = {**state, _images(owner): offer.images, _labels(owner): offer.labels}
        owners = _owners(state)
        sets: dict[tuple[int, ...], ValidationSets] = {}
        down: dict[int, Payload | None] = {}
        for client in clients:
            missing = tuple(k for k in owners if not state[HOLDS][client, k])
            if not missing or client not in owners:  # has all, or does not answer
                continue
            if missing not in sets:
                sets[missing] = ValidationSets(
                    {str(k): state[_images(k)] for k in missing},
                    {str(k): state[_labels(k)] for k in missing},
                )
            down[client] = sets[missing]
        if down:
            exchange.call("keep_validation", down)
        return state

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """PT and each client's Pd_k; for one that is new, what `newcomer` says."""
        return {client: DualPrompts(*self._start(state, client)) for client in clients}

    def _start(self, state: ServerState, client: int) -> tuple[Tensor, Tensor]:
        if state[JOINED][client]:
            return state[TASK], state[PERSONAL][client]
        first = self.hp.newcomer == "init"
        task = state[FIRST_TASK] if first else state[TASK]
        return task, state[DATA] if self.hp.newcomer == "global" else state[FIRST_DATA]

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """PT, PD, and Pd_k of those that replied."""
        if not uplinks:
            return state
        clients = list(uplinks)
        tasks = torch.stack([upload.task for upload in uplinks.values()]).double()
        trained = torch.stack([upload.data for upload in uplinks.values()]).double()
        losses = torch.stack([upload.losses for upload in uplinks.values()]).double()
        measured = losses != NOT_MEASURED
        losses = losses.masked_fill(~measured, torch.nan)
        shares = task_weights(losses[:, _owners(state)])
        personal = state[PERSONAL].clone()
        relations = torch.zeros_like(state[RELATIONS])
        for client, upload in uplinks.items():
            before = self._start(state, client)[1].double()
            column = losses[:, client]
            helpful, retained = neighbours(column, upload.own, self.hp.alpha)
            raw = raw_weights(column, upload.own, trained, before)
            weights = data_weights(raw, helpful, retained, self.hp.beta, self.hp.gamma_mode)
            personal[client] = moved(before, trained, weights)
            rest = ~(helpful | retained)
            relations += torch.stack([helpful.sum(), retained.sum(), rest.sum()])
        joined, holds = state[JOINED].clone(), state[HOLDS].clone()
        joined[clients] = True
        holds[clients] = measured
        return {
            **state,
            TASK: weighted_sum(shares, tasks).float(),
            DATA: weighted_sum(shares, trained).float(),
            PERSONAL: personal,
            JOINED: joined,
            HOLDS: holds,
            RELATIONS: relations,
        }

    def visits(self, state: ServerState, server: Server) -> Mapping[str, Sequence[Downlinks]]:
        """Models beside the clients' own.

        global: (PT, PD) on each client's test (Table 2). others: each client's model on the tests
        of those that have not joined (Table 3, "Ave_Local"). union: each client's model on all
        clients' tests (Table 4, "All").
        """
        joined = server.joined
        everywhere = DualPrompts(state[TASK], state[DATA])
        asked: dict[str, Sequence[Downlinks]] = {"global": [{k: everywhere} for k in joined]}
        own = self.downlink(state, joined, server).values()
        if server.newcomers:
            asked["others"] = [dict.fromkeys(server.newcomers, model) for model in own]
        if self.hp.union_test and server.round == self.setting.rounds:
            asked["union"] = [dict.fromkeys(joined, model) for model in own]
        return asked

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        """Which part of the pairs of clients were PC, RNC and DNC in this round."""
        count = int(state[RELATIONS].sum())
        if not count:
            return Analysis()
        shares = (state[RELATIONS].double() / count).tolist()
        names = ("share_helpful", "share_retained", "share_dropped")
        return Analysis(dict(zip(names, shares, strict=True)))

    # --- client ----------------------------------------------------------------------------------

    def init_client(self, client: Client) -> ClientState:
        """Nothing: prompts are sent, validation images come."""
        return ClientState({})

    def offer_validation(
        self, client: Client, state: ClientState, down: None
    ) -> tuple[ValidationImages, ClientState]:
        """Upload V_k."""
        return ValidationImages(*_validation(client)), state

    def keep_validation(
        self, client: Client, state: ClientState, down: ValidationSets
    ) -> tuple[None, ClientState]:
        """Keep other clients' validation images."""
        memory = dict(state.memory)
        for owner, images in down.images.items():
            memory |= {_images(owner): images, _labels(owner): down.labels[owner]}
        return None, ClientState(state.model, memory)

    def client_update(
        self, client: Client, state: ClientState, down: DualPrompts
    ) -> tuple[TrainedPrompts, ClientState]:
        """Measure own, train, measure on every V_i, upload."""
        model = cast(DualPromptClip, client.load(self.start(client, state, down)))
        images, labels = _validation(client)
        mine = embed(model, images)
        own = mean_loss(model, mine, labels)
        client.fit(model, lambda m, batch: self.local_loss(m, batch, down, state))
        losses = torch.full((self.setting.clients,), NOT_MEASURED)
        losses[client.id] = mean_loss(model, mine, labels)
        for other in set(_owners(state.memory)) - {client.id}:
            theirs = embed(model, state.memory[_images(other)].to(client.device))
            answers = state.memory[_labels(other)].to(client.device)
            losses[other] = mean_loss(model, theirs, answers)
        return TrainedPrompts(*model.apart(client.weights(model)), losses, own), state

    def start(self, client: Client, state: ClientState, down: DualPrompts) -> Mapping[str, Tensor]:
        """What was sent."""
        model = cast(DualPromptClip, client.skeleton.model)
        return model.together(down.task, down.data)


# --- validation images ---------------------------------------------------------------------------


def _images(owner: int | str) -> str:
    return f"validation/{owner}/images"


def _labels(owner: int | str) -> str:
    return f"validation/{owner}/labels"


def _owners(tensors: Mapping[str, Tensor]) -> list[int]:
    """Whose validation images are among the tensors, sorted."""
    return sorted(int(name.split("/")[1]) for name in tensors if name.endswith("/images"))


def _validation(client: Client) -> tuple[Tensor, Tensor]:
    """V_k: uint8 images and labels, on the client's device."""
    if client.validation is None:
        raise RuntimeError("this method declared needs_validation, but the client has none")
    return client.validation.tensors(client.device)


@torch.no_grad()
def embed(model: DualPromptClip, images: Tensor) -> Tensor:
    """What the frozen part before all prompts makes of uint8 images [v, ...]: [v, 1+M, w]."""
    vision = model.clip.vision
    return torch.cat([vision.embed(to_float(part)) for part in torch.split(images, BATCH)])


@torch.no_grad()
def mean_loss(model: Classifier, embedded: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy over validation images, among all classes."""
    model.eval()
    losses = [
        F.cross_entropy(model(part).logits, own, reduction="none")
        for part, own in zip(torch.split(embedded, BATCH), torch.split(labels, BATCH), strict=True)
    ]
    return float(torch.cat(losses).mean())


# --- equations -----------------------------------------------------------------------------------


def task_weights(losses: Tensor) -> Tensor:
    """W_T: w_k = (S - R_k) / (S (K - 1)) with R_k = sum_j Ltilde[k, j], S = sum_k R_k, Eq. (5).

    One client has weight 1; equal weights if S = 0. A client with a loss that is not finite has
    weight 0, and K counts the others.

    Args:
        losses: Ltilde [K, number of validation sets].

    Returns:
        [K], at least 0, sum 1.
    """
    rows = losses.sum(1)
    counted = rows.isfinite()
    if not counted.any():
        counted, rows = torch.ones_like(counted), torch.zeros_like(rows)
    count = int(counted.sum())
    total = rows[counted].sum()
    weights = torch.zeros_like(rows)
    if count == 1 or total == 0:
        weights[counted] = 1 / count
    else:
        weights[counted] = (total - rows[counted]) / (total * (count - 1))
    return weights


def weighted_sum(weights: Tensor, prompts: Tensor) -> Tensor:
    """PT = sum_k w_k Pt~_k of prompts [K, p], Eq. (4); PD likewise."""
    return (weights.unsqueeze(1) * prompts).sum(0)


def neighbours(losses: Tensor, own: float, alpha: float) -> tuple[Tensor, Tensor]:
    """How the K clients' models do on V_k: PC, Eq. (6), and RNC, Eq. (7).

    PC: loss < own. RNC: own <= loss < alpha own. DNC, Eq. (8): neither; a loss that is not finite
    belongs there.

    Args:
        losses: Ltilde[:, k] [K].
        own: loss of client k's own aggregated model of the round before.
        alpha: how much worse is still retained.

    Returns:
        Masks of PC and RNC [K].
    """
    return losses < own, (own <= losses) & (losses < alpha * own)


def raw_weights(losses: Tensor, own: float, trained: Tensor, before: Tensor) -> Tensor:
    """w~_i = (own - Ltilde[i, k]) / ||Pd~_i - Pd_k||_2, Eq. (11).

    The distance is at least 1e-12; equal losses give 0.

    Args:
        losses: Ltilde[:, k] [K].
        own: see `neighbours`.
        trained: Pd~ [K, p].
        before: Pd_k of the round before [p].
    """
    distances = torch.stack([(prompt - before).norm() for prompt in trained])
    return (own - losses) / distances.clamp_min(SMALLEST)


def harm_factor(raw: Tensor, helpful: Tensor, retained: Tensor, mode: GammaMode) -> Tensor:
    """Eq. (14): gamma = 1/3 min_PC w~ / max_RNC w~; at most 0, so gamma w~ counts as help.

    bounded: -1/3 min_PC w~ / max_RNC |w~| instead, so that nothing exceeds min_PC w~ / 3. 0 where
    the denominator is 0 (literal: below 1e-12).

    Args:
        raw: w~ [K].
        helpful: mask of PC, not empty.
        retained: mask of RNC, not empty.
        mode: see `DP2FL.HParams.gamma_mode`.
    """
    smallest = raw[helpful].min() / 3
    if mode == "zero":
        return torch.zeros_like(smallest)
    harm = raw[retained].max() if mode == "literal" else raw[retained].min()
    if harm == 0 or (mode == "literal" and harm.abs() < SMALLEST):
        return torch.zeros_like(smallest)
    return smallest / harm


def data_weights(
    raw: Tensor, helpful: Tensor, retained: Tensor, beta: float, mode: GammaMode
) -> Tensor:
    """The column W_d[:, k], Eq. (12).

    With PC: w~_i, times gamma where it is negative, over their sum; so the sum is 1. Without:
    beta (S - w~_i) / (S (|RNC| - 1)) with S = sum of RNC; so the sum is beta, also where that is
    0/0: beta / |RNC| each, for one retained client or S = 0. DNC: 0.

    Args:
        raw: w~ [K].
        helpful: mask of PC [K].
        retained: mask of RNC [K].
        beta: length of the move without PC.
        mode: see `DP2FL.HParams.gamma_mode`.
    """
    weights = torch.zeros_like(raw)
    count = int(retained.sum())
    if helpful.any():
        weights[helpful] = raw[helpful]
        if count:
            weights[retained] = harm_factor(raw, helpful, retained, mode) * raw[retained]
        return weights / weights.sum()
    if not count:
        return weights
    total = raw[retained].sum()
    if count == 1 or total == 0:
        weights[retained] = beta / count
    else:
        weights[retained] = beta * (total - raw[retained]) / (total * (count - 1))
    return weights


def moved(before: Tensor, trained: Tensor, weights: Tensor) -> Tensor:
    """Pd_k + sum_i W_d[i, k] (Pd~_i - Pd_k), Eq. (9) element by element.

    Args:
        before: Pd_k of the round before [p].
        trained: Pd~ [K, p].
        weights: W_d[:, k] [K].
    """
    return before + weighted_sum(weights, trained - before)
