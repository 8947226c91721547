"""Volumes with segmentations, slice by slice: ROOT/<site>/<case>.nii.gz and <case>_segmentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedray.base.errors import UserError, one_line
from fedray.base.streams import Streams
from fedray.config import Seed
from fedray.data.decoding import ReadOptions
from fedray.data.folders import folders_of
from fedray.data.imageset import TEST, TRAIN
from fedray.data.sources import Listing, Row, Source, sources

_VOLUME = re.compile(r"(?P<case>.+?)(?P<mask>_seg(?:mentation)?)?\.nii(?:\.gz)?", re.IGNORECASE)
_MOST_SHIFT = 0.5
"""Voxels by which a segmentation may be displaced from its volume, because affines are rounded."""
_MOST_ROUNDING = 1e-3
"""Distance of a label from a whole number, because stored values may be scaled."""
_DARK, _BRIGHT = 0.5, 99.5
"""Percentiles of a volume's values that map to 0 and 255, because scanners have no common scale."""


class _Case(NamedTuple):
    """The files of one patient."""

    site: str
    name: str
    volume: Path
    mask: Path


@sources.add
class NiftiFolder(Source):
    """Slices of volumes with a segmentation: ROOT/<site>/<case>.nii.gz, <case>_segmentation.nii.gz.

    The layout of the multi-site prostate MRI set (Liu et al., 2020), whose six sites are FedGLCL's
    clients. Every transverse slice is a grey image; labels of the segmentation other than 0 are
    foreground. A site is a domain. Volumes are brought to the same orientation, and each is scaled
    by its percentiles. A patient's slices are all training or all test images. Needs nibabel.
    """

    name = "nifti_folder"
    version = 2  # segmentations lie on their volumes

    slices: Literal["labelled", "all"] = "labelled"
    """labelled: only slices with a segmentation; all: every slice."""
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of each site's patients whose slices are official test images (FedGLCL: 8:2)."""
    seed: Seed = 0
    """Seed of the choice of test patients; independent of the run's seed."""

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        return [path for case in _cases(root) for path in (case.volume, case.mask)]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return the slices of every volume."""
        cases = _cases(root)
        tested = {site: self._tested(site, cases) for site in {case.site for case in cases}}
        rows = [
            row._replace(origin=TEST if case.name in tested[case.site] else TRAIN)
            for case in cases
            for row in self._slices(case)
        ]
        return Listing(("background", "foreground"), rows)

    def _tested(self, site: str, cases: list[_Case]) -> set[str]:
        """Return the names of a site's test patients."""
        names = [case.name for case in cases if case.site == site]
        test_count = max(1, round(len(names) * self.test_fraction))
        if test_count >= len(names):
            raise UserError(
                f"data.source.test_fraction={self.test_fraction:g} takes all {len(names)} patients "
                f"of {site} for testing; training needs at least one"
            )
        random = Streams(self.seed).numpy(f"patients/{site}")
        return {names[i] for i in random.permutation(len(names))[:test_count]}

    def _slices(self, case: _Case) -> Iterator[Row]:
        """Yield every selected slice, from the lowest one up, without its split."""
        (volume, place), (mask, mask_place) = _read(case.volume), _read(case.mask)
        fits = volume.shape == mask.shape and _shift(place, mask_place, mask.shape) <= _MOST_SHIFT
        if not fits or np.abs(mask - np.rint(mask)).max() > _MOST_ROUNDING:
            raise UserError(
                f"{case.mask} must have the voxels and the affine of its volume {case.volume}, and "
                "whole numbers as labels, 0 for the background"
            )
        dark, bright = np.percentile(volume, [_DARK, _BRIGHT])
        scaled = np.clip((volume - dark) / max(bright - dark, 1e-12), 0, 1) * 255
        for number in range(volume.shape[2]):
            labelled = np.rint(mask[:, :, number]) != 0
            if self.slices == "all" or labelled.any():
                # x points right; y, which grows to the front, points up
                image = np.rint(scaled[:, :, number]).astype(np.uint8).T[::-1]
                ids = labelled.astype(np.uint8).T[::-1]
                where = f"{case.volume}, slice {number}"
                yield Row(
                    np.ascontiguousarray(image), domain=case.site, mask=ids.copy(), where=where
                )


def _cases(root: Path) -> list[_Case]:
    """Return every patient, ordered by site and name, with a volume and a segmentation."""
    files = dict[tuple[str, str], tuple[list[Path], list[Path]]]()
    for site in folders_of(root):
        for path in sorted(site.iterdir()):
            if match := _VOLUME.fullmatch(path.name):
                volumes, masks = files.setdefault((site.name, match["case"]), ([], []))
                (masks if match["mask"] else volumes).append(path)
    for (site_name, name), (volumes, masks) in files.items():
        if (len(volumes), len(masks)) != (1, 1):
            raise UserError(
                f"{root / site_name}: {name} has {len(volumes)} volumes and {len(masks)} "
                f"segmentations; expected {name}.nii.gz and {name}_segmentation.nii.gz"
            )
    return [_Case(*key, *volumes, *masks) for key, (volumes, masks) in files.items()]


def _shift(one: NDArray[np.float64], other: NDArray[np.float64], shape: Sequence[int]) -> float:
    """Return the largest distance, in voxels, between a voxel's places by two affines."""
    corners = np.array([(*corner, 1) for corner in product(*((0, n - 1) for n in shape))]).T
    return float(np.abs(np.linalg.solve(one, other @ corners) - corners).max())


def _read(path: Path) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return a volume's values [x, y, z] and affine; axes point right, to the front, and up."""
    try:
        import nibabel
    except ImportError:
        raise UserError(
            "data.source=nifti_folder needs nibabel: pip install 'fedray[medical]'"
        ) from None
    try:
        image: Any = nibabel.as_closest_canonical(nibabel.load(path))
        values = np.asarray(image.dataobj, dtype=np.float32)
    except Exception as error:  # nibabel's readers raise many types
        raise UserError(f"{path} cannot be read as NIfTI: {one_line(error)}; replace it") from None
    if values.ndim == 4 and values.shape[3] == 1:
        values = values[..., 0]
    if values.ndim != 3 or not values.size or not np.isfinite(values).all():
        raise UserError(
            f"{path} has voxels of shape {values.shape}, expected three dimensions of finite values"
        )
    return values, np.asarray(image.affine, np.float64)
