"""Scale `printed`: a paper's own protocol, derived from the paper scale of a study.

Nothing is tuned: the experiments' fixed settings are the paper's. Nothing is held out, and the
rounds that are tested and the round that is chosen, often on the test, are the experiment's. Claims
go, and so do controls, unless the paper has numbers of them or the entry names them; a sweep keeps
its axis. The entry `printed` of a study's `scales` states only what differs from this rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedray.base.errors import UserError
from fedray.config import Tree
from fedray.results.design import PRINTED

PAPER = "paper"
SEEDS = (0, 1, 2)
"""Seeds at this scale: FedTSP, FedGLCL and FedMGP report the mean of three; DP2FL does not say."""
FOR_CHOICE = ("eval_every", "data.shots", "data.validation_fraction")
"""Keys by which a table holds images out and tests fewer rounds; the experiment's own count."""
LEFT_OUT = ("space", "tuned_as", "control", "of", "over")
"""Keys of a row that choose its configuration or make it a control."""


def can_be_printed(scales: Collection[str]) -> bool:
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
    study = {key: value for key, value in tree.items() if key not in ("claims", "report")}
    scale = {key: value for key, value in paper.items() if key not in ("report", "hours")}
    if tree.get("rows") is not None:
        study = {**study, "select": None, "space": {}, "tuning": {}}
        scale = {key: value for key, value in scale.items() if key not in ("space", "tuning")}
        numbers = _mapping(_mapping(tree.get("paper")).get("numbers"))
        controls = [
            name for name, row in _mapping(tree["rows"]).items() if _mapping(row).get("control")
        ]
        left = [name for name in controls if name not in {*numbers, *_mapping(own.get("rows"))}]
        study["rows"] = _fixed(_mapping(tree["rows"]), left)
        scale["rows"] = _fixed(_mapping(scale.get("rows")), left)
        study["glosses"] = _without(tree.get("glosses"), left)
    if {"columns", "curve"} & own.keys():
        study, scale = (_without(part, ("columns", "curve")) for part in (study, scale))
    study["validation_fraction"] = None
    study["report"] = {"seeds": list(SEEDS)}
    study["set"] = _without(study.get("set"), FOR_CHOICE)
    keys = {**_without(scale.get("set"), FOR_CHOICE), **_mapping(own.get("set"))}
    printed = {**scale, **own, "set": keys}
    if tree.get("rows") is not None:
        printed["rows"] = _merged(_mapping(scale.get("rows")), _mapping(own.get("rows")))
    return {**study, "scales": {PRINTED: printed}}


def _fixed(rows: Mapping[str, Any], left: Collection[str]) -> Tree:
    """Return the rows without those named in `left` and without what is searched."""
    return {
        name: _without(row, LEFT_OUT) if isinstance(row, Mapping) else row
        for name, row in _without(rows, left).items()
    }


def _without(tree: Any, keys: Collection[str]) -> Tree:
    return {key: value for key, value in _mapping(tree).items() if key not in keys}


def _merged(rows: Mapping[str, Any], own: Mapping[str, Any]) -> Tree:
    """Return the rows of the paper scale with the keys that `own` gives for the same rows."""
    merged = {**rows, **own}
    for name, row in own.items():
        if isinstance(row, Mapping) and isinstance(rows.get(name), Mapping):
            merged[name] = {**rows[name], **row}
    return merged


def _mapping(tree: Any) -> Mapping[str, Any]:
    return tree if isinstance(tree, Mapping) else {}
