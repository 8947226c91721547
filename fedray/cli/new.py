"""A file to begin with: `fedray new method|model|source|project NAME`."""

from __future__ import annotations

import keyword
from pathlib import Path

import click

from fedray.cli.listing import KINDS as LISTED
from fedray.cli.listing import registered
from fedray.command import Command
from fedray.errors import UserError, shown
from fedray.files import write_atomic
from fedray.plugins import check_module_name

TEMPLATES = Path(__file__).parent / "templates"
KINDS = {"method": "algorithms", "model": "architectures", "source": "sources"}
"""What a file may have, and the listing that it is added to."""
PROJECT = {
    "README.md": "README.md",
    "new_project.yaml": "{name}.yaml",
    "new_project_tax.yaml": "tune/{name}_tax.yaml",
    "project_test.txt": "test_{name}.py",
}
"""The files of a project besides its method and model, and what they are called there."""
NET = "_net"
"""What follows a project's name in the name of its model."""
LONGEST = 40


@click.command(cls=Command)
@click.argument("kind", type=click.Choice([*KINDS, "project"]))
@click.argument("name")
def command(kind: str, name: str) -> None:
    """Write something of your own to begin with.

    NAME is what it is called: letters, digits and underscores.
    """
    check(kind, name)
    single = Path(f"{name}.py")
    written = project(name) if kind == "project" else {single: _named(kind, single.name, name)}
    taken = [path for path in written if path.exists()]
    if taken or (kind == "project" and Path(name).exists()):
        raise UserError(f"{taken[0] if taken else name} is there already; take another name")
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
        print(f"wrote {path}")
    print(f"run it: {run_command(kind, name)}")


def check(kind: str, name: str) -> None:
    """Refuse a name that Python cannot import, or that an entry of the registry has.

    Raises:
        UserError: with what is wrong about it.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or len(name) > LONGEST:
        raise UserError(
            f"{shown(name)} is no name that Python can import; use letters, digits and underscores"
        )
    check_module_name(name, Path.cwd())
    known = registered()
    names = {KINDS[kind]: name} if kind != "project" else {"algorithms": name}
    if kind == "project":
        names["architectures"] = f"{name}{NET}"
    for listing, new in names.items():
        if new in {entry.name for entry in known[listing]}:
            raise UserError(f"there is {LISTED[listing]} '{new}' already; take another name")


def project(name: str) -> dict[Path, str]:
    """Return the texts of a project by their paths."""
    folder = Path(name)
    texts = {
        folder / f"{name}_method.py": _named("method", f"{name}_method.py", name),
        folder / f"{name}_model.py": _named("model", f"{name}_model.py", f"{name}{NET}"),
    }
    for template, path in PROJECT.items():
        text = (TEMPLATES / "project" / template).read_text(encoding="utf-8")
        texts[folder / path.format(name=name)] = text.replace("new_project", name)
    return texts


def run_command(kind: str, name: str) -> str:
    """Return the command that runs it."""
    if kind == "project":
        return f"cd {name} && fedray run {name}.yaml"
    key = {"method": "algorithm", "model": "model.group", "source": "data.source"}[kind]
    return f"fedray run fedavg_digits --plugin {name}.py {key}={name}"


def _named(kind: str, file: str, name: str) -> str:
    """Return a template under another name."""
    text = (TEMPLATES / f"{kind}.py").read_text(encoding="utf-8")
    title = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    text = text.replace(f"new_{kind}.py", file).replace(f"new_{kind}", name)
    return text.replace(f"New{kind.capitalize()}", title)
