"""A plug-in: the name of a module and the texts of its files."""

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
        folder: where its files were read: for messages, tracebacks and `__file__`.
        files: the text of each file by its path below `folder`, such as "mine/method.py": the
            file, or all of the package; empty for an installed module, which does not travel.
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
            raise ValueError(f"{self.module!r} is no module's name")
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
                f"the text of plug-in {self.module} is not the one that its sha256 names; to use "
                "another text, give its file"
            )
        object.__setattr__(self, "sha256", digest)

    @property
    def name(self) -> str:
        """The name of the top-level module."""
        return self.module.partition(".")[0]

    @property
    def is_shipped(self) -> bool:
        """True if the text travels with the experiment."""
        return bool(self.files)

    @property
    def key(self) -> str:
        """The hash and the folder, which tracebacks name."""
        return f"{self.sha256} {self.folder}"

    @property
    def label(self) -> str:
        """The name for messages: the file or the module."""
        return f"{self.name}.py" if f"{self.name}.py" in self.files else self.module

    @property
    def given(self) -> str:
        """The value of `--plugin` for it: a file, or the name of an installed module."""
        file = self.file_of(self.module)
        return self.module if file is None else self.path_of(file)

    def file_of(self, module: str) -> str | None:
        """Return the file that holds a module's text; None if the plug-in has no such module."""
        inner = module.replace(".", "/")
        return next((f for f in (f"{inner}.py", f"{inner}/__init__.py") if f in self.files), None)

    def path_of(self, file: str) -> str:
        """Return the path that a file was read from."""
        return str(Path(self.folder) / file)


def hash_of(module: str, files: Mapping[str, str]) -> str:
    """Return the SHA-256 of a plug-in's module name and files."""
    what = json.dumps([module, sorted(files.items())])
    return hashlib.sha256(what.encode()).hexdigest()
