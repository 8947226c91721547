"""pFedMoAP: clients mix their own prompt with other clients' prompts, by their own attention.

Luo, Chen, Wu, "Mixture of Experts Made Personalized: Federated Prompt Learning for Vision-Language
Models", ICLR 2025, arXiv:2410.10114. Official code: github.com/ljaiverson/pFedMoAP, commit
a481de35.

    mean of the participants' prompts, pool of all clients' prompts -> PFedMoAP.server_update
    nearest prompts of the pool as non-local experts -> nearest_prompts
    attention of reduced image features over the experts' text features -> ExpertClip.enhanced
    logits = lambda local + enhanced -> ExpertClip.forward

A client's first round has no experts. Every round begins with the mean prompt and the client's own
gating network; tests use the client's own prompt. `fedray cost` counts a first round, without
experts and gating network.

Deviations:
    - Experts are the nearest prompts, as in the paper. The released code always draws them at
      random, once; its branch for the nearest cannot run. Without more clients than experts, as in
      its script, both are the same.
    - In the released code, a client whose first round is a later one sees the experts of the client
      before it; later participants of a round see new prompts of earlier ones; and participants are
      tested with the experts of the round's start, not the newest.
    - One optimiser trains prompt and gating network; official code: learning rates of 0.002 and
      0.01.
    - By default, images are not cropped randomly; see promptfl.py.
    - Checked against the official code; the paper's text was not at hand.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.averaging.fedavg import OwnModel
from fedray.algorithms.prompts.prompt_averaging import ContextMethod, PromptAveraging
from fedray.base.errors import UserError
from fedray.config import LossWeight
from fedray.models import Classifier, ClassifierOutput, Inputs, undrawn_linear
from fedray.models.prompted import ContextClip


class ExpertClip(ContextClip):
    """A CLIP with a context, and an attention over the text features of this and other contexts."""

    def make_prompts(self, hparams: Any) -> None:
        super().make_prompts(hparams)
        whole, heads = self.clip.dim, hparams.heads
        width = min(hparams.gating_dim, whole)
        if whole % width or width % heads:
            raise UserError(
                f"algorithm.gating_dim={hparams.gating_dim} must divide the {whole} features of "
                f"model.clip, and algorithm.heads={heads} must divide {width}; change them"
            )
        self.stride = whole // width
        names_of_maps = ("query", "key", "value", "out")
        self.gating = nn.ModuleDict({n: undrawn_linear(width, width) for n in names_of_maps})
        self.set_experts(self.context[None][:0])

    def set_experts(self, contexts: Tensor) -> None:
        """Set the contexts of the non-local experts [E, m, d_t]; E may be 0."""
        self._contexts, self._encoded = contexts, dict[object, Tensor]()

    def expert_texts(self) -> Tensor:
        """Return unit text features of the non-local experts [E, K, d], without gradients."""
        key = (self.classes, torch.is_autocast_enabled(self._contexts.device.type))
        if key not in self._encoded:
            with torch.inference_mode(False), torch.no_grad():
                self._encoded[key] = self.texts_after(self._contexts)
        return self._encoded[key]

    def enhanced(self, image: Tensor, text: Tensor) -> Tensor:
        """Return each image's text features [B, K, g] from queries [B, g] and values [E, K, g]."""
        inputs = {"query": image, "key": text, "value": text}
        maps = (self.gating[name](x) for name, x in inputs.items())
        query, key, value = (x.unflatten(-1, (self.hparams.heads, -1)) for x in maps)
        scores = self.hparams.scaling * torch.einsum("bhd,ekhd->bkhe", query, key)
        mixed = torch.einsum("bkhe,ekhd->bkhd", torch.softmax(scores, dim=-1), value)
        features: Tensor = self.gating["out"](mixed.flatten(-2))
        return features

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Return the own context's logits; with experts, lambda times these plus the enhanced."""
        image, text = self.image_features(x), self.texts()
        logits = self.logits(image, text)
        if len(self._contexts):
            texts = torch.cat([text[None], self.expert_texts()])
            few = image[:, :: self.stride]
            with torch.autocast(image.device.type, enabled=False):
                enhanced = self.enhanced(few, texts[..., :: self.stride])
            mixed = self.logits(few[:, None], enhanced).squeeze(1)
            logits = float(self.hparams.lambda_) * logits + mixed
        return ClassifierOutput(image, logits)


@core.method("pfedmoap", "pFedMoAP", "Luo et al., ICLR 2025, arXiv:2410.10114")
class PFedMoAP(OwnModel, PromptAveraging, ContextMethod):
    """Clients mix their own prompt with other clients' prompts by their own attention."""

    clip_model = ExpertClip
    down: ClassVar[Any] = {
        "experts": core.sent(
            "prompts", "to other clients, a client's trained prompt (its classes)", "e m w"
        )
    }

    experts: int = Field(10, ge=1, le=1_000)
    """Number of experts, the client's own included. Official code: 10."""
    lambda_: LossWeight = 0.5
    """λ, weight of the own prompt's logits. Official code: 0.5."""
    gating_dim: int = Field(128, ge=1, le=65_536)
    """d_gating, width of the attention; at most that of the features. Official code: 128."""
    heads: int = Field(8, ge=1, le=1_024)
    """Heads of the attention. Official code: 8."""
    scaling: float = Field(10.0, gt=0, le=1e6)
    """Factor of the attention's scores. Official code: 10."""

    def shared(self, model: Classifier) -> Collection[str]:
        return {"context"}

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Send the mean prompt, and experts to clients that have trained."""
        pool = {int(client): prompt for client, prompt in state.get("pool", {}).items()}
        none, most = state["model"]["context"][None][:0], self.experts - 1
        found = {c: nearest_prompts(c, pool, most) if c in pool else none for c in clients}
        return {c: self.down(state["model"], experts) for c, experts in found.items()}

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Average the participants' prompts, and keep each in the pool."""
        new = {str(client): upload.model["context"] for client, upload in uplinks.items()}
        pool = {**state.get("pool", {}), **new}
        return {**super().server_update(state, uplinks, server), "pool": pool}

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the gating network, the own or else the mean prompt, and the experts."""
        local = super().begin(client, state, down)
        local.model.set_experts(down.experts)
        return local


def nearest_prompts(client: int, pool: Mapping[int, Tensor], most: int) -> Tensor:
    """Return the `most` prompts of other clients that are nearest to the client's [E, m, d_t]."""
    others = sorted((float((pool[k] - pool[client]).norm()), k) for k in pool if k != client)
    chosen = [client, *(k for _, k in others[:most])]
    return torch.stack([pool[k] for k in chosen])[1:]
