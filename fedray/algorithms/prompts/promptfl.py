"""PromptFL: FedAvg of one context in front of the class names, around a frozen CLIP.

Guo et al., "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models",
IEEE Transactions on Mobile Computing 2023, arXiv:2208.11625. Prompts as in CoOp (Zhou et al., IJCV
2022): "X X ... X {class}.", with m trained vectors in place of the X.

    text features g(p, k) -> ContextClip.text_features  (models/prompted/context.py)
    averaging of p -> combined_rows, mean_of (core/sums.py)

Deviations:
    - By default, training images are not cropped randomly but prepared like test images, so that
      the output of the frozen vision tower is computed once. With `data.augment=resized_crop`, as
      in the experiments at paper scale, the tower computes every crop in every epoch.
    - Every client starts a round from the mean. In FedMGP's comparison, clients that did not take
      part in the previous round start from an older mean.
    - Clients train on the last incomplete batch; the official loaders of FedOTP, FedPGP,
      PromptFolio and FedMGP omit it (`drop_last=true`).
"""

from fedray.algorithms.prompts.prompt_averaging import ContextMethod, PromptAveraging
from fedray.core import method


@method("promptfl", "PromptFL", "Guo et al., IEEE TMC 2023, arXiv:2208.11625")
class PromptFL(PromptAveraging, ContextMethod):
    """FedAvg of one prompt context."""
