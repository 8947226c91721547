"""The states of one run: its process holds those that were used last, and where the others rest.

Nothing here costs time or memory for a client that is not asked for, but for a reference to where
its state rests. What a checkpoint names stays until the next one is whole; any other version of a
state goes, with its file, once nobody can come back to it.
"""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedray.core import ClientState
from fedray.files import sync
from fedray.records import own_entries
from fedray.states.index import IndexLog
from fedray.states.segments import (
    Place,
    SegmentWriter,
    check_state,
    damaged,
    read_state,
    state_size,
)

MEMORY = 512 * 2**20
"""Bytes of states that a process keeps at hand; the others it reads where they rest."""


class Version:
    """One state of one client, at hand, at rest or both.

    Attributes:
        client: whose.
        value: the state, where it is at hand.
        size: its bytes.
        place: where it rests, if it does.
        is_named: whether a checkpoint has named it, so that it is on the disk.
        holders: how many there are who may come back to it.
    """

    __slots__ = ("client", "holders", "is_named", "place", "size", "value")

    def __init__(self, client: int, value: ClientState | None, place: Place | None) -> None:
        self.client = client
        self.value = value
        self.size = 0 if value is None else state_size(value)
        self.place = place
        self.is_named = False
        self.holders = 0


class StateStore(Mapping[int, ClientState]):
    """Clients' states by id; a client that never stepped has none.

    Args:
        folder: where they rest; None: in a temporary one, made when it is needed.
        memory: bytes of states that are kept at hand.
    """

    def __init__(self, folder: Path | None = None, memory: int = MEMORY) -> None:
        self._folder = None if folder is None else folder.absolute()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._memory = memory
        self._token, self._numbers = secrets.token_hex(4), itertools.count()
        self._versions: dict[int, Version] = {}
        self._at_hand: dict[Version, None] = {}  # those used last at the end
        self._bytes_at_hand = 0
        self._files = Files(self._remove)
        self._held: dict[int, Version | None] | None = None
        self._since: dict[int, Version | None] = {}
        self._log: IndexLog | None = None
        self._named = ""  # the index's file that the last whole checkpoint names

    @property
    def folder(self) -> Path:
        """Where states rest."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedray-states-")
            self._folder = Path(self._temporary.name)
        return self._folder

    def __getitem__(self, client: int) -> ClientState:
        """A client's state.

        Raises:
            KeyError: when it has none.
            UserError: when its file is damaged.
        """
        found = self.find(client)
        if found is None:
            raise KeyError(client)
        return read_state(self.folder, found) if isinstance(found, Place) else found

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._versions))

    def __len__(self) -> int:
        return len(self._versions)

    def find(self, client: int) -> ClientState | Place | None:
        """A client's state if it is at hand, else where it rests, if it has one."""
        version = self._versions.get(client)
        if version is None:
            return None
        if version.value is None:
            return version.place
        del self._at_hand[version]
        self._at_hand[version] = None
        return version.value

    def put(self, client: int, state: ClientState) -> None:
        """Take a client's next state.

        Raises:
            OSError: when those that have to make room cannot be written.
        """
        version = Version(client, state, None)
        self._replace(version)
        self._at_hand[version] = None
        self._bytes_at_hand += version.size
        if self._bytes_at_hand > self._memory:
            self._make_room()

    def put_to_rest(self, client: int, state: ClientState | Place) -> None:
        """Take a client's next state that shall not be kept at hand, or has been written.

        Raises:
            OSError: when it cannot be written.
        """
        if not isinstance(state, Place):
            with SegmentWriter(self.folder, self.new_name) as writer:
                state = writer.add(state)
        version = Version(client, None, state)
        self._replace(version)
        self._files.join(version)

    def new_name(self) -> str:
        """A name that no file of a state ever had."""
        return f"{self._token}-{next(self._numbers)}.states"

    # --- back to earlier ones ---------------------------------------------------------------------

    def hold(self) -> None:
        """Remember the states as they are, until the next call."""
        self._release(self._held or {})
        self._held = {}

    def revert(self) -> None:
        """Go back to the states as they were held."""
        for client in self._held or ():
            self._note(self._since, client)
        self._go_back(self._held or {})
        self._held = {}

    def close(self) -> None:
        """Let all states go but those of the last checkpoint, which are on the disk."""
        self._release(self._held or {})
        self._held = None
        self._go_back(self._since)
        self._since = {}
        self._at_hand.clear()
        self._bytes_at_hand = 0
        for version in self._versions.values():
            version.value = None
        if self._temporary is not None:
            self._versions.clear()
            self._temporary.cleanup()
            self._folder = self._temporary = None

    def _replace(self, version: Version) -> None:
        client = version.client
        for journal in (self._held, self._since):
            self._note(journal, client)
        before = self._versions.get(client)
        self._versions[client] = version
        _hold(version)
        self._release({client: before})

    def _note(self, journal: dict[int, Version | None] | None, client: int) -> None:
        """Keep the version that is about to change, where it is the one to come back to."""
        if journal is not None and client not in journal:
            journal[client] = self._versions.get(client)
            _hold(journal[client])

    def _go_back(self, journal: Mapping[int, Version | None]) -> None:
        for client, before in journal.items():
            self._release({client: self._versions.pop(client, None)})
            if before is not None:
                self._versions[client] = before

    def _release(self, versions: Mapping[int, Version | None]) -> None:
        """Let go of what nobody can come back to."""
        for version in versions.values():
            if version is None:
                continue
            version.holders -= 1
            if version.holders == 0:
                self._let_go(version)
                self._files.leave(version)

    def _let_go(self, version: Version) -> None:
        """Keep a version at hand no longer."""
        if version.value is not None:
            version.value = None
            del self._at_hand[version]
            self._bytes_at_hand -= version.size

    def _make_room(self) -> None:
        """Put what was not used for longest to rest, a quarter of the memory at once."""
        leaving, left = [], self._bytes_at_hand
        for version in self._at_hand:
            if left <= self._memory * 3 // 4:
                break
            leaving.append(version)
            left -= version.size
        with SegmentWriter(self.folder, self.new_name) as writer:
            for version in leaving:
                if version.place is None and version.value is not None:
                    version.place = writer.add(version.value)
                    self._files.join(version)
        for version in leaving:
            self._let_go(version)

    def _remove(self, name: str) -> None:
        with suppress(OSError):  # what is left is removed when the run begins again
            (self.folder / name).unlink(missing_ok=True)

    # --- checkpoints ------------------------------------------------------------------------------

    def begin(self) -> Saving:
        """Begin to save what has changed since the last time; `finish` or `abandon` follows."""
        before, self._since = self._since, {}
        changed = {client: self._versions.get(client) for client in before}
        moved = {
            version.client: version
            for version in self._files.take_sparse()
            if self._versions.get(version.client) is version
        }
        log = self._log or IndexLog(self.folder)
        is_whole = log.is_due(len(self._versions))
        chosen = {**changed, **moved, **(self._versions if is_whole else {})}
        items = [
            _Item(client, version, client in moved) for client, version in sorted(chosen.items())
        ]
        for version in chosen.values():
            _hold(version)
        name = f"{self._token}-{next(self._numbers)}.jsonl" if is_whole else ""
        return Saving(self.folder, log, items, before, name, self.new_name)

    def finish(self, saving: Saving) -> None:
        """Go on after a checkpoint that names what was saved is whole."""
        for item in saving.items:
            if item.version is not None and item.place is not None:
                if item.version.place != item.place:
                    self._files.leave(item.version)
                    item.version.place = item.place
                    self._files.join(item.version)
                item.version.is_named = True
        if self._named not in ("", saving.log.name):
            self._remove(self._named)
        self._log, self._named = saving.log, saving.log.name
        self._release(saving.before)
        for item in saving.items:
            self._release({item.client: item.version})

    def abandon(self, saving: Saving) -> None:
        """Go on after nothing was saved: the checkpoint before is still the one to come back to."""
        for item in saving.items:
            self._release({item.client: item.version})
        for client, before in saving.before.items():
            if client in self._since:
                self._release({client: self._since[client]})
            self._since[client] = before
        for name in saving.files:
            self._remove(name)
        saving.log.give_up()

    def adopt(self, facts: Mapping[str, Any]) -> None:
        """Take over the states that a checkpoint names, after a look at every byte of them.

        Raises:
            UserError: when a file is damaged or missing.
        """
        try:
            self._log, entries = IndexLog.read(self.folder, facts)
            self._named = self._log.name
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise damaged(self.folder / str(facts["file"]), error) from None
        for client, place in entries.items():
            check_state(self.folder, place)
            version = Version(client, None, place)
            version.is_named = True
            _hold(version)
            self._versions[client] = version
            self._files.join(version)

    def unused_files(self) -> list[str]:
        """The names of files that nobody needs: what was begun by a process that was killed."""
        if self._folder is None or not self._folder.is_dir():
            return []
        names = [path.name for path in own_entries(self._folder, "checkpoints/states")]
        return sorted(name for name in names if name != self._named and name not in self._files)

    def tidy(self) -> None:
        """Remove them."""
        for name in self.unused_files():
            self._remove(name)


