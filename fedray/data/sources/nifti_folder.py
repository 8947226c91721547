"""Volumes with segmentations, slice by slice: ROOT/<site>/<case>.nii.gz and <case>_segmentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedray.config import Frozen, Seed
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TEST, TRAIN
from fedray.data.sources import Listing, Row, Source, sources
from fedray.data.sources.image_folder import folders_of
from fedray.errors import UserError, one_line
from fedray.streams import Streams

_VOLUME = re.compile(r"(?P<case>.+?)(?P<mask>_seg(?:mentation)?)?\.nii(?:\.gz)?", re.IGNORECASE)
_DARK, _BRIGHT = 0.5, 99.5
"""Percentiles of a volume's values that become 0 and 255; scanners have no common scale."""


class NiftiParams(Frozen):
    """Which slices, and which patients are tested on."""

    slices: Literal["labelled", "all"] = "labelled"
    """labelled: those where anything is segmented; all: the others too."""
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of each site's patients whose slices are the official test images (FedGLCL: 8:2)."""
    seed: Seed = 0
    """The seed of the patients; the run's seed does not change them."""


class _Case(NamedTuple):
    """A patient."""

    site: str
    name: str
    volume: Path
    mask: Path


@sources.add
class NiftiFolder(Source):
    """Slices of volumes with a segmentation: ROOT/<site>/<case>.nii.gz, <case>_segmentation.nii.gz.

    The layout of the multi-site prostate MRI set (Liu et al., 2020), whose six sites are FedGLCL's
    clients. Every transverse slice is an image, in grey; whatever is not 0 in the segmentation is
    foreground. A site is a domain. Volumes are turned to the same orientation and scaled by their
    own percentiles. A patient's slices are all training or all test images. Needs nibabel.
    """

    name = "nifti_folder"
    Params = NiftiParams
    params: NiftiParams

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        return [path for case in _cases(root) for path in (case.volume, case.mask)]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return the slices of every volume, each read when its first slice is reached."""
        cases = _cases(root)
        tested = {site: self._tested(site, cases) for site in {case.site for case in cases}}

        def rows() -> Iterator[Row]:
            for case in cases:
                origin = TEST if case.name in tested[case.site] else TRAIN
                yield from (row._replace(origin=origin) for row in self._slices(case))

        return Listing(("background", "foreground"), rows())

    def _tested(self, site: str, cases: list[_Case]) -> set[str]:
        """Return the names of a site's patients that are tested on."""
        names = [case.name for case in cases if case.site == site]
        held = max(1, round(len(names) * self.params.test_fraction))
        if held >= len(names):
            raise UserError(
                f"data.source=nifti_folder: {site} has {len(names)} patients, of which "
                f"data.source.test_fraction={self.params.test_fraction:g} takes {held} for the "
                "test; both parts need one"
            )
        random = Streams(self.params.seed).numpy(f"patients/{site}")
        return {names[i] for i in random.permutation(len(names))[:held]}

    def _slices(self, case: _Case) -> Iterator[Row]:
        """Yield every slice that is taken, from below, without its split."""
        volume, mask = _read(case.volume), _read(case.mask)
        if volume.shape != mask.shape:
            raise UserError(
                f"{case.mask} has {_size(mask)} voxels, its volume {case.volume} {_size(volume)}; "
                "make them equal"
            )
        dark, bright = np.percentile(volume, [_DARK, _BRIGHT])
        scaled = np.clip((volume - dark) / max(bright - dark, 1e-12), 0, 1) * 255
        for number in range(volume.shape[2]):
            labelled = mask[:, :, number] != 0
            if self.params.slices == "all" or labelled.any():
                # x to the right, and y, which grows to the front, upwards
                image = np.rint(scaled[:, :, number]).astype(np.uint8).T[::-1]
                ids = labelled.astype(np.uint8).T[::-1]
                where = f"{case.volume}, slice {number}"
                yield Row(
                    np.ascontiguousarray(image), domain=case.site, mask=ids.copy(), where=where
                )


def _cases(root: Path) -> list[_Case]:
    """Return every patient, by site and name."""
    cases = [
        _case(site, name, pair) for site in folders_of(root) for name, pair in _pairs(site).items()
    ]
    if not cases:
        raise UserError(
            f"data.root={root} holds no volumes; expected <site>/<case>.nii.gz and "
            "<site>/<case>_segmentation.nii.gz below it"
        )
    return cases


def _pairs(site: Path) -> dict[str, dict[bool, Path]]:
    """Return by patient its volume (False) and its segmentation (True), as far as there are."""
    found: dict[str, dict[bool, Path]] = {}
    for path in sorted(site.iterdir()):
        match = _VOLUME.fullmatch(path.name)
        if match is None:
            continue
        pair = found.setdefault(match["case"], {})
        other = pair.setdefault(match["mask"] is not None, path)
        if other is not path:
            raise UserError(f"{path} is there twice, as {other.name} too; remove one of them")
    return found


def _case(site: Path, name: str, pair: dict[bool, Path]) -> _Case:
    if len(pair) < 2:
        what, alone = "volume" if True in pair else "segmentation", next(iter(pair.values()))
        raise UserError(
            f"{alone} has no {what}; expected {site.name}/{name}.nii.gz and "
            f"{site.name}/{name}_segmentation.nii.gz"
        )
    return _Case(site.name, name, pair[False], pair[True])


def _read(path: Path) -> NDArray[np.float32]:
    """Return the values [x, y, z] of a volume, to the right, to the front and upwards."""
    try:
        import nibabel
    except ImportError:
        raise UserError(
            "data.source=nifti_folder needs nibabel: pip install 'fedray[medical]'"
        ) from None
    try:
        image: Any = nibabel.as_closest_canonical(nibabel.load(path))
        values = np.asarray(image.dataobj, dtype=np.float32)
    except Exception as error:  # its readers raise anything
        raise UserError(f"{path} cannot be read as NIfTI: {one_line(error)}; mend it") from None
    if values.ndim == 4 and values.shape[3] == 1:
        values = values[..., 0]
    if values.ndim != 3 or not values.size or not np.isfinite(values).all():
        raise UserError(f"{path} has {_size(values)} voxels, expected three sides of finite values")
    return values


def _size(values: NDArray[np.float32]) -> str:
    return "x".join(map(str, values.shape))
