"""KgCoOp in federated form: PromptFL with a loss that holds text features near fixed ones.

Yao, Zhang, Xu, "Visual-Language Prompt Tuning with Knowledge-guided Context Optimization", CVPR
2023, arXiv:2303.13283. Official code: github.com/htyao89/KgCoOp, commit c43ccc32, which is not
federated. In federated form (FLiP, github.com/0-ml/flip, commit ec3a848b), clients train on this
loss and the server averages their contexts.

    L_kg, distance to the features of fixed texts -> knowledge
    L = L_ce + lambda L_kg -> KgCoOp.loss
    averaging of the context -> combined_rows, mean_of (core/sums.py)

Deviations:
    - The distance is 1 - cos, as in the official code. The paper has the squared Euclidean
      distance, which is twice as much for unit vectors: `lambda` there is half of `lambda` here.
    - All data sets have one fixed text, by default "a photo of a {}."; the official code has one
      per data set (`template`).
    - FLiP has lambda = 1 in its code.
    - By default, images are not cropped randomly; see promptfl.py.
    - Checked against the official code; the paper's text was not at hand.
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import ONE_NAME, ContextMethod, PromptAveraging
from fedray.config import LossWeight
from fedray.core import Batch, LocalContext, method
from fedray.models.prompted import PHOTO


@method("kgcoop", "KgCoOp", "Yao et al., CVPR 2023, arXiv:2303.13283")
class KgCoOp(PromptAveraging, ContextMethod):
    """FedAvg of one prompt context whose text features stay near those of fixed texts."""

    length: int = Field(4, ge=1, le=64)
    """m, tokens of the context. Official code: 4."""
    words: str | None = "a photo of a"
    """Words whose embeddings are the initial context; null: draw it from N(0, 0.02²). Official
    code: a photo of a."""
    lambda_: LossWeight = 8.0
    """λ, weight of the distance to the fixed texts; 0 gives PromptFL. Official scripts: 8."""
    template: str = Field(PHOTO, pattern=ONE_NAME)
    """The fixed text, with {} for the class name. Official code: one per data set, for example
    "a centered satellite photo of {}."."""

    def loss(self, output: Any, batch: Batch, local: LocalContext) -> Tensor:
        """Return the cross-entropy plus lambda times `knowledge`."""
        fixed = local.model.fixed_texts(self.template)
        return super().loss(output, batch, local) + self.lambda_ * knowledge(output.text, fixed)


def knowledge(text: Tensor, fixed: Tensor) -> Tensor:
    """Return L_kg, the mean over classes of 1 - cos of two unit text features [K, d]."""
    return 1 - (text * fixed).sum(-1).mean()
