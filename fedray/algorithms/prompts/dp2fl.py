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
from fedray.models import Classifier, Pixels
from fedray.models.prompted import DualPromptClip
from fedray.storage.metric import Metric

GammaMode = Literal["bounded", "literal", "zero"]

SMALLEST = 1e-12
BATCH = 100
"""The number of validation images per forward pass."""
NONE: Mapping[str, Any] = {"images": {}, "labels": {}}
"""No validation images; else both tensors of every owner, by its id."""


# --- equations -----------------------------------------------------------------------------------
#
# Their arguments, for K clients and one client k: losses, Ltilde[:, k], of all clients' models on
# V_k [K], or Ltilde [K, number of validation sets]; initial_loss, own, the loss of client k's
# aggregated model of the previous round; trained, Pd~ [K, p]; before, Pd_k of the previous round
# [p]; raw, w~ [K]; helpful and retained, the masks of PC and RNC [K]; alpha, beta, mode of `DP2FL`.


def task_weights(losses: Tensor) -> Tensor:
    """Return W_T, w_k = (S - R_k) / (S (K - 1)), Eq. (5); R_k = sum_j Ltilde[k, j], S = sum R_k.

    A single client has weight 1. If S = 0, weights are equal. A client that lacks a loss (NaN) has
    weight 0 and is not counted in K; if this excludes all clients, weights are equal.
    """
    rows = losses.sum(1)
    counted = rows.isfinite()
    if not counted.any():
        counted, rows = torch.ones_like(counted), torch.zeros_like(rows)
    weights = torch.zeros_like(rows)
    weights[counted] = complements(rows[counted], 1.0)
    return weights


def neighbours(losses: Tensor, initial_loss: float, alpha: float) -> tuple[Tensor, Tensor]:
    """Return masks [K] of the clients whose models are PC, Eq. (6), and RNC, Eq. (7), on V_k.

    PC: loss < own. RNC: own <= loss < alpha own. DNC, Eq. (8): all others, and those without a
    loss (NaN).
    """
    return losses < initial_loss, (initial_loss <= losses) & (losses < alpha * initial_loss)


def raw_weights(losses: Tensor, initial_loss: float, trained: Tensor, before: Tensor) -> Tensor:
    """Return w~_i = (own - Ltilde[i, k]) / ||Pd~_i - Pd_k||_2, Eq. (11).

    The distance is at least 1e-12; equal losses give 0.
    """
    distances = torch.stack([(prompt - before).norm() for prompt in trained])
    return (initial_loss - losses) / distances.clamp_min(SMALLEST)


def harm_factor(raw: Tensor, helpful: Tensor, retained: Tensor, mode: GammaMode) -> Tensor:
    """Return gamma = 1/3 min_PC w~ / max_RNC w~, Eq. (14); gamma <= 0, so gamma w~ >= 0.

    Mode "bounded" returns -1/3 min_PC w~ / max_RNC |w~|, so that gamma w~ is at most
    min_PC w~ / 3. The result is 0 if the denominator is 0 ("literal": below 1e-12).
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
    """
    weights = torch.zeros_like(raw)
    if helpful.any():
        weights[helpful] = raw[helpful]
        if retained.any():
            weights[retained] = harm_factor(raw, helpful, retained, mode) * raw[retained]
        return weights / weights.sum()
    if retained.any():
        weights[retained] = complements(raw[retained], beta)
    return weights


def complements(values: Tensor, whole: float) -> Tensor:
    """Return whole (S - v_i) / (S (n - 1)) [n], S = sum v; whole / n each if n = 1 or S = 0."""
    count, total = len(values), values.sum()
    if count == 1 or total == 0:
        return torch.full_like(values, whole / count)
    return whole * (total - values) / (total * (count - 1))


def moved(before: Tensor, trained: Tensor, weights: Tensor) -> Tensor:
    """Return Pd_k + sum_i W_d[i, k] (Pd~_i - Pd_k), Eq. (9) element by element."""
    return before + weighted_sum(weights, trained - before)


