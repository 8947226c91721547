"""Where files that fedray does not contain come from: addresses, checksums, licences."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints

from fedray.config import Frozen

Checksum = Annotated[str, StringConstraints(pattern=r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$")]


class OriginFile(Frozen):
    """One file to fetch.

    Attributes:
        url: its address.
        bytes: its size; None if unknown.
        checksum: "md5:..." or "sha256:..."; None if unknown.
        unpack: whether it is an archive (or a .gz file) whose content is needed.
        to: where it belongs below the set's folder: the folder of an archive's content, the path
            of any other file; "" is the set's folder, or the file's own name in it.
        top: the folder in the archive whose content is needed; "" for the whole archive.
        inner: an archive in the content that is unpacked, too; "" without one.
        saved_as: the file's name if its address does not end with it.
    """

    url: str
    bytes: int | None = None
    checksum: Checksum | None = None
    unpack: bool = False
    to: str = ""
    top: str = ""
    inner: str = ""
    saved_as: str = ""

    @property
    def name(self) -> str:
        """The name of the file, also if it is fetched by hand."""
        place = "" if self.unpack else self.to
        return self.saved_as or PurePosixPath(place or urlsplit(self.url).path).name


class Origin(Frozen):
    """Where a data set or a model comes from.

    Attributes:
        page: its web page.
        licence: its licence, or the terms that the page states; "" if it states none.
        files: the files to fetch, for the layout that the shipped experiments read.
        hub: its repository on huggingface.co; None if it has none in that layout.
        by_hand: what to do by hand if nothing can be fetched.
    """

    page: str
    licence: str = ""
    files: Annotated[tuple[OriginFile, ...], Field(strict=False)] = ()
    hub: str | None = None
    by_hand: str = ""