class _Item:
    """A client's state on its way into a checkpoint."""

    def __init__(self, client: int, version: Version | None, is_moved: bool) -> None:
        self.client = client
        self.version = version
        self.value = None if version is None else version.value
        self.place = None if version is None else version.place
        self.is_named = version is not None and version.is_named and not is_moved
        self.is_moved = is_moved


class Saving:
    """What a checkpoint is to name; `write` may run beside the next round.

    Attributes:
        items: the clients whose states changed, or move.
        before: the states that they had at the last checkpoint.
        files: the names of the files that were written.
        log: the index with these items, once they are written.
    """

    def __init__(
        self,
        folder: Path,
        log: IndexLog,
        items: list[_Item],
        before: Mapping[int, Version | None],
        new_log: str,
        new_name: Callable[[], str],
    ) -> None:
        self._folder = folder
        self._new_log = new_log
        self._new_name = new_name
        self.log = log
        self.items = items
        self.before = before
        self.files: list[str] = []

    def write(self) -> dict[str, Any]:
        """Have all states, and the index, on the disk; what the checkpoint says of it.

        Raises:
            OSError: when that cannot be done.
        """
        writer = SegmentWriter(self._folder, self._new_name)
        self.files = writer.files
        with writer:
            for item in self.items:
                if item.place is not None and item.is_moved:
                    item.place = writer.add(read_state(self._folder, item.place))
                elif item.place is None and item.value is not None:
                    item.place = writer.add(item.value)
        places = [item.place for item in self.items if item.place and not item.is_named]
        new = {name for place in places for name in (place.file, *place.shared)}
        for name in sorted(new):
            sync(self._folder / name)
        entries = {item.client: item.place for item in self.items}
        if self._new_log:
            self.files.append(self._new_log)
        self.log.append(entries, self._new_log)
        sync(self._folder)
        return self.log.facts()


