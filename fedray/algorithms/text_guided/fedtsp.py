"""FedTSP: image features align with text prototypes from a language model on the server.

Wu et al., "Textual-semantics-powered prototypes for heterogeneous federated learning", CVPR 2026,
arXiv:2503.13543 (numbering of the arXiv version).

    Eq. (2) -> FedTSP.loss
    Eq. (3) -> TextStyle.texts          (language/styles.py)
    Eq. (4) -> insert_prompts           (language/prototypes.py)
    Eq. (5) -> local_prototypes         (prototypes/class_prototypes.py)
    Eq. (6) -> by_class, class_average (mean.py)
    Eq. (7) -> server_loss
    Eq. (8) -> semantic_prototype_loss

Deviations:
    - Eq. (6) uses the weights n_{i,c}/n_c. The printed second division by the number of clients
      that hold the class only rescales prototypes, and Eq. (7) depends on cosines alone.
    - The paper states no value of τ. The default 0.01 is the initial value in the official code,
      which trains τ (`learn_tau=true`). The official code computes 1/τ = exp(4.6052) = 100.003,
      which is 100 here. With λ/τ = 700, this difference changes all weights after round 1.
    - Prototypes are means over all training images of a client, also with `preset=official_code`;
      the official loader omits the last incomplete batch.
    - Rows and columns of Eq. (7) are restricted to classes with uploads; the paper does not discuss
      classes without uploads.
    - The width of features is that of the text encoder; paper and code have no projection.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray import core
from fedray.algorithms.losses import cosine_matrix
from fedray.algorithms.mean import ClassWeights, class_average
from fedray.algorithms.prototypes.class_prototypes import PrototypeSharing, local_prototypes
from fedray.algorithms.server_training import train_on_server
from fedray.config import Tree
from fedray.core import Client, ClientState, Downlinks, Server, ServerState, StepResult, Total
from fedray.evaluation.protocols import Analysis, Metric
from fedray.evaluation.similarity import matrix_agreement, retrieval_top1
from fedray.language.prototypes import initial_prompts

FEW = 10  # the most classes for which the paper takes m = 1 and E_s = 1 (supplementary C.4)


def semantic_prototype_loss(features: Tensor, labels: Tensor, text: Tensor, tau: float) -> Tensor:
    """Return R, the cross-entropy of cosines with the texts of all C classes over τ, Eq. (8)."""
    return F.cross_entropy(cosine_matrix(features, text) / tau, labels)


def normalised_l2_loss(features: Tensor, labels: Tensor, text: Tensor, tau: float = 1) -> Tensor:
    """Return FedTSP+L2's mean squared distance of unit features and texts (supplementary F)."""
    normal = F.normalize(features.float(), dim=1, eps=1e-8)
    return F.mse_loss(normal, F.normalize(text.float(), dim=1, eps=1e-8)[labels])


def server_loss(text: Tensor, image: Tensor, log_scale: Tensor, direction: str) -> Tensor:
    """Return L_S, the contrastive loss of the present classes' texts and images [c, d], Eq. (7).

    `log_scale` is ln(1/τ). "t2i" has one row per text and a denominator over images (paper), "i2t"
    one row per image and a denominator over texts (official code).
    """
    logits = cosine_matrix(text, image) * log_scale.exp()
    diagonal = torch.arange(len(text), device=text.device)
    return F.cross_entropy(logits if direction == "t2i" else logits.T, diagonal)


