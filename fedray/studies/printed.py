"""Scale `printed`: a paper's own protocol, derived from the paper scale of a study.

Nothing is tuned: the experiments' fixed settings are the paper's. Nothing is held out and the round
is chosen as the experiment says, often on the test. Claims go, and controls for which the paper has
no number; a sweep keeps its axis. The entry `printed` of a study's `scales` states only what
differs from this rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from fedray.config import Tree
from fedray.errors import UserError

PRINTED, PAPER = "printed", "paper"
SEEDS = (0, 1, 2)
"""Seeds at this scale: FedTSP, FedGLCL and FedMGP report the mean of three; DP2FL does not say."""
LEFT_OUT = ("space", "tuned_as", "control", "of", "over")
"""Keys of a row that choose its configuration, or that make it a control."""


def can_be_printed(scales: Mapping[str, Any]) -> bool:
    """Return True if a study with these scales has a scale `printed`."""
    return PAPER in scales


def as_printed(tree: Tree, where: str) -> Tree:
    """Return a study's file with `printed` as its only scale.

    Args:
        tree: the file.
        where: the study, for messages.

    Raises:
        UserError: if the study has no paper scale.
    """
    scales = tree.get("scales") or {}
    if not can_be_printed(scales):
        raise UserError(
            f"{where} has no printed scale, because it has no paper scale; its scales are "
            f"{', '.join(scales) or 'laptop'}"
        )
    paper, own = _mapping(scales[PAPER]), _mapping(scales.get(PRINTED))
    study = {key: value for key, value in tree.items() if key not in ("claims", "test", "report")}
    scale = {key: value for key, value in paper.items() if key not in ("report", "hours")}
    if tree.get("rows") is not None:
        study = {**study, "select": None, "space": {}, "tuning": {}}
        scale = {key: value for key, value in scale.items() if key not in ("space", "tuning")}
        has_number = _mapping(_mapping(tree.get("paper")).get("numbers"))
        left = {
            name
            for name, row in tree["rows"].items()
            if _mapping(row).get("control") and name not in has_number
        }
        study["rows"] = _fixed(tree["rows"], left)
        study["glosses"] = _fixed(_mapping(tree.get("glosses")), left)
        scale["rows"] = _fixed(_mapping(scale.get("rows")), left)
    study["validation_fraction"] = None
    study["report"] = {"seeds": list(SEEDS)}
    both = {
        key: {**_mapping(scale.get(key)), **_mapping(own.get(key))}
        for key in ("set", "rows")
        if key in scale or key in own
    }
    return {**study, "scales": {PRINTED: {**scale, **own, **both}}}


def _fixed(rows: Mapping[str, Any], left: Set[str]) -> Tree:
    """Return entries by row without those of `left`, and rows without what tunes or controls."""
    return {
        name: {key: value for key, value in row.items() if key not in LEFT_OUT}
        if isinstance(row, Mapping)
        else row
        for name, row in rows.items()
        if name not in left
    }


def _mapping(tree: Any) -> Mapping[str, Any]:
    return tree if isinstance(tree, Mapping) else {}
