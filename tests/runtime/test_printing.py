"""What methods print on Ray workers is shown with its client; breakpoint() is refused there."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from fedray.errors import UserError
from fedray.federation import Reply
from fedray.runtime.printing import MOST_LINES, Printed, refuse_breakpoint
from fedray.runtime.ray_executor import show_printed


def on_a_worker(monkeypatch) -> tuple[Printed, io.StringIO]:
    """A worker's stream, and what its log holds."""
    log = io.StringIO()
    monkeypatch.setattr(sys, "stdout", log)
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    return Printed(), log


def test_lines_are_taken_once_and_stay_in_the_log(monkeypatch):
    lines, log = on_a_worker(monkeypatch)
    print("loss", 2.5)
    print("a", "b", sep="\n")
    assert lines.take() == ("loss 2.5", "a", "b")
    assert lines.take() == ()
    assert log.getvalue() == "loss 2.5\na\nb\n"


def test_of_many_lines_the_first_are_shown(monkeypatch):
    lines, _ = on_a_worker(monkeypatch)
    for number in range(MOST_LINES + 5):
        print(number)
    shown = lines.take()
    assert len(shown) == MOST_LINES + 1
    assert shown[-1] == "and 5 more lines"


def test_a_breakpoint_names_the_executor_that_has_a_terminal(monkeypatch):
    on_a_worker(monkeypatch)
    assert sys.breakpointhook is refuse_breakpoint
    with pytest.raises(UserError, match="--executor serial"):
        breakpoint()


def test_a_line_is_shown_with_its_client(caplog):
    with caplog.at_level(logging.WARNING):
        show_printed({3: Reply(printed=("loss 2.5", "done")), 4: Reply()})
    assert caplog.messages == ["client 3: loss 2.5", "client 3: done"]