class Files:
    """Which versions have something in which file.

    Args:
        remove: called with the name of a file that nobody has anything in any more.
    """

    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove
        self._members: dict[str, set[Version]] = {}
        self._bytes: dict[str, tuple[int, int]] = {}  # written, and still of use
        self._sparse: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def join(self, version: Version) -> None:
        """Count a version that rests somewhere."""
        for name in _names(version):
            self._members.setdefault(name, set()).add(version)
        assert version.place is not None
        written, used = self._bytes.get(version.place.file, (0, 0))
        length = version.place.length
        self._bytes[version.place.file] = written + length, used + length

    def leave(self, version: Version) -> None:
        """Count a version no more; files that nobody is in are removed."""
        if version.place is None:
            return
        written, used = self._bytes[version.place.file]
        self._bytes[version.place.file] = written, used - version.place.length
        if 2 * (used - version.place.length) < written:
            self._sparse.add(version.place.file)
        for name in _names(version):
            members = self._members[name]
            members.discard(version)
            if not members:
                del self._members[name]
                self._bytes.pop(name, None)
                self._sparse.discard(name)
                self._remove(name)

    def take_sparse(self) -> Iterable[Version]:
        """The versions in files that are of little use any more: they should move."""
        found = [version for name in self._sparse for version in self._members[name]]
        self._sparse.clear()
        return found


def _names(version: Version) -> tuple[str, ...]:
    assert version.place is not None
    return (version.place.file, *version.place.shared)


def _hold(version: Version | None) -> None:
    if version is not None:
        version.holders += 1
