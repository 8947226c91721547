"""FedGLCL: one image encoder, trained contrastively with frozen text embeddings of the classes.

Yan et al., "On the Importance of Language-driven Representation Learning for Heterogeneous
Federated Learning", ICLR 2025.

    Eq. (6) -> cosine_matrix  (losses.py)
    Eq. (7) -> text_contrast

The text embeddings T are sent once, before the first round; the model has no classifier. In
FedGLCL-L (`fedglcl_l`, Table 4) the clients also train the text encoder. With a U-Net every pixel
is a sample: its V features are aligned with T, and the loss is the mean over pixels (Table 19).

Deviations:
    - The denominator of Eq. (7) includes the positive, as in the official code and in the paper's
      theory (InfoNCE); the printed equation excludes it (`denominator=negatives`). Both losses
      decrease together, since l_CE = softplus(l_7).
    - The width V of the text embeddings is that of the encoder, and `model.feature_dim` must equal
      it. The paper's "Bert-base" of width 640 is ALIGN's text tower in the official code.
    - Clients have the weight n_k/n, as in Eq. (1); the official code gives each of Office's four
      domains a quarter (`weights=uniform`).
    - A class is described by "a photo of a {class}", as in the official code (`text.style=plain`);
      the paper also prints "a photo of {class}".
    - FedGLCL-L: the paper does not state which part of the text encoder is trained, its initial
      weights and its learning rate. Here training starts from the pre-trained encoder, with the
      model's optimiser and without dropout, so that FedGLCL-L equals FedGLCL before round 1.
      `blocks` selects the trained part: all blocks (the default, Sec. 5.5), the last blocks, or (0)
      no block but an additional linear layer from V to V, which starts as the identity. Layers
      below the trained part stay frozen and are computed once.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import ExtraParameters, FedAvg
from fedray.algorithms.losses import cosine_matrix
from fedray.core import Batch, ClassifierOutput, LocalContext, Server, ServerState
from fedray.language.trainable import class_embeddings

Denominator = Literal["all", "negatives"]
Blocks = Annotated[int, Field(ge=0, le=1000)] | Literal["all"]
WEIGHT, BIAS = "text_projection.weight", "text_projection.bias"
OF_NAMES = "nothing about clients: embeddings of the classes' names"


def text_contrast(delta: Tensor, labels: Tensor, tau: float, denominator: Denominator) -> Tensor:
    """Return the batch mean of -log(e^{delta_y/tau} / sum_j e^{delta_j/tau}), Eq. (7).

    `delta` are cosines [B, C]. The denominator "all" sums over every class; "negatives" over
    j != y, so that the result may be negative.
    """
    logits = delta / tau
    if denominator == "all":
        return F.cross_entropy(logits, labels)
    target = F.one_hot(labels, logits.shape[1]).bool()
    log_sum = torch.logsumexp(logits.masked_fill(target, -torch.inf), dim=1)
    return (log_sum - logits[target]).mean()


@core.method("fedglcl", "FedGLCL", "Yan et al., ICLR 2025")
class FedGLCL(FedAvg):
    """FedAvg of image encoders that are trained contrastively with text embeddings."""

    one_model = True
    requires = core.Requires(text=True, head=False)
    keep_text: ClassVar = core.gift(text=core.sent("text_embeddings", OF_NAMES, "C d"))
    """T, the classes' text embeddings of unit length [C, V]."""

    tau: core.Temperature = 0.07
    """τ, temperature of Eq. (7). Paper: 0.07; Fig. 4 varies it from 0.01 to 1."""
    denominator: Denominator = "all"
    """Classes in the denominator of Eq. (7): all (official code), or negatives alone (printed)."""

    def init_server(self, server: Server) -> ServerState:
        text = server.tower.frozen_prototypes(of_unit_length=True)
        server.check_width(text)
        return {**super().init_server(server), "text": text}

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the contrast of images with texts, Eq. (7)."""
        return text_contrast(self.predict(output, local), batch.labels, self.tau, self.denominator)

    def predict(self, output: ClassifierOutput, local: LocalContext) -> Tensor:
        """Return the cosines with all text embeddings as logits, Eq. (6)."""
        return cosine_matrix(output.features, self.text(local))

    def text(self, local: LocalContext) -> Any:
        """Return the client's current T [C, V]."""
        return local.state.memory["text"]


@core.method("fedglcl_l", "FedGLCL-L", FedGLCL.paper)
class FedGLCLTrainedText(FedGLCL, ExtraParameters):
    """FedGLCL-L: clients also train the text encoder or its last layers (FedGLCL Table 4).

    Cost: a block of BERT-base has 7.1 million parameters, which are 28 MB of upload and of download
    for every client and round. The whole tower has 86 million (340 MB), without the embeddings of
    tokens that no text contains. Every batch passes the texts of all classes forward and backward
    through the trained part.
    """

    version = 2  # the form of the server's state
    one_model = True
    stacks = False  # transformers' BERT does not run under vmap
    requires = core.Requires(text=True, head=False)
    keep_inputs: ClassVar = core.gift(
        hidden=core.sent("text_embeddings", OF_NAMES, "texts tokens w"),
        words=core.sent("statistics", "", "texts tokens", dtype=torch.int64),
        mask=core.sent("statistics", "", "texts tokens", dtype=torch.bool),
        shape=core.sent("statistics", "", "numbers", dtype=torch.float64),
    )
    """Inputs of the trained blocks of the text encoder: outputs of the blocks below, or tokens."""

    blocks: Blocks = "all"
    """Number of last blocks of the text encoder that are trained, with its projection if it has
    one; all includes the embeddings. 0 trains a linear layer on top of the encoder. Encoders:
    minilm, bert, align."""

    def extra_parameters(self) -> dict[str, Tensor]:
        """Return the additional linear layer, weight [V, V] and bias [V], as the identity."""
        width = self.setting.feature_dim
        return {WEIGHT: torch.eye(width), BIAS: torch.zeros(width)}

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights, including those of the trained part of the text encoder."""
        state = super().init_server(server)
        if self.blocks == 0:
            return state
        tower = server.tower.trainable(None if self.blocks == "all" else self.blocks)
        start, mask, is_whole = tower.start, tower.mask, tower.start.dim() == 2
        inputs = {  # `start` holds tokens, or outputs of the blocks below
            "hidden": torch.zeros(*mask.shape, 1) if is_whole else start,
            "words": start if is_whole else torch.zeros_like(mask).long(),
            "mask": mask,
            "shape": tower.shape,
        }
        return {**state, **inputs, "extra": dict(tower.tensors)}

    def text(self, local: LocalContext) -> Tensor:
        """Return T [C, V], computed by the trained part for every batch."""
        memory, extra = local.state.memory, local.extra
        if self.blocks == 0:
            return F.linear(super().text(local), extra[WEIGHT], extra[BIAS])
        start = memory["hidden" if memory["hidden"].shape[2] > 1 else "words"]
        return class_embeddings(extra, start, memory["mask"], memory["shape"])
