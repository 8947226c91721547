"""What every analysis refuses in one sentence."""

from __future__ import annotations

import pytest
from commands import analyse


@pytest.fixture
def refused(capsys):
    """`refused(words...)` runs an analysis; gives the sentence with which it is refused."""

    def refused(*words: object) -> str:
        capsys.readouterr()
        assert analyse([str(word) for word in words]) == 2
        printed: str = capsys.readouterr().err
        assert len(printed.splitlines()) == 1
        return printed

    return refused
