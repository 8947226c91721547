"""The data of a plug-in: the name of a module and the texts of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import ClassVar


@dataclass(frozen=True)
class Plugin:
    """A module of a user.

    Attributes:
        module: the module to import, "mine" or "mine.method".
        folder: the folder of the files, for messages, tracebacks and `__file__`.
        files: the texts of the file, or of all files of the package, by path below `folder`, such
            as "mine/method.py"; empty for an installed module.
        version: the version of an installed module's distribution; else "".
        sha256: hash of module and files; computed if "", except for an installed module.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    module: str
    folder: str
    files: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        if not all(part.isidentifier() for part in self.module.split(".")):
            raise ValueError(f"{self.module!r} is not the name of a module")
        for name in self.files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"the file {name!r} lies outside of the plug-in's folder")
        if not self.files and not self.sha256:
            raise ValueError(f"the plug-in {self.module} has no files")
        if not self.files:
            return
        digest = hash_of(self.module, self.files)
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"the text of plug-in {self.module} does not match its sha256; to use a changed "
                "text, give its file"
            )
        object.__setattr__(self, "sha256", digest)

    @property
    def name(self) -> str:
        """The name of the top-level module."""
        return self.module.partition(".")[0]

    @property
    def is_shipped(self) -> bool:
        """True if the text is sent to workers with the experiment."""
        return bool(self.files)

    @property
    def key(self) -> str:
        """The hash and the folder; identifies a plug-in in this process."""
        return f"{self.sha256} {self.folder}"

    @property
    def label(self) -> str:
        """The name in messages: the file or the module."""
        return f"{self.name}.py" if f"{self.name}.py" in self.files else self.module

    @property
    def given(self) -> str:
        """The value for `--plugin`: a file, or the name of an installed module."""
        file = self.file_of(self.module)
        return self.module if file is None else self.path_of(file)

    def file_of(self, module: str) -> str | None:
        """Return the file with a module's text; None if the plug-in has no such module."""
        inner = module.replace(".", "/")
        return next((f for f in (f"{inner}.py", f"{inner}/__init__.py") if f in self.files), None)

    def path_of(self, file: str) -> str:
        """Return the path that a file was read from."""
        return str(Path(self.folder) / file)


def hash_of(module: str, files: Mapping[str, str]) -> str:
    """Return the SHA-256 of a plug-in's module name and files."""
    content = json.dumps([module, sorted(files.items())])
    return hashlib.sha256(content.encode()).hexdigest()
