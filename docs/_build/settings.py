"""docs/settings.md: the values that experiments of paper scale set, and their sources."""

from __future__ import annotations

from collections.abc import Sequence

from _build.templates import render
from _build.uses import first_sentence
from fedray.cli.show import yaml_value
from fedray.config import (
    EXECUTION,
    EXPERIMENTS,
    LABEL,
    RESOURCES,
    flatten,
    keys_of,
    merged,
    read_chain,
    sources_of,
)
from fedray.config.files import ExperimentFile


def settings_page() -> str:
    """Return the page, with a table for each file of the values that it adds to its base."""
    experiments = []
    for name in paper_files():
        chain = read_chain(name)
        sources, values = sources_of(chain), flatten(merged(chain))
        below = [file.path.stem for file in chain[:-1] if _is_papers(file)]
        experiments.append(
            {
                "name": name,
                "sentence": first_sentence(chain[-1].path),
                "base": below[-1] if below else "",
                "rows": [(key, yaml_value(values[key]), sources[key]) for key in explained(chain)],
            }
        )
    return render("settings", experiments=experiments)


def paper_files() -> list[str]:
    """Return the shipped experiments of paper scale, sorted."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*_paper.yaml"))


def explained(chain: Sequence[ExperimentFile]) -> list[str]:
    """Return the keys of a file of paper scale that need a source, in order.

    These are the keys that the file sets or inherits from a file of another scale, which states no
    sources.
    """
    needed, keys = [], [flatten(file.tree).keys() for file in chain]
    unsourced = keys_of(EXECUTION, RESOURCES, LABEL)
    for key in flatten(merged(chain)):
        setter = max(i for i, set_here in enumerate(keys) if key in set_here)
        if key not in unsourced and not any(map(_is_papers, chain[setter:-1])):
            needed.append(key)
    return needed


def _is_papers(file: ExperimentFile) -> bool:
    return file.path.stem.endswith("_paper")
