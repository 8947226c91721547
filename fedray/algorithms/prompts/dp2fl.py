"""DP2FL: a shared task prompt, and a data prompt per client, mixed from those of helpful clients.

"DP2FL: Dual Prompt Personalized Federated Learning in Foundation Models", arXiv:2504.16357.

    Eq. (3)  -> DualPromptClip.vision_prompts  (models/prompted/dual.py)
    Eq. (4)  -> weighted_sum    (mean.py)
    Eq. (5)  -> task_weights
    Eq. (6)  -> neighbours      PC: clients whose prompts lower the loss
    Eq. (7)  -> neighbours      RNC: those that raise it by less than a factor alpha
    Eq. (8)  -> neighbours      DNC: all others
    Eq. (9)  -> moved
    Eq. (11) -> raw_weights
    Eq. (12) -> data_weights
    Eq. (14) -> harm_factor

The task prompt Pt consists of MaPLe's text prompts, the data prompt Pd of the maps from text
prompts to vision prompts. A round of Algorithm 1:

    client_update  train (PT, Pd_k); losses of the result on every client's validation images
    server_update  W_T: PT and PD by Eqs. (4) and (5); W_d: every Pd_k by Eqs. (6) to (14)

Before the first round, and when its images change or it joins, every client uploads its validation
images, and the server sends them to all clients, whether or not they take part in the round. This
is part of the method and does not protect the images.

Deviations:
    - The server mixes every Pd_k and sends it to its client. In the paper the server sends all
      Pd~_i and all losses, and clients mix: the same numbers, at K times the download.
    - own^(r), the loss of (PT^(r), Pd_k^(r)) on V_k, is measured and uploaded as `initial_loss` at
      the start of the client's next round instead of the end of this one. Model, images and
      resulting number are the same.
    - Eq. (14) as printed gives the most harmful retained client the largest weight, without bound.
      The default `gamma_mode=bounded` keeps the weight of each retained client below a third of the
      smallest weight of a helpful one.
    - The docstrings of the functions define the 0/0 ratios of Eqs. (5), (11), (12) and (14).
    - A round may have fewer than all clients (in the paper it has all). K then counts the clients
      that replied. The others keep their data prompts, and receive the current task prompt when
      they take part again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray import core
from fedray.algorithms.mean import weighted_sum
from fedray.algorithms.prompts.prompt_averaging import CoupledPrompts
from fedray.config import Tree
from fedray.evaluation.protocols import Analysis
from fedray.models import Classifier, PatchEmbeddings, Pixels
from fedray.models.prompted import DualPromptClip
from fedray.storage.metric import Metric

GammaMode = Literal["bounded", "literal", "zero"]

SMALLEST = 1e-12
BATCH = 100
"""The number of validation images per forward pass."""


@core.method("dp2fl", "DP2FL", "arXiv:2504.16357")
class DP2FL(CoupledPrompts, core.LocalTraining):
    """An averaged task prompt, and a data prompt per client, mixed from those of helpful clients.

    The server's state: `task` PT [t] and `data` PD [p]; `first_task` and `first_data`, their
    initial values; `personal`, every Pd_k [N, p]; `joined`, the mask of clients that have taken
    part [N]; `relations`, the numbers of PC, RNC and DNC pairs in the round [3]; `validation`, V_k
    by the owner's id; `version`, the last round in which images arrived, which is the version of
    the gift. A client's memory: `validation`.
    """

    version = 2  # asks all clients for validation images, not only those that take part
    requires = core.Requires(prompts=True, head=False, validation=True)
    down: ClassVar[Any] = {
        "task": core.sent("prompts", "the mean task prompt", axes="t"),
        "data": core.sent(
            "prompts",
            "a mixture of the data prompts of clients whose images are alike",
            axes="p",
        ),
    }
    up = {
        "task": core.sent("prompts", "the client's trained prompts", axes="t"),
        "data": core.sent("prompts", axes="p"),
        "losses": core.sent(
            "statistics", "the loss of these prompts on the images of every client", axes="N"
        ),
        "initial_loss": core.sent("statistics", number=float),
    }
    analysis_metrics = tuple(
        Metric(f"share_{relation}", "share", None, None)
        for relation in ("helpful", "retained", "dropped")
    )

    evaluation_only: ClassVar[tuple[str, ...]] = ("union_test",)

    alpha: float = Field(1.2, ge=1, le=1e6)
    """α, the factor below which a client that raises the loss is retained; 1 gives FedFomo's
    rule."""
    beta: float = Field(0.2, ge=0, le=1)
    """β, length of the step towards the retained clients if no client is helpful; 0: no
    step."""
    gamma_mode: GammaMode = "bounded"
    """Variant of Eq. (14): bounded (see Deviations); literal, as printed; or zero, which
    ignores retained clients if some client is helpful."""
    newcomer: Literal["init", "init_global", "global"] = "global"
    """Initial prompts of a client that joins (Tables 3 and 4): init, (PT^(0), PD^(0));
    init_global, (PT, PD^(0)); or global, (PT, PD)."""
    union_test: StrictBool = False
    """Whether every client's model is tested on all clients' test images after the last round
    (Table 4, "All"), as the metric `union_accuracy`."""

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, Tree]:
        """Return `paper`: Eq. (14) and the learning rate as printed."""
        return {"paper": {"algorithm.gamma_mode": "literal", "lr": 0.035}}

    def init_server(self, server: core.Server) -> core.ServerState:
        model = cast(DualPromptClip, server.model)
        task, data = model.split_parameters(server.initial(server.architecture))
        clients = self.setting.clients
        return {
            "task": task,
            "data": data,
            "first_task": task,
            "first_data": data,
            "personal": data.repeat(clients, 1),
            "joined": torch.zeros(clients, dtype=torch.bool),
            "version": torch.tensor(-1),
            "relations": torch.zeros(3, dtype=torch.int64),
            "validation": {},
        }

    def prepare(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Exchange the validation images of all clients."""
        state = self._exchange_validation(state, exchange)
        joined = state["joined"].clone()
        joined[list(exchange.everyone)] = True
        return {**state, "joined": joined}

    def round(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Exchange new validation images, then run the round."""
        if exchange.server.round in self.setting.phases:  # the images V_k have changed
            state = {**state, "validation": {}}
        return super().round(self._exchange_validation(state, exchange), exchange)

    def _exchange_validation(
        self, state: core.ServerState, exchange: core.Exchange
    ) -> core.ServerState:
        """Collect the validation images that the server lacks, and send them to everyone."""
        known, version = state["validation"], int(state["version"])
        unknown = [k for k in exchange.everyone if str(k) not in known]
        offers = exchange.call("offer_validation", dict.fromkeys(unknown)) if unknown else {}
        received = {str(k): {"images": v.images, "labels": v.labels} for k, v in offers.items()}
        validation = {**known, **received}
        down = dict.fromkeys(exchange.everyone, self._sets(validation))
        if received:
            held = core.held_versions(state, "receive_validation", self.setting) == version
            new = self._sets(received)
            down |= {k: new for k in exchange.everyone if held[k]}
            version = exchange.server.round
        state = {**state, "validation": validation, "version": torch.tensor(version)}
        return exchange.give(state, "receive_validation", down, version=version)

    def _sets(self, validation: Mapping[str, Mapping[str, Tensor]]) -> core.Payload:
        """Return the gift of sets like the `validation` entry of the server's state."""
        parts = ({k: v[name] for k, v in validation.items()} for name in ("images", "labels"))
        sets: core.Payload = self.receive_validation.down(*parts)
        return sets

    def _measured(self, state: core.ServerState) -> Tensor:
        """Return the mask of pairs (i, k) in which client i has a loss on the server's V_k [N, N].

        A client that missed the last images has a loss on its own alone.
        """
        owners = torch.zeros(self.setting.clients, dtype=torch.bool)
        owners[_owners(state)] = True
        held = core.held_versions(state, "receive_validation", self.setting)
        latest = held == int(state["version"])
        return latest.unsqueeze(1) & owners | torch.eye(len(owners), dtype=torch.bool)

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Send PT and each client's Pd_k, and to new clients the prompts chosen by `newcomer`."""
        return {client: self.down(*self._initial_prompts(state, client)) for client in clients}

    def _initial_prompts(self, state: core.ServerState, client: int) -> tuple[Tensor, Tensor]:
        """Return the prompts from which a client's training starts."""
        if state["joined"][client]:
            return state["task"], state["personal"][client]
        task = state["first_task"] if self.newcomer == "init" else state["task"]
        return task, state["data"] if self.newcomer == "global" else state["first_data"]

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Return PT, PD and the Pd_k of clients that replied.

        Clients whose prompts are not finite have weight 0.
        """
        if not uplinks:
            return state
        tasks = torch.stack([upload.task for upload in uplinks.values()]).double()
        trained = torch.stack([upload.data for upload in uplinks.values()]).double()
        losses = torch.stack([upload.losses for upload in uplinks.values()]).double()
        measured = self._measured(state)[list(uplinks)]
        usable = tasks.isfinite().all(1) & trained.isfinite().all(1)
        losses = losses.masked_fill(~measured | ~usable.unsqueeze(1), torch.nan)
        weights = torch.zeros(len(uplinks), dtype=losses.dtype)
        if usable.any():
            weights[usable] = task_weights(losses[usable][:, _owners(state)])
        personal = state["personal"].clone()
        relations = torch.zeros_like(state["relations"])
        for client, upload in uplinks.items():
            before = self._initial_prompts(state, client)[1].double()
            column = losses[:, client]
            helpful, retained = neighbours(column, upload.initial_loss, self.alpha)
            raw = raw_weights(column, upload.initial_loss, trained, before)
            mixing = data_weights(raw, helpful, retained, self.beta, self.gamma_mode)
            personal[client] = moved(before, trained, mixing)
            dropped = ~(helpful | retained)
            relations += torch.stack([helpful.sum(), retained.sum(), dropped.sum()])
        joined = state["joined"].clone()
        joined[list(uplinks)] = True
        averaged = {}
        if usable.any():  # else PT and PD stay unchanged
            averaged["task"] = weighted_sum(weights, tasks).float()
            averaged["data"] = weighted_sum(weights, trained).float()
        return {**averaged, "personal": personal, "joined": joined, "relations": relations}

    def cross_evaluations(
        self, state: core.ServerState, server: core.Server
    ) -> Mapping[str, Sequence[core.Downlinks]]:
        """Return models that are tested on other clients' test images.

        global: (PT, PD) on each client's test images (Table 2). others: each client's model on the
        test images of clients that have not joined (Table 3, "Ave_Local"). union: each client's
        model on all clients' test images (Table 4, "All").
        """
        joined = server.joined
        averaged = self.down(state["task"], state["data"])
        tests: dict[str, Sequence[core.Downlinks]] = {"global": [{k: averaged} for k in joined]}
        models = self.downlink(state, joined, server).values()
        if server.newcomers:
            tests["others"] = [dict.fromkeys(server.newcomers, model) for model in models]
        if self.union_test and server.round == self.setting.rounds:
            tests["union"] = [dict.fromkeys(joined, model) for model in models]
        return tests

    def analyse(self, state: core.ServerState, server: core.Server) -> Analysis:
        """Return the shares of PC, RNC and DNC among the pairs of clients of this round."""
        count = int(state["relations"].sum())
        if not count:
            return Analysis()
        shares = (state["relations"].double() / count).tolist()
        names = (metric.name for metric in self.analysis_metrics)
        return Analysis(dict(zip(names, shares, strict=True)))

    def init_client(self, client: core.Client) -> core.ClientState:
        return core.ClientState({}, {"validation": {}})

    @core.step(
        up={
            "images": core.sent(
                "images",
                "the client's validation images themselves",
                axes="v channels height width",
                dtype=torch.uint8,
            ),
            "labels": core.sent("statistics", "their labels", axes="v", dtype=torch.int64),
        }
    )
    def offer_validation(
        self, client: core.Client, state: core.ClientState, down: None
    ) -> tuple[Any, core.ClientState]:
        """Upload V_k."""
        images, labels = _validation(client)
        return {"images": images, "labels": labels}, state

    @core.step(
        down={
            "images": core.sent(
                "images", "other clients' validation images themselves, and their owners"
            ),
            "labels": core.sent("statistics", "their labels"),
        }
    )
    def receive_validation(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[None, core.ClientState]:
        """Put other clients' validation images into the client's memory."""
        received = {
            owner: {"images": images, "labels": down.labels[owner]}
            for owner, images in down.images.items()
        }
        validation = {**state.memory["validation"], **received}
        return None, core.ClientState(state.model, {"validation": validation})

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        model = cast(DualPromptClip, client.skeleton.model)
        weights = model.merge_parameters(down.task, down.data)
        return core.LocalContext(client, client.load(weights), state, down)

    def client_update(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[Any, core.ClientState]:
        """Measure the initial loss, train, and measure the loss on every V_i in the memory."""
        local = self.begin(client, state, down)
        model = cast(DualPromptClip, local.model)
        images, labels = _validation(client)
        embedded = embed(model, images)
        initial_loss = mean_loss(model, embedded, labels)
        trained = self.train(local)
        losses = torch.zeros(self.setting.clients)
        losses[client.id] = mean_loss(model, embedded, labels)
        for owner, held in state.memory["validation"].items():
            if int(owner) != client.id:
                images, labels = held["images"], held["labels"]
                losses[int(owner)] = mean_loss(model, embed(model, images), labels)
        task, data = model.split_parameters(trained.tensors)
        up = {"task": task, "data": data, "losses": losses, "initial_loss": initial_loss}
        return up, state


# --- validation images ---------------------------------------------------------------------------


def _owners(state: core.ServerState) -> list[int]:
    """Return the owners of the server's validation images, sorted."""
    return sorted(int(owner) for owner in state["validation"])


def _validation(client: core.Client) -> tuple[Tensor, Tensor]:
    """Return V_k, uint8 images and labels, on the client's device."""
    if client.validation is None:
        raise RuntimeError("this method requires validation images, but the client has none")
    return client.validation.tensors(client.device)


@torch.no_grad()
def embed(model: DualPromptClip, images: Tensor) -> PatchEmbeddings:
    """Return patch embeddings [v, 1+M, w] of uint8 images, the frozen input of the first block."""
    vision, parts = model.clip.vision, torch.split(images, BATCH)
    return PatchEmbeddings(torch.cat([vision.embed(Pixels.of(part).values) for part in parts]))


@torch.no_grad()
def mean_loss(model: Classifier, embedded: PatchEmbeddings, labels: Tensor) -> float:
    """Return the mean cross-entropy over validation images, with all classes."""
    model.eval()
    losses = [
        F.cross_entropy(model(PatchEmbeddings(part)).logits, targets, reduction="none")
        for part, targets in zip(
            torch.split(embedded.values, BATCH), torch.split(labels, BATCH), strict=True
        )
    ]
    return float(torch.cat(losses).mean())


# --- equations -----------------------------------------------------------------------------------


def task_weights(losses: Tensor) -> Tensor:
    """Return W_T, w_k = (S - R_k) / (S (K - 1)), Eq. (5); R_k = sum_j Ltilde[k, j], S = sum R_k.

    A single client has weight 1. If S = 0, weights are equal. A client with a non-finite loss has
    weight 0 and is not counted in K; if this excludes all clients, weights are equal.

    Args:
        losses: Ltilde [K, number of validation sets].

    Returns:
        Weights [K], not negative, with sum 1.
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


def neighbours(losses: Tensor, initial_loss: float, alpha: float) -> tuple[Tensor, Tensor]:
    """Return masks of the K clients whose models are PC, Eq. (6), and RNC, Eq. (7), on V_k.

    PC: loss < own. RNC: own <= loss < alpha own. DNC, Eq. (8): all others, including non-finite
    losses, and all clients if own is not finite.

    Args:
        losses: Ltilde[:, k] [K].
        initial_loss: own, the loss of client k's aggregated model of the previous round.
        alpha: the factor below which a larger loss is retained.

    Returns:
        Masks of PC and RNC [K].
    """
    finite = losses.isfinite() & math.isfinite(initial_loss)
    helpful = finite & (losses < initial_loss)
    return helpful, finite & (initial_loss <= losses) & (losses < alpha * initial_loss)


def raw_weights(losses: Tensor, initial_loss: float, trained: Tensor, before: Tensor) -> Tensor:
    """Return w~_i = (own - Ltilde[i, k]) / ||Pd~_i - Pd_k||_2, Eq. (11).

    The distance is at least 1e-12; equal losses give 0.

    Args:
        losses: Ltilde[:, k] [K].
        initial_loss: see `neighbours`.
        trained: Pd~ [K, p].
        before: Pd_k of the previous round [p].
    """
    distances = torch.stack([(prompt - before).norm() for prompt in trained])
    return (initial_loss - losses) / distances.clamp_min(SMALLEST)


def harm_factor(raw: Tensor, helpful: Tensor, retained: Tensor, mode: GammaMode) -> Tensor:
    """Return gamma = 1/3 min_PC w~ / max_RNC w~, Eq. (14); gamma <= 0, so gamma w~ >= 0.

    Mode "bounded" returns -1/3 min_PC w~ / max_RNC |w~|, so that gamma w~ is at most
    min_PC w~ / 3. The result is 0 if the denominator is 0 ("literal": below 1e-12).

    Args:
        raw: w~ [K].
        helpful: mask of PC, not empty.
        retained: mask of RNC, not empty.
        mode: see `DP2FL.gamma_mode`.
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
    """Return the column W_d[:, k], Eq. (12).

    If PC is not empty: w~_i for PC and gamma w~_i for RNC, divided by their sum; the weights sum
    to 1. If PC is empty: beta (S - w~_i) / (S (|RNC| - 1)) for RNC, with S the sum of w~ over RNC;
    the weights sum to beta. A single retained client, or S = 0, gives beta / |RNC| each. DNC: 0.

    Args:
        raw: w~ [K].
        helpful: mask of PC [K].
        retained: mask of RNC [K].
        beta: length of the step if PC is empty.
        mode: see `DP2FL.gamma_mode`.
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
    """Return Pd_k + sum_i W_d[i, k] (Pd~_i - Pd_k), Eq. (9) element by element.

    Args:
        before: Pd_k of the previous round [p].
        trained: Pd~ [K, p].
        weights: W_d[:, k] [K].
    """
    return before + weighted_sum(weights, trained - before)
