import pytest

from fedray.models import ARCHITECTURES, GROUPS, architectures


def test_client_i_gets_i_mod_x():
    assert architectures("htfe3", 5) == (
        "resnet10",
        "resnet18",
        "resnet34",
        "resnet10",
        "resnet18",
    )
    dealt = architectures("htfe9", 20)
    assert all(name == GROUPS["htfe9"][i % 9] for i, name in enumerate(dealt))


def test_groups_of_the_paper():
    assert GROUPS["htfe2"] == ("cnn4", "resnet18")
    assert GROUPS["htfe4"] == ("cnn4", "googlenet", "mobilenetv2", "resnet18")
    assert GROUPS["htfe9"] == tuple(
        f"resnet{depth}" for depth in (4, 6, 8, 10, 18, 34, 50, 101, 152)
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_is_a_group_of_one(name):
    assert architectures(name, 3) == (name,) * 3


@pytest.mark.parametrize(
    ("given", "nearest"), [("htfe8", "htfe"), ("HtFE9", "htfe9"), ("resnet", "resnet"), ("?", "")]
)
def test_unknown_group_names_the_nearest(given, nearest):
    with pytest.raises(ValueError, match=rf"model.group: unknown group .* did you mean '{nearest}"):
        architectures(given, 4)


def test_no_client():
    with pytest.raises(ValueError, match=r"data.clients: found 0 clients, need at least 1"):
        architectures("htfe2", 0)
