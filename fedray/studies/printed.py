"""Scale `printed`: a paper's own protocol, derived from the paper scale of a study.

Nothing is tuned: the experiments' fixed settings are the paper's. Nothing is held out, and the
rounds that are tested and the round that is chosen, often on the test, are the experiment's. Claims
go, and so do controls, unless the paper has numbers of them or the entry names them; a sweep keeps
its axis. The entry `printed` of a study's `scales` states only what differs from this rule.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fedray.base.errors import UserError
from fedray.config import Tree
from fedray.results.design import PRINTED

PAPER = "paper"
SEEDS = {"fedtsp": (0, 1, 2)}
"""Seeds of papers that report a mean. FedGLCL reports one run but in Table 17; FedMGP and DP2FL do
not say how many runs they report."""
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
        UserError: if the study has no paper scale, or has no mapping where one is expected.
    """
    scales = tree.get("scales") or {}
    if not can_be_printed(scales):
        have = ", ".join(scales) or "laptop"
        raise UserError(f"{where} has no printed scale, because it has no paper scale, only {have}")
    try:
        return _printed(tree, dict(scales[PAPER] or {}), dict(scales.get(PRINTED) or {}))
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{where}: rows, scales and paper need keys with values") from None


def _printed(tree: Tree, of_paper: Tree, own: Tree) -> Tree:
    """Return the file, given its scales `paper` and `printed`."""
    study, scale = _without(tree, ("claims", "report")), _without(of_paper, ("report", "hours"))
    paper = next((item["paper"] for item in tree.get("items") or ()), "")
    if tree.get("rows"):
        rows, changed = tree["rows"], own.get("rows") or {}
        numbers = tree.get("paper") or {}
        named = {*(numbers.get("numbers") or {}), *(numbers.get("rows") or {}), *changed}
        left = [n for n, row in rows.items() if _is_control(row) and n not in named]
        of_scale = _fixed(scale.get("rows"), left)
        study |= {"space": {}, "tuning": {}, "rows": _fixed(rows, left)}
        study["glosses"] = _without(tree.get("glosses"), left)
        scale = _without(scale, ("space", "tuning"))
        own["rows"] = of_scale | {name: _laid(of_scale, name, row) for name, row in changed.items()}
    if {"columns", "curve"} & own.keys():
        study, scale = (_without(part, ("columns", "curve")) for part in (study, scale))
    keys = {**_without(scale.get("set"), FOR_CHOICE), **(own.get("set") or {})}
    return {
        **study,
        "validation_fraction": None,
        "report": {"seeds": list(SEEDS.get(paper, (0,)))},
        "set": _without(study.get("set"), FOR_CHOICE),
        "scales": {PRINTED: {**scale, **own, "set": keys}},
    }


def _is_control(row: Any) -> bool:
    return isinstance(row, dict) and bool(row.get("control"))


def _fixed(rows: Tree | None, left: Collection[str]) -> Tree:
    """Return the rows without those named in `left` and without what is searched."""
    return {
        name: _without(row, LEFT_OUT) if isinstance(row, dict) else row
        for name, row in _without(rows, left).items()
    }


def _laid(rows: Tree, name: str, own: Any) -> Any:
    """Return a row of the entry `printed`, laid over that of the paper scale."""
    before = rows.get(name)
    return {**before, **own} if isinstance(own, dict) and isinstance(before, dict) else own


def _without(tree: Tree | None, keys: Collection[str]) -> Tree:
    return {key: value for key, value in (tree or {}).items() if key not in keys}
