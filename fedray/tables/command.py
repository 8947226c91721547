"""`python -m fedray.table NAME [key=value ...]`: methods by settings, tuned alike, and verdicts."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.command import (
    INTERRUPTED,
    RUN_ERROR,
    CommandLine,
    add_plugin,
    as_path,
    go_on_with,
    run_command,
    say_stopped,
)
from fedray.config import Experiment, parse_assignments, read_plugins
from fedray.errors import UserError
from fedray.files import (
    full_disk_said,
    make_folder,
    reserve,
    stamp,
    tables_home,
    tables_runs,
    unused_removed,
    write_json,
)
from fedray.plugins import Plugin, unshipped
from fedray.records import RunFolder, sealed, write_run_list
from fedray.remote_results import check_owner, copying, fetch_missing
from fedray.render.page import Section
from fedray.shipped import names
from fedray.sweep.command import (
    begun_folder,
    check_current,
    connect_cluster,
    hold,
    keep_yaml,
    prepare,
    untracked,
)
from fedray.tables.agenda import Cell, check_metrics, check_rows_differ
from fedray.tables.book import FILE, Book
from fedray.tables.forecast import headline, not_asked, planned_cells
from fedray.tables.outcome import Outcome, outcome
from fedray.tables.plan import TablePlan
from fedray.tables.published import DATA, Published
from fedray.tables.spec import SCALES, plan_table
from fedray.tracking import tracker_for
from fedray.waiting import say_next

if TYPE_CHECKING:
    from fedray.tables.runs import CellMetrics, TableRuns

PAGE = "table.md"
PROG = "python -m fedray.table"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `python -m fedray.table`."""
    cli = CommandLine(
        prog=prog,
        description="Compare methods: each tuned with the same effort, several seeds, verdicts.",
        epilog="fedray ls tables lists those that can be found from here.",
    )
    cli.add_argument(
        "table", nargs="?", metavar="NAME", help="a table in tune/tables/, or a YAML file"
    )
    cli.add_argument(
        "set",
        nargs="*",
        metavar="key=value",
        help="for every cell's experiment: rounds=5; of the table: report.seeds=[0,1]",
    )
    cli.add_argument("--scale", choices=SCALES, help="default: the first that the file has")
    cli.add_argument(
        "--resume", action="store_true", help="go on with this table's latest unfinished invocation"
    )
    cli.add_argument(
        "--out", type=as_path, metavar="DIR", help="the folder of this invocation's page"
    )
    cli.add_argument(
        "--plan", action="store_true", help="print what would be run, and what it costs, and end"
    )
    cli.add_argument(
        "--from",
        dest="published",
        type=as_path,
        action="append",
        default=[],
        metavar="DIR",
        help="take finished runs from the table.json in this folder; may be repeated",
    )
    cli.add_argument("--no-track", action="store_true", help="do not log to MLflow")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), carry_out, argv)


def carry_out(args: argparse.Namespace) -> int:
    """Run or go on with a table, as the command line says; returns the exit code."""
    if args.table is not None:
        say_next(f"reading the table {args.table}")
    book = begin_or_resume(args)
    cells = {cell.place: cell for cell in book.cells}
    first = {place: _first(cell) for place, cell in cells.items()}  # before anything starts
    check_rows_differ(book.cells)
    fetch_missing(book.store)
    check_stored(book)
    print(headline(book), flush=True)
    if elsewhere := unshipped(plugins_of(book.plan)):
        print(elsewhere, flush=True)
    if args.plan:
        print("\n".join([*planned_cells(book), *not_asked(book.plan)]))
        return 0
    make_folder(book.store)
    new = None if args.resume or args.out else reserve(book.home)
    book.home = new or book.home
    with (
        unused_removed(new),
        full_disk_said(book.home),
        hold(book.home),
        copying(book.home),
        copying(book.store, by_entry=True),
    ):
        if args.resume:
            book = as_it_is_now(book)
        keep_file(args.table, book)
        tracks = not args.no_track
        concurrent = 0 if book.is_complete else get_ready(book, list(first.values()), tracks=tracks)
        return run(book, concurrent, tracks=tracks)


