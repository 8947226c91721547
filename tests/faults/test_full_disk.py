"""A full disk stops a run with one sentence."""

from __future__ import annotations

import errno

import pytest

from fedray.base.errors import RunFailed
from fedray.storage.files import explain_disk_full


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_whatever_says_that_the_disk_is_full_is_one_sentence(tmp_path, error):
    with (
        pytest.raises(RunFailed, match=r"cannot be written.*--resume"),
        explain_disk_full(tmp_path),
    ):
        raise error


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(KeyError), explain_disk_full(tmp_path):
        raise KeyError("No space")
