"""docs/methods/: a page for each method, from the registry, its docstring and shipped files."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterable
from pathlib import Path

from _build.heads import PACKAGE, head_of
from _build.originals import originals
from _build.templates import linked, plain, render
from _build.uses import Uses, uses
from fedray.cli.catalogue import Entry, by_family, entries
from fedray.cli.papers import read_papers
from fedray.core import Algorithm, algorithms

FOLDER = "docs/methods"
BASES = {"prompts": "promptfl_clip", "text_guided": "fedglcl_digits"}
"""The experiment that a family's methods can take the place in; fedavg_digits for the others."""


def _shipped() -> list[Entry]:
    return [entry for entry in entries("algorithms") if entry.file]


def methods_page() -> dict[str, str]:
    """Return the table of all methods by path below the checkout."""
    families = [
        {"title": title, "entries": methods} for title, methods in by_family(_shipped()).items()
    ]
    return {f"{FOLDER}/index.md": render("methods", families=families)}


def method_pages() -> dict[str, str]:
    """Return the page of each method by path below the checkout."""
    used, papers = uses(), {paper.title for paper in read_papers().values()}
    return {
        f"{FOLDER}/{entry.name}.md": _page(entry, used[entry.name], papers) for entry in _shipped()
    }


def _page(entry: Entry, used: Uses, papers: Collection[str]) -> str:
    cls: type[Algorithm] = algorithms.get(entry.name)
    path = PACKAGE / entry.file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    head = head_of(ast.get_docstring(tree, clean=False) or "", path)
    files = (
        ("Experiments", used.experiments, "fedray/experiments/", "fedray run"),
        ("Sweeps", used.sweeps, "tune/", "fedray sweep"),
        ("Tables", used.tables, "tune/tables/", "fedray table"),
    )
    return render(
        "method",
        entry=entry,
        summary=inspect.cleandoc(cls.__doc__ or ""),
        facts=_facts(entry, cls, used, papers),
        prose=map(_prose, head.prose),
        equations=head.equations,
        deviations=head.deviations,
        originals=originals(entry.name),
        uses=[
            dict(zip(("title", "files", "folder", "command"), row, strict=True)) for row in files
        ],
    )


def _facts(
    entry: Entry, cls: type[Algorithm], used: Uses, papers: Collection[str]
) -> dict[str, str]:
    bases = [base for base in cls.__mro__[1:] if base in algorithms.entries()]
    source = f"fedray/{entry.file}"
    page = f"[commands](../papers.md#{entry.title.lower()})"
    return {
        "key": f"`algorithm={entry.name}`",
        "paper": linked(entry.paper) if entry.paper != "-" else "",
        "payloads": f"{entry.travels}; see [privacy](../privacy.md)",
        "builds on": ", ".join(f"[{base.title}]({base.name}.md)" for base in bases),
        "needs": ", ".join(needs(cls)),
        "code": f"[{source}](../../{source}#{cls.__name__})",
        "paper's experiments": page if entry.title in papers else "",
        "example": f"`fedray run {_example(entry, used.experiments)}`",
    }


def needs(cls: type[Algorithm]) -> list[str]:
    """Return the requirements of a method, in words."""
    words = {
        "a text encoder": cls.requires.text,
        "a CLIP (`model.clip`)": cls.requires.prompts,
        "validation images": cls.requires.validation,
        "SGD without clipping": cls.requires.sgd,
    }
    return [text for text, needed in words.items() if needed]


def _example(entry: Entry, experiments: Iterable[str]) -> str:
    """Return an experiment of laptop scale with embedded data, or the words that make it one."""
    embedded = [name for name in experiments if name.endswith(("_digits", "_clip"))]
    family = Path(entry.file).parts[1]
    return next(iter(embedded), f"{BASES.get(family, 'fedavg_digits')} algorithm={entry.name}")


def _prose(block: str) -> str:
    """Return a paragraph as Markdown; an indented one becomes a block of text."""
    if all(line.startswith("    ") for line in block.splitlines()):
        return "```text\n" + inspect.cleandoc(block) + "\n```"
    return plain(inspect.cleandoc(block))
