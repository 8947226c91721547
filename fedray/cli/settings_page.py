"""docs/settings.md: what each experiment of paper scale sets, and where it is from."""

from __future__ import annotations

from collections.abc import Sequence

from fedray.cli.show import plain
from fedray.cli.uses import first_sentence
from fedray.config import EXECUTION_KEYS, EXPERIMENTS, flatten, merged, read_chain, sources_of
from fedray.config.files import ExperimentFile

UNSOURCED = frozenset((*EXECUTION_KEYS, "name", "scale"))
"""Keys that no paper can give: where and how fast, and what a file is called."""
INTRODUCTION = """\
# Settings at paper scale

What each experiment of paper scale sets, and where the value is from: the paper of its comparison,
the official code, or us, where both leave it open or we depart. Written by `python -m fedray docs`
from the files' `sources`. `python -m fedray show NAME` prints all keys of an experiment, those that
were left at their defaults too; [reference.md](reference.md) says of a method's defaults where they
are from. Keys that only say where and how fast an experiment runs are left out.
"""


def settings_page() -> str:
    """A table for each file, of what it adds to the one that it extends."""
    parts = [INTRODUCTION]
    for name in paper_files():
        chain = read_chain(name)
        sources = sources_of(chain)
        values = flatten(merged(chain))
        parts += [f"## {name}", "", *_beginning(chain)]
        rows = [
            f"| `{key}` | `{plain(values[key])}` | {sources[key]} |" for key in explained(chain)
        ]
        parts += ["| key | value | source |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(parts).rstrip() + "\n"


def paper_files() -> list[str]:
    """The shipped experiments of paper scale, sorted."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*_paper.yaml"))


def explained(chain: Sequence[ExperimentFile]) -> list[str]:
    """The keys that a file of paper scale has to explain, in their order.

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


def _beginning(chain: Sequence[ExperimentFile]) -> list[str]:
    """What the file's first sentence says, and what it extends."""
    first = first_sentence(chain[-1].path)
    below = [file for file in chain[:-1] if _is_papers(file)]
    if not below:
        return [first, ""]
    base = below[-1].path.stem
    return [first, "", f"Else as [{base}](#{base}).", ""]
