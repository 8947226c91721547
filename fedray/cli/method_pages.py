"""docs/methods/: a page for each method, out of the registry, its file's head and shipped files."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Sequence

from fedray.cli.catalogue import entries, family_heading
from fedray.cli.heads import PACKAGE, Equation, head_of
from fedray.cli.links import linked
from fedray.cli.listing import Entry
from fedray.cli.papers import read_papers
from fedray.cli.uses import Uses, uses
from fedray.core import Algorithm, algorithms

FOLDER = "docs/methods"
FAMILIES = ("text_guided", "prototypes", "averaging", "personalised", "prompts", "distillation")
"""The families of methods in the index's order; those that are missing here come last."""
_SOURCE = "../../fedray/"
_CODE = re.compile(r"(`[^`]*`)")
INDEX = """# Methods

One file a method. A page has the method's equations with the functions that they are, where it
departs from its paper, its hyper-parameters, and the experiments, sweeps and tables that it is in;
written by `make docs` from the code. A method of your own: [plugins.md](../plugins.md).
"""


def method_pages() -> dict[str, str]:
    """Every page by its path below the checkout; the index is one of them."""
    shipped = [entry for entry in entries("algorithms") if entry.file]
    used, papers = uses(), {paper.title for paper in read_papers().values()}
    pages = {f"{FOLDER}/{each.name}.md": _page(each, used[each.name], papers) for each in shipped}
    return {f"{FOLDER}/index.md": _index(shipped), **pages}


def _index(shipped: Sequence[Entry]) -> str:
    """A table of methods for each family, and the site's list of pages."""
    by_family: dict[str, list[Entry]] = {}
    for entry in shipped:
        by_family.setdefault(entry.file.split("/")[1], []).append(entry)
    known = [family for family in FAMILIES if family in by_family]
    parts = [INDEX]
    for family in [*known, *sorted(by_family.keys() - set(known))]:
        parts += [f"## {family_heading(f'fedray.algorithms.{family}')}", ""]
        parts += ["| method | `algorithm=` | paper | what travels |", "|---|---|---|---|"]
        for entry in by_family[family]:
            link = f"[{entry.title}]({entry.name}.md)"
            parts.append(f"| {link} | `{entry.name}` | {linked(entry.paper)} | {entry.travels} |")
        parts += ["", "```{toctree}", ":hidden:", ""]
        parts += [*(entry.name for entry in by_family[family]), "```", ""]
    return "\n".join(parts).rstrip() + "\n"


def _page(entry: Entry, used: Uses, papers: Collection[str]) -> str:
    cls: type[Algorithm] = algorithms.get(entry.name)
    path = PACKAGE / entry.file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    head = head_of(ast.get_docstring(tree, clean=False) or "", path)
    parts = [f"# {entry.title}", "", plain(inspect.cleandoc(cls.__doc__ or "")), ""]
    parts += _facts(entry, cls, used, papers)
    for block in head.prose:
        parts += [_prose(block), ""]
    parts += _equations(head.equations)
    heading, items = head.deviations
    if items:
        parts += [f"## {heading}", "", plain(items), ""]
    parts += _parameters(entry)
    parts += _files("Experiments", used.experiments, "fedray/experiments/", "fedray run")
    parts += _files("Sweeps", used.sweeps, "tune/", "fedray sweep")
    parts += _files("Tables", used.tables, "tune/tables/", "fedray table")
    return "\n".join(parts).rstrip() + "\n"


def _facts(entry: Entry, cls: type[Algorithm], used: Uses, papers: Collection[str]) -> list[str]:
    """What is known of it in short."""
    bases = [
        f"[{base.title}]({base.name}.md)"
        for base in cls.__mro__[1:]
        if base in algorithms.entries()
    ]
    rows = {
        "chosen by": f"`algorithm={entry.name}`",
        "paper": linked(entry.paper) if entry.paper != "-" else "",
        "travels": f"{entry.travels}; [who learns what](../privacy.md)",
        "builds on": ", ".join(bases),
        "needs": ", ".join(needs(cls)),
        "code": f"[fedray/{entry.file}]({_SOURCE}{entry.file}#{cls.__name__})",
        "its paper's experiments": f"[papers.md](../papers.md#{entry.title.lower()})"
        if entry.title in papers
        else "",
        "try it": f"`fedray run {first}`" if (first := _first(used.experiments)) else "",
    }
    cells = [f"| {what} | {text} |" for what, text in rows.items() if text]
    return ["| | |", "|---|---|", *cells, ""]


def needs(cls: type[Algorithm]) -> list[str]:
    """What a method cannot do without, in words."""
    asked = cls.requires
    words = {
        "a text encoder": asked.text,
        "a CLIP (`model.clip`)": asked.prompts,
        "validation images": asked.validation,
        "SGD without clipping": asked.sgd,
    }
    return [said for said, needed in words.items() if needed]


def _first(experiments: dict[str, str]) -> str:
    """An experiment of laptop scale, with what is embedded before others."""
    small = [name for name in experiments if not name.endswith("_paper")]
    embedded = [name for name in small if name.endswith(("_digits", "_clip"))]
    return next(iter(embedded or small), "")


def _prose(block: str) -> str:
    """A paragraph; what is indented stays as it stands."""
    if all(line.startswith("    ") for line in block.splitlines()):
        return "```text\n" + inspect.cleandoc(block) + "\n```"
    return plain(inspect.cleandoc(block))


def _equations(found: Sequence[Equation]) -> list[str]:
    if not found:
        return []
    noted = any(each.note for each in found)
    rows = []
    for each in found:
        links = ", ".join(f"[`{name}`]({_SOURCE}{each.file}#{name})" for name in each.names)
        rows.append(f"| {_cell(each.label)} | {links} |" + f" {_cell(each.note)} |" * noted)
    head = ["| | function |" + " |" * noted, "|---|---|" + "---|" * noted]
    return ["## From equation to line", "", *head, *rows, ""]


def _parameters(entry: Entry) -> list[str]:
    if not entry.parameters:
        return ["## Hyper-parameters", "", "None of its own.", ""]
    rows = [
        f"| `algorithm.{each.name}` | `{_cell(each.default, code=True)}` | "
        f"`{_cell(each.type, code=True)}` {each.bounds} | {_cell(each.text)} |"
        for each in entry.parameters
    ]
    head = ["| key | default | type | meaning |", "|---|---|---|---|"]
    return ["## Hyper-parameters", "", *head, *rows, ""]


def _files(heading: str, found: dict[str, str], folder: str, command: str) -> list[str]:
    if not found:
        return []
    rows = [f"- [{name}](../../{folder}{name}.yaml): {plain(said)}" for name, said in found.items()]
    return [f"## {heading}", "", f"`{command} NAME` with", "", *rows, ""]


def _cell(text: str, *, code: bool = False) -> str:
    return (text if code else plain(text)).replace("|", "\\|")


def plain(text: str) -> str:
    """Text of a docstring as Markdown that shows the same characters; code stays code."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([<>*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
