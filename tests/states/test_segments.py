"""Files of states: all comes back, what is shared is stored once, what is cut is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from tensors import same

from fedray.core import ClientState
from fedray.errors import UserError
from fedray.states import LARGE_STATE, Place, SegmentWriter, read_state
from fedray.states.segments import check_state


def writer(folder) -> SegmentWriter:
    numbers = itertools.count()
    return SegmentWriter(folder, lambda: f"{next(numbers)}.states")


def written(folder, *states: ClientState) -> list[Place]:
    with writer(folder) as open_:
        return [open_.add(state) for state in states]


def large(value: float, **memory) -> ClientState:
    return ClientState({"w": torch.full((LARGE_STATE // 4 + 1,), value)}, memory)


ODD = ClientState(
    {"z": torch.randn(3, 5), "a": torch.tensor(7), "empty": torch.zeros(0, 4)},
    {"deep": {"b/c": torch.tensor([True, False]), "h": torch.randn(3).half()}, "nothing": {}},
    {"w": {"exp_avg": torch.randn(2, dtype=torch.float64)}},
)


def test_everything_comes_back_in_its_order(tmp_path):
    places = written(tmp_path, ClientState({}), ODD, large(2.0), ODD)
    assert [place.file for place in places] == ["0.states", "0.states", "1.states", "0.states"]
    for place in (places[1], places[3]):
        found = read_state(tmp_path, place)
        assert list(found.model) == list(ODD.model)
        assert same(found.model, ODD.model)
        assert torch.equal(found.memory["deep"]["b/c"], ODD.memory["deep"]["b/c"])
        assert found.memory["deep"]["h"].dtype == torch.half
        assert found.memory["nothing"] == {}
        assert torch.equal(found.optimizer["w"]["exp_avg"], ODD.optimizer["w"]["exp_avg"])
    assert read_state(tmp_path, places[0]) == ClientState({})
    assert same(read_state(tmp_path, places[2]).model, large(2.0).model)


def test_to_write_to_what_was_read_changes_no_file(tmp_path):
    (place,) = written(tmp_path, large(1.0))
    read_state(tmp_path, place).model["w"].fill_(9)
    check_state(tmp_path, place)
    assert float(read_state(tmp_path, place).model["w"][0]) == 1.0


def test_tensors_begin_where_vector_instructions_like_it(tmp_path):
    (place,) = written(tmp_path, ODD)
    for tensor in read_state(tmp_path, place).model.values():
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0


def test_equal_large_tensors_are_stored_once_and_almost_equal_ones_twice(tmp_path):
    images = torch.arange(2**18, dtype=torch.int32)
    other = images.clone()
    other[-2] += 1  # where no sample is taken
    kept = [images, images.clone(), other]
    places = written(tmp_path, *(large(k, images=each) for k, each in enumerate(kept)))
    assert [place.shared for place in places] == [(), ("0.states",), ()]
    sizes = [(tmp_path / place.file).stat().st_size for place in places]
    assert sizes[1] < sizes[0] / 5
    for place, expected in zip(places, kept, strict=True):
        check_state(tmp_path, place)
        assert torch.equal(read_state(tmp_path, place).memory["images"], expected)


def test_a_tensor_that_a_state_holds_twice_is_stored_once(tmp_path):
    images = torch.arange(2**18, dtype=torch.int32)
    (place,) = written(tmp_path, ClientState({"a": images, "b": images.clone()}))
    assert place.length < 1.1 * images.nbytes
    assert torch.equal(read_state(tmp_path, place).model["b"], images)


def test_what_could_not_be_written_to_the_end_is_removed(tmp_path):
    def fails() -> None:
        with writer(tmp_path) as open_:
            open_.add(large(1.0))
            open_.add(ODD)
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fails()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [0, 3, 20, 1000])
def test_a_cut_file_is_refused(tmp_path, cut):
    (place,) = written(tmp_path, large(1.0))
    path = tmp_path / place.file
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"0\.states is damaged"):
        read_state(tmp_path, place)


@pytest.mark.parametrize(
    ("what", "instead"),
    [(b'"float32"', b'"flo_t32"'), (b'"float32"', b'"float64"'), (b'{"', b'["'), (b"}", b"1")],
)
def test_a_changed_table_is_refused(tmp_path, what, instead):
    (place,) = written(tmp_path, large(1.0))
    path = tmp_path / place.file
    path.write_bytes(path.read_bytes().replace(what, instead, 1))
    with pytest.raises(UserError, match=r"0\.states is damaged"):
        read_state(tmp_path, place)


def test_a_missing_file_is_named_where_another_shares_it(tmp_path):
    images = torch.arange(2**18, dtype=torch.int32)
    places = written(tmp_path, large(0, images=images), large(1, images=images))
    (tmp_path / places[0].file).unlink()
    with pytest.raises(UserError, match=r"0\.states is damaged \(it is missing\)"):
        read_state(tmp_path, places[1])
