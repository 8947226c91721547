"""Make a failing experiment small, and keep it as a case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from oracles import NETWORKS, PLUGIN, SCOPE, unset_key

from fedray.base.errors import UserError
from fedray.config.files import override
from fedray.laws.draws import Drawn, accepted

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).with_name("cases")
NEEDED = (
    "seed",
    "rounds",
    "batch_size",
    "lr",
    "data",
    "algorithm",
    "model",
    "text",
    "name",
)
"""Keys that a candidate never loses as a whole."""
SIMPLE = ("local", "fedavg")
"""Methods that another one is tried to be replaced by."""


def candidates(tree: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield simpler trees: without a key, with half of a number, or with a simpler method."""
    simpler = {"local": (), "fedavg": ("local",)}.get(tree["algorithm"]["name"], SIMPLE)
    for method in simpler if "group" in tree["model"] else ():
        yield {**deepcopy(tree), "algorithm": {"name": method}}
    for key, value in _leaves(tree):
        if key.split(".")[-1] not in NEEDED and key not in ("data.clients", "data.source"):
            smaller = deepcopy(tree)
            unset_key(smaller, key)
            yield smaller
        if key in ("rounds", "data.clients", "data.samples", "local_epochs") and value > 1:
            yield override(tree, [(key, value // 2)])
    if tree["model"].get("group", "mlp") != "mlp":
        yield {**deepcopy(tree), "model": {**tree["model"], "group": "mlp"}}


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            if above or name not in NEEDED:
                yield f"{above}{name}", value
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def shrink(drawn: Drawn, fails: Callable[[Drawn], bool], most: int = 60) -> Drawn:
    """Return the smallest experiment found that still fails.

    Args:
        drawn: an experiment that fails.
        fails: judges another one.
        most: how many experiments to judge.
    """
    judged, goes_on = 0, True
    while goes_on:
        goes_on = False
        for tree in candidates(drawn.tree):
            try:
                smaller = Drawn(drawn.seed, tree, (), accepted(tree, SCOPE))
            except (UserError, TypeError):
                continue
            judged += 1
            if judged > most:
                return drawn
            if fails(smaller):
                drawn, goes_on = smaller, True
                break
    return drawn


def write_case(drawn: Drawn, folder: Path, remark: str) -> Path:
    """Write an experiment as a file for `fedray run`, in the project's root; return its path."""
    tree = deepcopy(drawn.tree)
    if tree["model"].get("group") in NETWORKS:
        tree["plugins"] = [PLUGIN if folder != CASES else "../networks.py"]
    text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None)
    text = text.replace(f"{ROOT}/", "")
    name = drawn.tree["algorithm"]["name"]
    path = folder / f"{name}_{drawn.seed}.yaml"
    path.write_text(f"# {remark}\n{text}")
    return path


def read_case(path: Path) -> Drawn:
    """Read a case; relative paths in it begin at the project's root."""
    tree = yaml.safe_load(path.read_text())
    tree.pop("plugins", None)
    for holder, key in ((tree["data"], "root"), (tree.get("text", {}).get("encoder", {}), "path")):
        if key in holder:
            holder[key] = str(ROOT / holder[key])
    return Drawn(0, tree, (), accepted(tree, SCOPE))
