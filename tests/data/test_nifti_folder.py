"""Volumes by slices: orientation, the split by patient, and one sentence for what is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedray.base.errors import UserError
from fedray.data import ReadOptions, load_images
from fedray.data.imageset import TEST

nibabel = pytest.importorskip("nibabel")


def save(path, values, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = np.eye(4) if affine is None else affine
    nibabel.Nifti1Image(np.asarray(values, np.float32), affine).to_filename(path)


def patient(folder, name, seed=0, *, affine=None, foreground=1, suffix="_segmentation"):
    """A volume [6, 5, 4] whose values grow along x; two of its slices are segmented."""
    x, y, z = np.meshgrid(np.arange(6), np.arange(5), np.arange(4), indexing="ij")
    mask = np.zeros((6, 5, 4))
    mask[1:3, 2:5, 1:3] = foreground
    save(folder / f"{name}.nii.gz", 100 * x + 10 * y + z + seed, affine)
    save(folder / f"{name}{suffix}.nii.gz", mask, affine)


@pytest.fixture
def root(tmp_path):
    for site, count in (("BIDMC", 5), ("UCL", 10)):
        for number in range(count):
            patient(tmp_path / "mri" / site, f"Case{number:02d}", number, foreground=1 + number % 2)
    return tmp_path / "mri"


def test_labelled_slices_are_images_and_sites_are_domains(root):
    found = load_images("nifti_folder", root)
    assert found.images.shape == (15 * 2, 1, 5, 6)
    assert found.class_names == ("background", "foreground")
    assert found.domains.names == ("BIDMC", "UCL")
    assert np.bincount(found.domains.ids).tolist() == [10, 20]
    assert set(found.labels.tolist()) == {1}
    # x to the right, y upwards: what is segmented is at columns 1 and 2, rows 0 to 2 from above
    expected = np.zeros((5, 6), np.uint8)
    expected[0:3, 1:3] = 1
    assert all(np.array_equal(mask, expected) for mask in found.masks)
    assert bool((np.diff(found.images[0, 0].astype(int), axis=1) > 0).all())
    assert bool((np.diff(found.images[0, 0].astype(int), axis=0) <= 0).all())
    assert found.images.min() == 0


def test_a_patient_is_trained_or_tested_on_and_the_choice_is_kept(root):
    found = load_images("nifti_folder", root)
    by_patient = found.origin.reshape(-1, 2)
    assert bool((by_patient[:, 0] == by_patient[:, 1]).all())
    assert (by_patient[:5, 0] == TEST).sum() == 1
    assert (by_patient[5:, 0] == TEST).sum() == 2
    again = load_images("nifti_folder", root, ReadOptions(image_size=8))
    assert np.array_equal(again.origin, found.origin)


def test_all_slices_and_another_choice_of_patients(root):
    from fedray.config import component

    every = load_images(component("data source", "nifti_folder", slices="all"), root)
    assert len(every) == 15 * 4
    assert set(every.labels.tolist()) == {0, 1}
    origins = {
        load_images(component("data source", "nifti_folder", seed=s), root).origin.tobytes()
        for s in range(4)
    }
    assert len(origins) > 1


def test_sites_with_other_orientations_are_turned(tmp_path):
    patient(tmp_path / "a" / "one", "Case00")
    patient(tmp_path / "a" / "one", "Case01")
    flipped = np.diag([-1.0, -1.0, 1.0, 1.0])
    for number in range(2):
        patient(tmp_path / "b" / "one", f"Case0{number}", affine=flipped)
    one, other = (load_images("nifti_folder", tmp_path / name) for name in "ab")
    assert np.array_equal(other.masks, one.masks[:, ::-1, ::-1])


def test_images_are_scaled_with_their_masks(root):
    found = load_images("nifti_folder", root, ReadOptions(image_size=10, channels=3))
    assert found.images.shape == (30, 3, 10, 10)
    assert found.masks.shape == (30, 10, 10)
    assert set(np.unique(found.masks)) == {0, 1}


def break_shape(root):
    save(root / "UCL" / "Case00_segmentation.nii.gz", np.ones((6, 5, 3)))


def lose_mask(root):
    (root / "UCL" / "Case00_segmentation.nii.gz").unlink()


def no_volume(root):
    (root / "UCL" / "Case00.nii.gz").write_bytes(b"nothing")


def twice(root):
    (root / "UCL" / "Case00.nii").write_bytes(b"x")


def empty(root):
    for path in root.glob("*/*"):
        path.unlink()


def one_patient(root):
    for path in (root / "UCL").glob("Case0[1-9]*"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (break_shape, "Case00_segmentation.nii.gz"),
        (lose_mask, "UCL: Case00 has 1 volumes and 0 segmentations"),
        (no_volume, "Case00.nii.gz"),
        (twice, "UCL: Case00 has 2 volumes"),
        (empty, "data.source=nifti_folder"),
        (one_patient, "data.source.test_fraction=0.2"),
    ],
)
def test_what_is_wrong_is_one_sentence(root, spoil, name):
    spoil(root)
    with pytest.raises(UserError, match=re.escape(name)):
        load_images("nifti_folder", root)


def turned(mask):
    """The same mask in the same place, stored with x from right to left."""
    return mask[::-1], np.array([[-1, 0, 0, 5], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (turned, None),
        (lambda mask: (mask + 1e-5, np.eye(4) + 1e-4), None),
        (lambda mask: (mask, np.diag([-1.0, -1, 3, 1])), "Case1_segmentation"),
        (lambda mask: (mask, np.diag([1.0, 1, 3, 1])), "Case1_segmentation"),
        (lambda mask: (mask, np.eye(4) + np.eye(4, k=3)), "Case1_segmentation"),
        (lambda mask: (mask * 0.7, np.eye(4)), "Case1_segmentation"),
    ],
    ids=["turned", "rounded", "mirrored", "stretched", "shifted", "soft"],
)
def test_a_mask_covers_what_it_marks(tmp_path, change, message):
    root = tmp_path / "mri"
    for number in range(2):
        patient(root / "a", f"Case{number}")
    plain = load_images("nifti_folder", root)
    path = root / "a" / "Case1_segmentation.nii.gz"
    save(path, *change(nibabel.load(path).get_fdata()))
    if message is None:
        assert np.array_equal(load_images("nifti_folder", root).masks, plain.masks)
    else:
        with pytest.raises(UserError, match=message):
            load_images("nifti_folder", root)
