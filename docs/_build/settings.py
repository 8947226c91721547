"""docs/settings.md: what each experiment of paper scale sets, and where it is from."""

from __future__ import annotations

from collections.abc import Sequence

from _build.templates import render
from _build.uses import first_sentence
from fedray.cli.show import plain
from fedray.config import EXECUTION_KEYS, EXPERIMENTS, flatten, merged, read_chain, sources_of
from fedray.config.files import ExperimentFile

UNSOURCED = frozenset((*EXECUTION_KEYS, "name", "scale"))
"""Keys that no paper can give: where and how fast, and what a file is called."""


def settings_page() -> str:
    """Return a table for each file, of what it adds to the one that it extends."""
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
                "rows": [(key, plain(values[key]), sources[key]) for key in explained(chain)],
            }
        )
    return render("settings", experiments=experiments)


def paper_files() -> list[str]:
    """Return the shipped experiments of paper scale, sorted."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*_paper.yaml"))


def explained(chain: Sequence[ExperimentFile]) -> list[str]:
    """Return the keys that a file of paper scale has to explain, in their order.

    Those that it sets, and those that it inherits from a file of another scale, which explains
    nothing.
    """
    found, keys = [], [flatten(file.tree).keys() for file in chain]
    for key in flatten(merged(chain)):
        setter = max(i for i, set_here in enumerate(keys) if key in set_here)
        if key not in UNSOURCED and not any(map(_is_papers, chain[setter:-1])):
            found.append(key)
    return found


def _is_papers(file: ExperimentFile) -> bool:
    return file.path.stem.endswith("_paper")
