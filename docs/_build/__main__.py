"""The command that writes the generated pages, or checks that they are up to date."""

from __future__ import annotations

from pathlib import Path

import click

from _build.methods import method_pages, methods_page
from _build.notebooks import notebook_pages
from _build.papers import papers_page
from _build.privacy import privacy_page
from _build.published import published, published_pages
from _build.registry import keys_page, reference
from _build.results import RESULTS, details, not_run, summary, take, with_part
from _build.sets import sets_table
from fedray.command import PATH, Command, run
from fedray.base.errors import UserError
from fedray.storage.files import write_atomic

OWN_DATA = "docs/own-data.md"


@click.command(cls=Command)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a page is outdated.")
@click.option("--site", is_flag=True, help="Write the pages that only the site has.")
@click.option("--root", type=PATH, default=Path(), help="The checkout; default: this folder.")
@click.option(
    "--take", "table", type=PATH, metavar="DIR", help="First copy a table's page to docs/results/."
)
def command(check: bool, site: bool, root: Path, table: Path | None) -> int:
    """Write the pages of the repository that are generated from the code, or those of the site."""
    if table is not None:
        print(f"wrote {take(table, root)}")
    written = {root / path: text for path, text in site_pages().items()} if site else pages(root)
    outdated = [path for path, text in written.items() if _read(path) != text]
    if check:
        for path in outdated:
            print(f"{path} is not up to date; run make docs")
        return int(bool(outdated))
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, written[path])
        print(f"wrote {path}")
    return 0


def pages(root: Path) -> dict[Path, str]:
    """Return the texts of all generated files of the repository by path.

    Raises:
        UserError: if the folder is not a checkout.
    """
    if not (root / "docs").is_dir():
        raise UserError(f"{root.absolute()} has no folder docs; run this in a checkout of fedray")
    tables = published(root)
    files = {
        "docs/keys.md": keys_page(),
        "docs/privacy.md": privacy_page(),
        "docs/papers.md": papers_page(),
        RESULTS: with_part(
            with_part(_read(root / RESULTS), summary([*tables.values()], not_run(root))),
            details([*tables.values()]),
            "details",
        ),
        OWN_DATA: with_part(_read(root / OWN_DATA), sets_table(), "sets"),
        **published_pages(tables),
        **methods_page(),
    }
    return {root / path: text for path, text in files.items()}


def site_pages() -> dict[str, str]:
    """Return the texts of the pages that only the site has, by path below the checkout."""
    return {"docs/reference.md": reference(), **method_pages(), **notebook_pages(Path())}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    raise SystemExit(run(command, prog="python -m _build"))