def get_ready(book: Book, asked: Sequence[Experiment], *, tracks: bool) -> int:
    """Connect to Ray and read what the runs will; returns how many of them run at a time."""
    concurrent = connect_cluster(
        book.home, asked, book.total, book.plan.max_concurrent, tracks=tracks
    )
    say_next("reading images, partitions and texts")
    prepare(_inputs(book))  # as Ray gets ready
    return concurrent


def _first(cell: Cell) -> Experiment:
    """A cell's first experiment; every configuration is checked.

    Raises:
        UserError: naming the cell.
    """
    try:
        for config in cell.first:
            cell.wanted(config, "tuning", cell.plan.tuning.seeds[0])
        first = cell.wanted(cell.first[0], "report", cell.plan.report.seeds[0]).experiment
        check_metrics(cell.plan, cell.place.row, first)
        return first
    except UserError as error:
        raise UserError(f"{cell.place}: {error}") from None


def _inputs(book: Book) -> Iterator[tuple[str, Experiment]]:
    """What runs will read: of every cell the first configuration, with all seeds."""
    plan = book.plan
    for cell in book.cells:
        for seed in plan.tuning.seeds if cell.is_tuned else []:
            yield str(cell.place), cell.wanted(cell.first[0], "tuning", seed).experiment
        for seed in plan.report.seeds:
            yield str(cell.place), cell.wanted(cell.first[0], "report", seed).experiment


def check_stored(book: Book) -> None:
    """Refuse to take finished runs of other images than there are now.

    Raises:
        UserError: with the ways to go on.
    """
    book.standings()  # finds them
    if book.stored:
        say_next("comparing images with those of the runs that are there")
        runs = [(RunFolder(book.folder(k)), each.experiment) for k, each in book.stored.items()]
        check_current(runs, "remove these folders, or set FEDRAY_RESULTS to another place")


# --- which invocation ----------------------------------------------------------------------------


def begin_or_resume(args: argparse.Namespace) -> Book:
    """The book of a new invocation, not yet on disk, or of the one to go on with.

    The folder of a new one has yet to be reserved, unless it was named.

    Raises:
        UserError: when the command line contradicts itself or what is resumed.
    """
    if args.table is None:
        raise UserError(
            f"name a table: {', '.join(names('tables')) or 'there is none in ./tune/tables'}"
        )
    if args.resume:
        return _resume(args)
    plan = plan_table(args.table, args.set, args.scale, args.plugin)
    home = _new_home(args, plan)
    published = [Published.read(str(path), _table_json(path)) for path in args.published]
    return Book(home, plan, tables_runs(), command=_command(args), published=published)


def _table_json(path: Path) -> Path:
    """The file of a published table, whose folder may be given."""
    return path if path.suffix == ".json" else path / DATA


def _new_home(args: argparse.Namespace, plan: TablePlan) -> Path:
    if args.out is not None:
        home: Path = args.out.resolve()
        if (home / FILE).exists():
            raise UserError(f"{home} already holds a table; go on with --resume, or name another")
        check_owner(home)
        return home
    return tables_home() / plan.table / stamp()


def _command(args: argparse.Namespace) -> str:
    words = [args.table, *args.set]
    if args.scale:
        words += ["--scale", args.scale]
    for path in args.published:
        words += ["--from", str(path)]
    for plugin in args.plugin:
        words += ["--plugin", plugin]
    return " ".join(["python -m fedray.table", *map(shlex.quote, words)])


def _resume(args: argparse.Namespace) -> Book:
    name = Path(args.table).stem
    home = begun_folder(args.out, tables_home() / name, FILE, "table")
    book = Book.read(home)
    if book.plan.table != name:
        raise UserError(f"{home} holds table {book.plan.table}, not {name}")
    if book.status == "finished":
        raise UserError(f"{home} is finished; start without --resume")
    if not args.plugin:
        RunFolder(home).check_plugins(plugins_of(book.plan))
    if args.published:
        raise UserError(f"--from: {home} has begun; what it takes over was settled then")
    if not _is_as_begun(args, book):
        raise UserError(
            f"--resume: {home} was started with other words; pass what it was started with "
            f"({book.command}), or nothing but --resume"
        )
    book.try_again()
    return book


