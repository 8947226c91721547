"""What shipped experiments resolve to, as `make docs` wrote it: for packages, whose files stay.

To resolve an experiment takes the code of what it chooses by name, and with it the import of
PyTorch. All else follows from its file and the types of its keys. So of each experiment what it
chooses by name is written, complete, where its file leaves something open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedray.cli.listing import IN_A_CHECKOUT
from fedray.registry import installed_points
from fedray.shipped import PACKAGE, names

WRITTEN = PACKAGE / "settings.json"

Tree = dict[str, Any]


def written(name: str, tree: Tree) -> Tree | None:
    """What an experiment resolves to, as it is recorded, without its data's root.

    Args:
        name: of the experiment.
        tree: what its file says.

    Returns:
        None where it is not known, or may have changed: then it has to be resolved.
    """
    if IN_A_CHECKOUT or name not in names("experiments") or installed_points():
        return None
    try:
        chosen = json.loads(WRITTEN.read_text(encoding="utf-8")).get(name)
    except OSError:
        return None
    return None if chosen is None else _with_chosen(tree, chosen)


def settings_file() -> str:
    """The file, an experiment on each line."""
    from fedray.config import read_experiment

    found = {name: _chosen(read_experiment(name)) for name in names("experiments")}
    lines = (
        f"{json.dumps(name)}: {json.dumps(chosen, ensure_ascii=False)}"
        for name, chosen in found.items()
        if chosen is not None
    )
    return "{" + ",\n".join(lines) + "}\n"


def _with_chosen(tree: Tree, chosen: Mapping[str, Any]) -> Tree:
    from fedray.config import Experiment, validate

    complete = validate(Experiment, without_root(tree)).record()
    for key, component in chosen.items():
        *above, last = key.split(".")
        owner = complete
        for part in above:
            owner = owner[part]
        owner[last] = component
    return complete


def _chosen(tree: Tree) -> Tree | None:
    """What an experiment chooses by name, complete; None where that is not all that follows."""
    from fedray.config import COMPONENTS, flatten, load_experiment

    resolved = load_experiment(without_root(tree)).record()
    plain = flatten(_with_chosen(tree, {}))
    chosen: Tree = {}
    for key in COMPONENTS:
        found: Any = resolved
        for part in key.split("."):
            found = found[part]
        of_key = flatten({key: found})
        if any(each not in plain or plain[each] != value for each, value in of_key.items()):
            chosen[key] = found
    return chosen if _with_chosen(tree, chosen) == resolved else None


def without_root(tree: Tree) -> Tree:
    """An experiment without its data's root, which need not be there."""
    data = tree.get("data")
    if not isinstance(data, dict):
        return tree
    return {**tree, "data": {key: value for key, value in data.items() if key != "root"}}
