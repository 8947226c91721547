"""Whether finished runs are of the images, texts and weights that are there now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.config import Experiment
from fedray.data.federated import base_classes
from fedray.errors import UserError
from fedray.plugins import use
from fedray.records import RunFolder, RunInfo
from fedray.runtime.assembly import read_images
from fedray.runtime.outside import changed_files, outside_files, said

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """Images as they are now.

    Attributes:
        sha256: content of images and labels.
        class_names: all of them.
    """

    sha256: str
    class_names: tuple[str, ...]


class Contents:
    """What experiments would read now; every set of images is looked at once.

    What cannot be read is said, and no reason not to take a result as it is.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], Seen | None] = {}
        self._unread: set[str] = set()

    def changed(self, experiment: Experiment, info: RunInfo) -> str | None:
        """What a run has read that is another by now; None where nothing is known to be.

        Args:
            experiment: the run's.
            info: what determined its numbers.
        """
        use(experiment.plugins)
        images = self._images(experiment)
        if images is None or info.data_sha256 is None:
            return None
        if images.sha256 != info.data_sha256:
            keys = experiment.data
            where = f"data.root={keys.root}" if keys.root else f"data.source={keys.source.name}"
            return f"images or labels of {where}"
        files = self._changed_files(experiment, info, images)
        return said(files[0], experiment) if files else None

    def _images(self, experiment: Experiment) -> Seen | None:
        keys = experiment.data.model_copy(update={"download": False})
        key = (
            keys.model_dump_json(include=_OF_IMAGES, by_alias=True),
            *(plugin.sha256 for plugin in experiment.plugins),
        )
        if key not in self._seen:
            try:
                found = read_images(keys)
                self._seen[key] = Seen(found.sha256, found.class_names)
            except UserError as error:
                self._seen[key] = None
                self._say(error)
        return self._seen[key]

    def _changed_files(self, experiment: Experiment, info: RunInfo, images: Seen) -> list[str]:
        if not info.files_sha256:
            return []
        names = images.class_names
        if experiment.data.novel:
            names = names[: base_classes(len(names))]
        try:
            return changed_files(info.files_sha256, outside_files(experiment, names))
        except UserError as error:
            self._say(error)
            return []

    def _say(self, error: UserError) -> None:
        if str(error) not in self._unread:
            self._unread.add(str(error))
            log.warning("finished runs are taken as they are, not compared: %s", error)


_OF_IMAGES = {"source", "root", "image_size", "channels", "split", "resize", "classes"}
"""Keys of `data` that decide what is decoded."""


@dataclass(frozen=True)
class Changed:
    """Finished runs that have read something else than is there now.

    Attributes:
        folders: theirs.
        what: the first one has read.
    """

    folders: Sequence[Path]
    what: str

    def names(self, home: Path, most: int = 10) -> str:
        """The folders below `home`, so many of them: "a, b and 3 more"."""
        shown = ", ".join(str(folder.relative_to(home)) for folder in self.folders[:most])
        more = len(self.folders) - most
        return f"{shown} and {more} more" if more > 0 else shown


def find_changed(runs: Iterable[tuple[Path, Experiment]]) -> Changed | None:
    """The finished runs that have read what is another by now; None where there are none.

    Args:
        runs: folders and experiments.

    Raises:
        UserError: when a result is damaged.
    """
    contents, found = Contents(), list[tuple[Path, str]]()
    for folder, experiment in runs:
        what = contents.changed(experiment, RunFolder(folder).read().info)
        if what is not None:
            found.append((folder, what))
    return Changed([folder for folder, _ in found], found[0][1]) if found else None
