"""Write the generated pages, or check that they are up to date."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedray.cli.written import settings_file
from fedray.command import CommandLine, as_path, run_command
from fedray.errors import UserError
from fedray.files import write_atomic

from _build.methods import method_pages
from _build.papers import papers_page
from _build.privacy import privacy_page
from _build.registry import hooks_page, keys_page, listing, reference
from _build.results import RESULTS, results_page, take
from _build.settings import settings_page


def parser() -> CommandLine:
    """Return the command line."""
    cli = CommandLine(
        prog="PYTHONPATH=docs python -m _build",
        description="Write the pages that follow from the code.",
    )
    cli.add_argument("--check", action="store_true", help="write nothing; exit with 1 if outdated")
    cli.add_argument("--root", type=as_path, default=Path(), help="the checkout; default: here")
    cli.add_argument(
        "--take", type=as_path, metavar="DIR", help="first copy a table's page into docs/results/"
    )
    cli.add_debug()
    return cli


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(), write, argv)


def write(args: argparse.Namespace) -> int:
    """Write or check the pages; returns the exit code."""
    if args.take is not None:
        print(f"wrote {take(args.take, args.root)}")
    written = pages(args.root)
    outdated = [path for path, text in written.items() if _read(path) != text]
    if args.check:
        for path in outdated:
            print(f"{path} is not up to date; run make docs")
        return int(bool(outdated))
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, written[path])
        print(f"wrote {path}")
    return 0


def pages(root: Path) -> dict[Path, str]:
    """Return the generated files by path.

    Raises:
        UserError: if the folder is no checkout.
    """
    if not (root / "docs").is_dir():
        raise UserError(f"{root.absolute()} has no folder docs; run this in a checkout of fedray")
    files = {
        "docs/reference.md": reference(),
        "docs/keys.md": keys_page(),
        "docs/hooks.md": hooks_page(),
        "docs/privacy.md": privacy_page(),
        "docs/papers.md": papers_page(),
        "docs/settings.md": settings_page(),
        "fedray/listing.json": listing(),
        "fedray/settings.json": settings_file(),
        RESULTS: results_page(root, _read(root / RESULTS)),
        **method_pages(),
    }
    return {root / path: text for path, text in files.items()}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    raise SystemExit(main())