def _is_as_begun(args: argparse.Namespace, book: Book) -> bool:
    """Whether a command line asks for nothing else than what a table was begun with.

    The table's file may have changed since: what is run is the plan that was made of it.
    """
    begun = parser().parse_intermixed_args(shlex.split(book.command)[3:])
    now, then = (dict(parse_assignments(words)) for words in (args.set, begun.set))
    if now not in ({}, then) or args.scale not in (None, book.plan.scale):
        return False
    if not args.plugin:
        return True
    again = plan_table(args.table, args.set, book.plan.scale, args.plugin)
    return plugins_of(again) == plugins_of(book.plan)


def as_it_is_now(book: Book) -> Book:
    """A book as another process may have left it before its folder was ours alone.

    Raises:
        UserError: when nothing is left to do.
    """
    now = Book.read(book.home)
    if now.status == "finished":
        raise UserError(f"{now.home} was finished by another process meanwhile")
    now.try_again()
    return now


def keep_file(name: str, book: Book) -> None:
    """Keep the table's file, comments and all, and its plug-ins, with its first results."""
    keep_yaml(name, "table", book.home / "table.yaml")
    RunFolder(book.home).write_plugins(plugins_of(book.plan))


def plugins_of(plan: TablePlan) -> tuple[Plugin, ...]:
    """With their texts; all experiments of a table have the same."""
    return read_plugins(next(iter(plan.bases.values())).get("plugins", ()))


# --- running -------------------------------------------------------------------------------------


def run(book: Book, concurrent: int, *, tracks: bool) -> int:
    """Run what is left of a table and write its page; returns the exit code."""
    from fedray.tables.runs import TableRuns, cell_metrics

    book.write()
    tracker = tracker_for(book.plan.table, book.home, book.plan.answers) if tracks else None
    runs = TableRuns(book, tracker) if tracker is not None else None
    metrics: CellMetrics = {}
    try:
        if not book.is_complete:
            train(book, runs, concurrent)
        code = finish(book, tracks=tracks)
        metrics = cell_metrics(outcome(book)) if code == 0 else {}
        if tracker is not None:
            print(f"compare: {tracker.hint}")
        return code
    except KeyboardInterrupt as stop:
        say_stopped(stop, how_to_go_on(book, tracks=tracks))
        raise
    finally:
        if runs is not None and tracker is not None:
            runs.end(metrics)
            tracker.close()


def train(book: Book, runs: TableRuns | None, concurrent: int) -> None:
    """Run what is left, so many at a time; the page is written as cells end."""
    from fedray.sweep.watch import SweepProgress
    from fedray.tables.runner import TableWatcher, fit

    with SweepProgress(book, concurrent) as show:
        watcher = TableWatcher(book, runs, show, lambda: write_page(book, outcome(book)))
        fit(book, watcher, concurrent)
        while watcher.take_again():
            fit(book, watcher, concurrent)


def how_to_go_on(book: Book, *, tracks: bool) -> str:
    """The command that runs what is left of a table."""
    table, home = book.plan.table, book.home
    where = [] if home.parent == tables_home() / table else ["--out", home]
    return go_on_with("fedray.table", table, "--resume", *where, *untracked(tracks=tracks))


def finish(book: Book, *, tracks: bool) -> int:
    """Write and print what the table comes to; returns the exit code."""
    from fedray.render.terminal import print_sections

    whole = book.is_complete
    found = outcome(book)
    if whole:
        book.status = "finished"
    print()
    print_sections(write_page(book, found))
    if not whole:
        print(f"interrupted; {how_to_go_on(book, tracks=tracks)}", file=sys.stderr)
        book.write()
        return INTERRUPTED
    print(f"page: {book.home / PAGE} (also .html, .tex, .json, figure.png)")
    book.write()  # at last: a table that is killed while it concludes can be resumed
    if all(cell.standing.phase == "failed" for cell in found.cells.values()):
        print(f"failed: no cell came through: {'; '.join(book.reasons)}", file=sys.stderr)
        return RUN_ERROR
    return 0


def write_page(book: Book, found: Outcome) -> list[Section]:
    """Write the table in every form; returns the page."""
    from fedray.render.table import write
    from fedray.tables.record import made, table_json

    how = made(book, found)
    sections = write(found, how, book.home)
    write_json(book.home / DATA, sealed(table_json(book, found, how)))
    seeds = [seed for cell in found.cells.values() for seed in cell.seeds if not seed.reason]
    write_run_list(book.home, [book.folder(seed.key) for seed in seeds])
    return sections
