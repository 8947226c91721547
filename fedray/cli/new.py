"""`fedray new method|model|source|project NAME`: create a file or project from a template."""

from __future__ import annotations

import keyword
from pathlib import Path

import click

from fedray.base.errors import UserError, shown
from fedray.command import Command
from fedray.config.plugins import check_module_name
from fedray.config.registry import registry
from fedray.storage.files import write_atomic

TEMPLATES = Path(__file__).parent / "templates"
KINDS = {"method": "algorithm", "model": "architecture", "source": "data source"}
"""The kinds of single files, and what each registers."""
EXPERIMENTS = {"text": "fedglcl_digits", "prompts": "promptfl_clip"}
"""The kinds of methods with language, and an experiment to try them in."""
PROJECT = {
    "README.md": "README.md",
    "new_project.yaml": "{name}.yaml",
    "new_project_tax.yaml": "tune/{name}_tax.yaml",
    "project_test.txt": "test_{name}.py",
}
"""Templates of a project's files (besides its method and model), and the names of the files."""
NET = "_net"
"""Suffix of a project's model."""


@click.command(cls=Command)
@click.argument("kind", type=click.Choice([*KINDS, "project"]))
@click.argument("name")
@click.option("--text", "uses", flag_value="text", help="A method that uses texts of the classes.")
@click.option("--prompts", "uses", flag_value="prompts", help="A method of prompts around CLIP.")
def command(kind: str, name: str, uses: str | None) -> None:
    """Create a method, model, data source or project from a template.

    NAME consists of letters, digits and underscores. The new file runs without changes.
    """
    if uses and kind != "method":
        raise UserError(f"--{uses} is for methods: fedray new method {name} --{uses}")
    check_new(kind, name)
    written = (
        project_files(name) if kind == "project" else {Path(f"{name}.py"): single(kind, name, uses)}
    )
    taken = [path for path in written if path.exists()]
    if taken or (kind == "project" and Path(name).exists()):
        raise UserError(f"{taken[0] if taken else name} is there already; take another name")
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
        print(f"wrote {path}")
    print(f"run it: {run_command(kind, name, uses)}")


def check_new(kind: str, name: str) -> None:
    """Raise `UserError` if Python cannot import the name, or if it is registered already."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(
            f"{shown(name)} cannot be imported by Python; use letters, digits and underscores"
        )
    check_module_name(name, Path.cwd())
    new = {KINDS.get(kind, "algorithm"): name}
    new |= {"architecture": f"{name}{NET}"} if kind == "project" else {}
    for what, entry in new.items():
        if entry in registry(what).names():
            raise UserError(f"there is {what} '{entry}' already; take another name")


def project_files(name: str) -> dict[Path, str]:
    """Return the files of a project: their texts by path."""
    folder = Path(name)
    texts = {
        folder / f"{name}_method.py": single("method", name, file=f"{name}_method.py"),
        folder / f"{name}_model.py": single("model", f"{name}{NET}", file=f"{name}_model.py"),
    }
    for template, path in PROJECT.items():
        text = (TEMPLATES / "project" / template).read_text(encoding="utf-8")
        texts[folder / path.format(name=name)] = text.replace("new_project", name)
    return texts


def run_command(kind: str, name: str, uses: str | None = None) -> str:
    """Return the command that runs a new file or project."""
    if kind == "project":
        return f"cd {name} && fedray run {name}.yaml"
    key = {"method": "algorithm", "model": "model.group", "source": "data.source"}[kind]
    experiment = EXPERIMENTS[uses] if uses else "fedavg_digits"
    return f"fedray run {experiment} --plugin {name}.py {key}={name}"


def single(kind: str, name: str, uses: str | None = None, file: str = "") -> str:
    """Return the text of a single file: a template with its placeholder name replaced.

    Args:
        kind: a kind of `KINDS`.
        name: the new name.
        uses: a kind of method with language, or None.
        file: the file's name; empty: NAME.py.
    """
    template = f"{kind}_{uses}.py" if uses else f"{kind}.py"
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    title = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    text = text.replace(f"new_{kind}.py", file or f"{name}.py").replace(f"new_{kind}", name)
    return text.replace(f"New{kind.capitalize()}", title)