def own_images(client: core.Client) -> tuple[Tensor, Tensor]:
    """Return V_k, uint8 images and labels, on the client's device."""
    return cast(core.Samples, client.validation).tensors(client.device)


def joint(known: Mapping[str, Any], received: Mapping[str, Any]) -> dict[str, Any]:
    """Return the images and labels of both, by owner; those received replace others."""
    return {name: {**known[name], **received[name]} for name in NONE}


@torch.no_grad()
def mean_loss(model: Classifier, images: Tensor, labels: Tensor) -> float:
    """Return the mean cross-entropy over uint8 validation images, with all classes."""
    model.eval()
    parts = zip(torch.split(images, BATCH), torch.split(labels, BATCH), strict=True)
    losses = [F.cross_entropy(model(Pixels.of(x)).logits, y, reduction="none") for x, y in parts]
    return float(torch.cat(losses).mean())


# --- the method ----------------------------------------------------------------------------------


@core.method("dp2fl", "DP2FL", "arXiv:2504.16357")
class DP2FL(CoupledPrompts, core.LocalTraining):
    """An averaged task prompt, and a data prompt per client, mixed from those of helpful clients.

    The server's state: `task` PT [t] and `data` PD [p]; `first_task`, PT^(0); `personal`, every
    Pd_k [N, p]; `joined`, the mask of clients that have taken part [N]; `relations`, the numbers of
    PC, RNC and DNC pairs in the round [3]; `validation`, the images and labels of V_k by the
    owner's id, also in a client's memory; `version`, the last round in which images arrived, which
    is the version of the gift.
    """

    version = 2  # asks all clients for validation images, not only those that take part
    requires = core.Requires(prompts=True, head=False, validation=True)
    down: ClassVar[Any] = {
        "task": core.sent("prompts", "the mean task prompt", axes="t"),
        "data": core.sent(
            "prompts", "a mixture of the data prompts of clients whose images are alike", axes="p"
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
    analysis_metrics: ClassVar = tuple(
        Metric(f"share_{relation}", "share", None, None)
        for relation in ("helpful", "retained", "dropped")
    )
    evaluation_only: ClassVar[tuple[str, ...]] = ("union_test",)

    alpha: float = Field(1.2, ge=1, le=1e6)
    """α, the factor below which a client that raises the loss is retained; 1: FedFomo's rule."""
    beta: float = Field(0.2, ge=0, le=1)
    """β, length of the step towards the retained clients if no client is helpful; 0: no step."""
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
        model, clients = cast(DualPromptClip, server.model), self.setting.clients
        task, data = model.split_parameters(server.initial(server.architecture))
        joined = torch.tensor([client in server.joined for client in range(clients)])
        return {
            "task": task,
            "data": data,
            "first_task": task,
            "personal": data.repeat(clients, 1),
            "joined": joined,
            "relations": torch.zeros(3, dtype=torch.int64),
            "validation": NONE,
            "version": torch.tensor(-1),
        }

    def give(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Collect the validation images that the server lacks, and send them to everyone."""
        now, version = exchange.server.round, int(state["version"])
        is_stale = now in self.setting.phases and version < now  # the images V_k have changed
        known = NONE if is_stale else state["validation"]
        unknown = [k for k in exchange.everyone if str(k) not in known["images"]]
        offers = exchange.call("offer_validation", dict.fromkeys(unknown)) if unknown else {}
        received = {name: {str(k): vars(v)[name] for k, v in offers.items()} for name in NONE}
        validation, gift = joint(known, received), self.receive_validation.down
        down = dict.fromkeys(exchange.everyone, gift(**validation))
        if offers:
            held = core.held_versions(state, "receive_validation", self.setting) == version
            down |= dict.fromkeys([k for k in exchange.everyone if held[k]], gift(**received))
            version = now
        state = {**state, "validation": validation, "version": torch.tensor(version)}
        return exchange.give(state, "receive_validation", down, version=version)

    def _measured(self, state: core.ServerState) -> Tensor:
        """Return the mask of pairs (i, k) in which client i has a loss on the server's V_k [N, N].

        A client that missed the last images has a loss on its own alone.
        """
        held = core.held_versions(state, "receive_validation", self.setting)
        is_latest, own = held == int(state["version"]), torch.eye(len(held), dtype=torch.bool)
        return is_latest.unsqueeze(1) & self._owners(state) | own

    def _owners(self, state: core.ServerState) -> Tensor:
        """Return the mask of the clients whose validation images the server has [N]."""
        clients = range(self.setting.clients)
        return torch.tensor([str(k) in state["validation"]["images"] for k in clients])

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Send PT and each client's Pd_k, and to new clients the prompts chosen by `newcomer`."""
        return {client: self.down(*self._initial_prompts(state, client)) for client in clients}

    def _initial_prompts(self, state: core.ServerState, client: int) -> tuple[Tensor, Tensor]:
        """Return the prompts from which a client's training starts."""
        newcomer = "" if state["joined"][client] else self.newcomer
        task = state["first_task"] if newcomer == "init" else state["task"]
        return task, state["data"] if newcomer == "global" else state["personal"][client]

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Return PT and PD, Eqs. (4) and (5), and the Pd_k of clients that replied, Eq. (9)."""
        tasks, trained, losses = (
            torch.stack([vars(upload)[name] for upload in uplinks.values()]).double()
            for name in ("task", "data", "losses")
        )
        losses = losses.masked_fill(~self._measured(state)[list(uplinks)], torch.nan)
        personal, joined = state["personal"].clone(), state["joined"].clone()
        relations = torch.zeros_like(state["relations"])
        for client, upload in uplinks.items():
            before, column = self._initial_prompts(state, client)[1].double(), losses[:, client]
            helpful, retained = neighbours(column, upload.initial_loss, self.alpha)
            raw = raw_weights(column, upload.initial_loss, trained, before)
            mixing = data_weights(raw, helpful, retained, self.beta, self.gamma_mode)
            personal[client] = moved(before, trained, mixing)
            sides = helpful, retained, ~(helpful | retained)
            relations += torch.stack([side.sum() for side in sides])
        joined[list(uplinks)] = True
        weights = task_weights(losses[:, self._owners(state)])
        task, data = (weighted_sum(weights, part).float() for part in (tasks, trained))
        new = {"personal": personal, "joined": joined, "relations": relations}
        return {"task": task, "data": data, **new}

    def init_client(self, client: core.Client) -> core.ClientState:
        return core.ClientState({}, {"validation": NONE})

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
        return dict(zip(NONE, own_images(client), strict=True)), state

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
        validation = joint(state.memory["validation"], vars(down))
        return None, core.ClientState(state.model, {"validation": validation})

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        model = cast(DualPromptClip, client.skeleton.model)
        weights = model.merge_parameters(down.task, down.data)
        return core.LocalContext(client, client.load(weights), state, down)

    def client_update(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[Any, core.ClientState]:
        """Measure the initial loss, train, and measure the loss on every V_i in the memory."""
        local, own = self.begin(client, state, down), own_images(client)
        initial_loss = mean_loss(local.model, *own)
        trained, held = self.train(local), state.memory["validation"]
        sets = {int(k): (images, held["labels"][k]) for k, images in held["images"].items()}
        losses = torch.zeros(self.setting.clients)
        for owner, (images, labels) in {**sets, client.id: own}.items():
            losses[owner] = mean_loss(local.model, images, labels)
        task, data = local.model.split_parameters(trained.tensors)
        up = {"task": task, "data": data, "losses": losses, "initial_loss": initial_loss}
        return up, state

    # --- analyses --------------------------------------------------------------------------------

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
        relations = state["relations"].double()
        if not relations.any():
            return Analysis()
        names = [metric.name for metric in self.analysis_metrics]
        return Analysis(dict(zip(names, (relations / relations.sum()).tolist(), strict=True)))
