"""The documentation's site: `make docs` builds it into build/site, with warnings as errors."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from urllib.request import urlopen

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = f"{PROJECT['urls']['Source']}/blob/main/"
BESIDE = {
    "contributing": "CONTRIBUTING.md",
    "architecture": "ARCHITECTURE.md",
    "changelog": "CHANGELOG.md",
}
"""Pages whose text is that of a file in the repository's top folder."""
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#([^)\s]*))?\)")


def is_online(url: str) -> bool:
    """Return True if a site answers; without network the pages are built without its links."""
    try:
        with urlopen(f"{url}objects.inv", timeout=5):
            return True
    except OSError:
        return False


project = "fedray"
author = "the authors of fedray"
release = version = PROJECT["version"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
INVENTORIES = {
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "ray": "https://docs.ray.io/en/latest/",
    "mlflow": "https://mlflow.org/docs/latest/api_reference/",
}
"""Sites whose types the API reference links to, where they can be reached."""
autodoc_default_options = {"exclude-members": "HParams, model_config"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries, which intersphinx may lack
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fedray {version}"
html_show_copyright = False
html_copy_source = False
intersphinx_mapping = {name: (url, None) for name, url in INVENTORIES.items() if is_online(url)}
default_role = "code"
nitpicky = True
myst_heading_anchors = 4


def outside(text: str, folder: Path) -> str:
    """Point links that leave docs/ to the same page of the site, or to the repository.

    Args:
        text: a page.
        folder: where its file lies.

    Raises:
        ValueError: when a link leads nowhere.
    """

    def target(found: re.Match[str]) -> str:
        path, anchor = (folder / found[1]).resolve(), found[2]
        if not path.exists():
            raise ValueError(f"{folder}: the link to {found[1]} leads nowhere")
        if folder.is_relative_to(DOCS) and path.is_relative_to(DOCS):
            return found[0]
        name = path.relative_to(ROOT).as_posix()
        page = next((page for page, file in BESIDE.items() if file == name), "")
        if path.is_relative_to(DOCS):
            page = path.relative_to(DOCS).with_suffix("").as_posix()
        if page:
            return f"](/{page}.md{f'#{anchor}' if anchor else ''})"
        return f"]({SOURCE}{name}{line(path, anchor)})"

    return LINK.sub(target, text)


def line(path: Path, name: str | None) -> str:
    """The anchor of a function, class or method, `Class.method`, in a Python file on GitHub.

    Of a method that is inherited it is its class's.
    """
    if name is None or path.suffix != ".py":
        return f"#{name}" if name else ""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    anchor = ""
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        named = [node for node in body if isinstance(node, kinds) and node.name == part]
        if named:
            anchor, body = f"#L{named[0].lineno}", named[0].body
    return anchor


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """What Sphinx reads of a page in place of the file."""
    if page in BESIDE:
        source[0] = outside((ROOT / BESIDE[page]).read_text(encoding="utf-8"), ROOT)
    else:
        source[0] = outside(source[0], Path(app.env.doc2path(page)).parent)


def setup(app: Sphinx) -> None:
    """Let pages be read so."""
    app.connect("source-read", read)
