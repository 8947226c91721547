"""Sphinx configuration of the documentation; `make docs` builds it into build/site."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from urllib.request import urlopen

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = "source"
"""Folder of the site for the files of the repository that pages link to."""
ELSEWHERE = {
    "contributing": "CONTRIBUTING.md",
    "architecture": "ARCHITECTURE.md",
    "clusters/index": "clusters/README.md",
    "clusters/laptop": "clusters/laptop/README.md",
    "clusters/cloud": "clusters/cloud/README.md",
    "clusters/kuberay": "clusters/kuberay/README.md",
    "clusters/slurm": "clusters/slurm/README.md",
    "clusters/mlflow": "mlflow/README.md",
}
"""Pages whose text is a file outside docs/."""
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#([^)\s]*))?\)")


def is_online(url: str) -> bool:
    """Return True if a site answers. Without a network, pages are built without links to it."""
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
autodoc_default_options = {"exclude-members": "model_config"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries, which intersphinx may lack
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_title = f"fedray {version}"
html_show_copyright = False
html_copy_source = False
smartquotes = False  # options such as --rows keep their hyphens
intersphinx_mapping = {name: (url, None) for name, url in INVENTORIES.items() if is_online(url)}
default_role = "code"
nitpicky = True
myst_heading_anchors = 4


def resolve_links(text: str, folder: Path, site: str) -> str:
    """Point links that leave docs/ to a page of the site, or to the site's copy of the file.

    Args:
        text: Markdown.
        folder: the folder of its file.
        site: the path from the page to the top of the site, "" or "../".

    Raises:
        ValueError: if a link leads nowhere.
    """

    def target(link: re.Match[str]) -> str:
        label, path, anchor = link[1], (folder / link[2]).resolve(), link[3]
        if not path.exists():
            raise ValueError(f"{folder}: the link to {link[2]} leads nowhere")
        if folder.is_relative_to(DOCS) and path.is_relative_to(DOCS):
            return link[0]
        name = path.relative_to(ROOT).as_posix()
        page = next((f"{page}.md" for page, file in ELSEWHERE.items() if file == name), "")
        if path.is_relative_to(DOCS):
            page = path.relative_to(DOCS).as_posix()
        if page:
            return f"[{label}](/{page}{f'#{anchor}' if anchor else ''})"
        return f'<a href="{site}{SOURCE}/{name}.html{line_anchor(path, anchor)}">{label}</a>'

    return LINK.sub(target, text)


def line_anchor(path: Path, name: str | None) -> str:
    """Return the anchor of the line of a function, class or method (`Class.method`) of a file.

    An inherited method gets the anchor of its class.
    """
    if name is None or path.suffix != ".py":
        return ""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    anchor = ""
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        named = [node for node in body if isinstance(node, kinds) and node.name == part]
        if named:
            anchor, body = f"#line-{named[0].lineno}", named[0].body
    return anchor


def replace_source(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the text of a page that Sphinx is about to parse (event `source-read`)."""
    site = "../" * page.count("/")
    if page in ELSEWHERE:
        file = ROOT / ELSEWHERE[page]
        source[0] = resolve_links(file.read_text(encoding="utf-8"), file.parent, site)
    else:
        source[0] = resolve_links(source[0], Path(app.env.doc2path(page)).parent, site)


def copy_sources(app: Sphinx, failure: Exception | None) -> None:
    """Write the files that the pages link to as pages with numbered lines (`build-finished`)."""
    top = Path(app.outdir)
    linked = re.compile(rf'href="[./]*{SOURCE}/([^"#]+)\.html')
    pages = [top / f"{name}.html" for name in app.env.found_docs]
    for name in {name for page in pages for name in linked.findall(page.read_text("utf-8"))}:
        text = (ROOT / name).read_text(encoding="utf-8")
        style = HtmlFormatter(full=True, title=name, linenos="inline", lineanchors="line")
        try:
            lexer = get_lexer_for_filename(name)
        except ClassNotFound:
            lexer = TextLexer()
        copy = top / SOURCE / f"{name}.html"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(highlight(text, lexer, style), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register the event handlers."""
    app.connect("source-read", replace_source)
    app.connect("build-finished", copy_sources)