@core.method("fedtsp", "FedTSP", "Wu et al., CVPR 2026, arXiv:2503.13543")
class FedTSP(PrototypeSharing):
    """Alignment of image features with text prototypes of a frozen language model on the server."""

    requires = core.Requires(text=True)
    down = {
        "vectors": core.sent("prototypes", "texts trained towards the clients' class means", "C d"),
        "tau": core.sent("statistics", number=float),
    }

    lambda_: core.LossWeight = 7.0
    """λ, weight of the alignment in Eq. (2); 0: no alignment. Paper: 7, varied from 1 to 10."""
    tau: core.Temperature = 0.01
    """τ, temperature of Eqs. (7) and (8). Initial value of the official code."""
    learn_tau: StrictBool = False
    """Whether 1/τ is trained together with the prompts (official code)."""
    prompt_length: int | None = Field(None, ge=0, le=512)
    """m of Eq. (4), context tokens per class; 0 freezes the text. null: the paper's, 1 up to 10
    classes and 10 for more, but 1 if a text is shorter."""
    server_epochs: int | None = Field(None, ge=0, le=10_000)
    """E_s, steps of the prompts per round. null: the paper's, 1 up to 10 classes, 20 for more."""
    prompt_lr: core.LearningRate = 0.01
    """Learning rate of the prompts' SGD. Official code: 0.01."""
    past_text: StrictBool = False
    """Whether prompts may replace end token and padding of a shorter text (official code)."""
    proto_agg: ClassWeights = "weighted"
    """Mean of a class in Eq. (6): weighted, by samples (paper), or uniform (official code)."""
    server_dir: Literal["t2i", "i2t"] = "t2i"
    """Direction of Eq. (7): t2i, each text against all images (paper), or i2t (official code)."""
    init_order: Literal["paper", "code"] = "paper"
    """First step: paper, prompts train on untrained models' prototypes, or code, clients train."""
    align: Literal["cosine", "l2"] = "cosine"
    """Alignment loss: cosine, Eq. (8), or l2, normalised vectors (FedTSP+L2, supplementary F)."""

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, Tree]:
        """Return `official_code`, the authors' settings, and `paper`, the printed equations."""
        switches = {"past_text": True, "server_dir": "i2t", "learn_tau": True, "init_order": "code"}
        official = {f"algorithm.{name}": value for name, value in switches.items()}
        official |= {"algorithm.proto_agg": "uniform", "shuffle": False, "drop_last": True}
        if experiment.get("text", {}).get("encoder", {}).get("name") == "bert":
            official["text.encoder.bert_compat"] = True
        return {"official_code": official, "paper": {}}

    def switched_off(self) -> Mapping[str, str]:
        off = ["server_epochs", "past_text"] if self.prompt_length == 0 else []
        is_off = self.prompt_length == 0 or self.server_epochs == 0
        off += ["prompt_lr", "server_dir", "learn_tau", "init_order"] * is_off
        return dict.fromkeys(off, "no prompts are trained")

    @property
    def steps(self) -> int:
        """E_s; 0 without prompts."""
        papers = 1 if self.setting.num_classes <= FEW else 20
        steps = papers if self.server_epochs is None else self.server_epochs
        return 0 if self.prompt_length == 0 else steps

    def texts(self, prompts: Tensor, server: Server, classes: Tensor | None = None) -> Tensor:
        """Return unnormalised text prototypes [c, d] under prompts [C, m, d'], Eq. (4)."""
        return server.tower.prototypes(prompts.to(server.device), self.past_text, classes)

    def init_server(self, server: Server) -> ServerState:
        """Return prompts v ~ N(0, 0.02²) [C, m, d'], the scale 1/τ, and the text prototypes."""
        tower, classes, m = server.tower, self.setting.num_classes, self.prompt_length
        if m is None:
            m = 10 if classes > FEW and (self.past_text or tower.shortest_text >= 10) else 1
        state, absent = {"log_scale": -torch.tensor(self.tau).log()}, torch.zeros(classes).bool()
        if m > 0:
            random = server.streams.torch("prompts")
            state["prompts"] = initial_prompts(classes, m, tower.token_width, random)
        text = self.texts(state["prompts"], server) if m else tower.frozen_prototypes()
        server.check_width(text)
        state |= dict.fromkeys(("vectors", "first", "sent"), text.cpu())
        return {**super().init_server(server), **state, "present": absent, "loss": torch.zeros(())}

    def prepare(self, state: ServerState, exchange: core.Exchange) -> ServerState:
        """Train the prompts on the prototypes of untrained models (Algorithm 1)."""
        if self.init_order == "code" or not self.steps:
            return state
        down = core.payload_of(self.untrained_prototypes.down, state)
        total = exchange.total("untrained_prototypes", dict.fromkeys(exchange.everyone, down))
        return self.server_step(state, total, exchange.server) if total else state

    @core.step(up=PrototypeSharing.up)
    def untrained_prototypes(self, client: Client, state: ClientState, down: Any) -> StepResult:
        """Upload the prototypes of the untrained model."""
        return local_prototypes(client, self.begin(client, state, down).model), state

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        tau = float(torch.exp(-state["log_scale"]))
        return super().downlink({**state, "tau": tau}, clients, server)

    def loss(
        self, output: core.ClassifierOutput, batch: core.Batch, local: core.LocalContext
    ) -> Tensor:
        """Return the cross-entropy plus λ R, Eq. (2)."""
        loss, (text, tau) = super().loss(output, batch, local), (local.down.vectors, local.down.tau)
        align = normalised_l2_loss if self.align == "l2" else semantic_prototype_loss
        return loss + self.lambda_ * align(output.features, batch.labels, text, tau)

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Average by Eq. (6), take E_s steps on Eq. (7), and update the texts with uploads."""
        image, present = class_average(total["vectors"])
        after = {**super().server_step(state, total, server), "image": image, "present": present}
        after["sent"] = state["vectors"]
        if not self.steps:
            return after
        targets, log_scale = (t.to(server.device) for t in (image[present], state["log_scale"]))
        classes = None if present.all() else present.nonzero().squeeze(1).to(server.device)

        def loss(trained: core.Tensors, _: int) -> Tensor:
            text = self.texts(trained["prompts"], server, classes)
            return server_loss(text, targets, trained.get("log_scale", log_scale), self.server_dir)

        initial = {name: state[name] for name in ("prompts", *["log_scale"] * self.learn_tau)}
        trained, value = train_on_server(server, initial, loss, range(self.steps), self.prompt_lr)
        text = self.texts(trained["prompts"], server, classes).cpu()
        vectors = state["vectors"].index_copy(0, present.nonzero().squeeze(1), text)
        return {**after, **trained, "loss": value, "vectors": vectors}

    analysis_metrics: ClassVar[Sequence[Metric]] = (
        Metric("tau", "number", None, None),
        Metric("retrieval_top1", on="train"),
        Metric("server_loss", "nats", "min", "train"),
        Metric("agreement_{coefficient}", "correlation", None, None),
    )

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        """Return τ, the server loss, retrieval (supplementary I.2), agreement (I.1) and cosines."""
        now, first = (cosine_matrix(state[name], state[name]) for name in ("vectors", "first"))
        metrics, present = {"tau": float(torch.exp(-state["log_scale"]))}, state["present"]
        if present.any():
            cosines = cosine_matrix(state["sent"][present], state["image"][present])
            metrics["retrieval_top1"] = retrieval_top1(cosines)
            metrics["server_loss"] = float(state["loss"])
        if len(now) > 2:
            names = ("agreement_pearson", "agreement_spearman")
            metrics |= zip(names, matrix_agreement(first, now), strict=True)
        untrained = {"text_similarity_untrained": first} if server.round == 0 else {}
        return Analysis(metrics, {"text_similarity": now, **untrained})
