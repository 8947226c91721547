"""What every door promises for what a user can mend: one line, which names the file or the key.

`fedray.command` turns such an error into exit code 2, whatever its words (`test_command.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fedray.base.errors import UserError
from fedray.cli.main import main


def refused(action: Callable[[], object], *named: str) -> None:
    """Assert that an action ends in one line that names these."""
    with pytest.raises(UserError) as caught:
        action()
    check_line(str(caught.value), *named)


def refused_command(words: Sequence[str], capsys: pytest.CaptureFixture[str], *named: str) -> None:
    """Assert that `fedray WORDS` ends with exit code 2 and one line that names these."""
    capsys.readouterr()
    assert main([*words]) == 2
    check_line(capsys.readouterr().err.rstrip("\n"), *named)


def check_line(said: str, *named: str) -> None:
    """Assert that a message is one short line with these words."""
    assert "\n" not in said
    assert len(said) < 2000
    for each in named:
        assert each in said
