"""Who rests where: lines that are only ever appended, of which a checkpoint names the first ones.

A line is [client, file, offset, length, checksum, other files], or [client] for one that has no
state any more; the last line about a client holds. Once most lines are about the past, a new file
is begun with those that hold.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedray.records import check_state_file
from fedray.states.segments import Place

SPARE = 4096
"""Lines about the past that are always allowed."""


class IndexLog:
    """The index's file.

    Args:
        folder: of the files of states.
        name: of the file; "" until there is one.
        size: its bytes that count.
        lines: in them.
    """

    def __init__(self, folder: Path, name: str = "", size: int = 0, lines: int = 0) -> None:
        self._folder = folder
        self._digest = hashlib.sha256()
        self._is_spoilt = False
        self.name = name
        self.size = size
        self.lines = lines

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {"file": self.name, "bytes": self.size, "checksum": self._digest.hexdigest()}

    def is_due(self, clients: int) -> bool:
        """Whether the next lines should begin a new file with all `clients`."""
        return not self.name or self._is_spoilt or self.lines > 2 * clients + SPARE

    def give_up(self) -> None:
        """Begin a new file next time: no checkpoint names what was appended last."""
        self._is_spoilt = True

    def append(self, entries: Mapping[int, Place | None], new: str = "") -> None:
        """Append lines, to a new file where a name is given, and have them on the disk.

        Raises:
            OSError: when that cannot be done.
        """
        if new:
            self.name, self.size, self.lines, self._is_spoilt = new, 0, 0, False
            self._digest = hashlib.sha256()
        content = "".join(_lines(entries)).encode()
        path = self._folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        with open(descriptor, "wb") as file:
            file.truncate(self.size)
            file.seek(self.size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(content)
        self.size += len(content)
        self.lines += len(entries)

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> tuple[IndexLog, dict[int, Place]]:
        """The log as a checkpoint says that it was, and who rested where.

        Raises:
            OSError, KeyError, TypeError, ValueError: when it is damaged or missing.
        """
        with (folder / check_state_file(facts["file"])).open("rb") as file:
            content = file.read(facts["bytes"])
        log = cls(folder, facts["file"], len(content), content.count(b"\n"))
        log._digest.update(content)
        if log.facts() != facts:
            raise ValueError("its content does not fit its checksum in meta.json")
        entries: dict[int, Place] = {}
        for line in content.splitlines():
            client, *rest = json.loads(line)
            entries.pop(client, None)
            if rest:
                file_name, offset, length, checksum, shared = rest
                for name in (file_name, *shared):
                    check_state_file(name)
                entries[client] = Place(file_name, offset, length, checksum, tuple(shared))
        return log, entries


def _lines(entries: Mapping[int, Place | None]) -> Iterable[str]:
    for client, place in entries.items():
        yield json.dumps([client, *(place or ())], separators=(",", ":")) + "\n"
