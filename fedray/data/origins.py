"""Where files that fedray does not contain come from: addresses, checksums, licences."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints

from fedray.config import Frozen

Checksum = Annotated[str, StringConstraints(pattern=r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$")]


class OriginFile(Frozen):
    """One file to fetch."""

    url: str
    """Its address."""
    bytes: int | None = None
    """Its size; None if unknown."""
    checksum: Checksum | None = None
    """md5:... or sha256:...; None if unknown."""
    unpack: bool = False
    """Whether it is an archive (or a .gz file) whose content is needed."""
    to: str = ""
    """Its place below the set's folder: the folder of an archive's content, the path of any other
    file; "" is the set's folder."""
    top: str = ""
    """The folder in the archive whose content is needed; "" for the whole archive."""
    inner: str = ""
    """An archive in the content that is unpacked, too; "" without one."""
    saved_as: str = ""
    """The file's name, if its address does not end with it."""

    @property
    def name(self) -> str:
        """The name of the file, also if it is fetched by hand."""
        place = "" if self.unpack else self.to
        return self.saved_as or PurePosixPath(place or urlsplit(self.url).path).name


class Origin(Frozen):
    """Where a data set or a model comes from."""

    page: str
    """Its web page."""
    licence: str = ""
    """Its licence, or the terms that the page states; "" if it states none."""
    files: Annotated[tuple[OriginFile, ...], Field(strict=False)] = ()
    """The files to fetch, for the layout that the shipped experiments read."""
    hub: str | None = None
    """Its repository on huggingface.co, which is fetched instead of the files."""
    by_hand: str = ""
    """What to do by hand, where not everything can be fetched."""
