"""Compare classes once by what an encoder makes of their texts: equal ones cannot be learned."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.base.errors import UserError
from fedray.language.encoders import Tokens

_log = logging.getLogger(__name__)

_ROUNDING = 1e-5
"""Distance of unit vectors up to which they count as equal; batches change rounding by 1e-6."""

Pair = tuple[int, int]


def equal_vectors(vectors: Tensor) -> Pair | None:
    """Return the first two classes whose vectors [C, d] have the same direction; None if none."""
    unit = F.normalize(vectors.detach().float().cpu(), dim=1)
    exact = "donot_use_mm_for_euclid_dist"  # a matrix product would round too much
    near = torch.cdist(unit, unit, compute_mode=exact) < _ROUNDING
    pairs: list[list[int]] = near.triu(1).nonzero().tolist()
    return (pairs[0][0], pairs[0][1]) if pairs else None


def equal_tokens(tokens: Tokens, k: int = 1) -> Pair | None:
    """Return the first two classes whose k texts have the same tokens; None if there are none."""
    rows = torch.where(tokens.mask, tokens.ids, -1).reshape(len(tokens) // k, -1).cpu().numpy()
    first: dict[bytes, int] = {}
    for label, row in enumerate(rows):
        other = first.setdefault(row.tobytes(), label)
        if other != label:
            return other, label
    return None


def refuse_equal(
    pair: Pair | None, texts: Sequence[str], encoder: str, remedy: str, *, insists: bool = False
) -> None:
    """Raise a UserError about two classes that an encoder cannot tell apart; None for no pair.

    Args:
        pair: the classes.
        texts: the first text of every class.
        encoder: the beginning of the message.
        remedy: the end of the message.
        insists: whether the user gave these names on purpose; then only warn.
    """
    if pair is None:
        return
    one, other = (texts[label] for label in pair)
    same = f"both have the text '{one}'" if one == other else f"'{one}' and '{other}' are the same"
    message = f"{encoder} cannot distinguish the classes {pair[0]} and {pair[1]}: {same} to it"
    if not insists:
        raise UserError(f"{message}; {remedy}")
    _log.warning("%s", message)
