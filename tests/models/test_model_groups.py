import pytest

from fedray.base.errors import UserError
from fedray.models import assign_architectures, group_of, is_dense
from fedray.models.architectures import architectures
from fedray.models.groups import groups


def test_client_i_gets_i_mod_x():
    assert assign_architectures("htfe3", 5) == (
        "resnet10",
        "resnet18",
        "resnet34",
        "resnet10",
        "resnet18",
    )
    assigned = assign_architectures("htfe9", 20)
    assert all(name == group_of("htfe9").members[i % 9] for i, name in enumerate(assigned))


def test_groups_of_the_paper():
    assert group_of("htfe2").members == ("cnn4", "resnet18")
    assert group_of("htfe4").members == ("cnn4", "googlenet", "mobilenetv2", "resnet18")
    assert group_of("htfe9").members == tuple(
        f"resnet{depth}" for depth in (4, 6, 8, 10, 18, 34, 50, 101, 152)
    )


@pytest.mark.parametrize("name", architectures.names())
def test_each_architecture_is_a_group_of_one(name):
    assert assign_architectures(name, 3) == (name,) * 3


@pytest.mark.parametrize(
    ("given", "nearest"), [("htfe8", "htfe"), ("HtFE9", "htfe9"), ("resnet", "resnet")]
)
def test_unknown_group_names_the_nearest(given, nearest):
    match = rf"model.group: there is no .* '{given}'. Did you mean '{nearest}"
    with pytest.raises(UserError, match=match):
        assign_architectures(given, 4)


def test_a_name_that_is_near_nothing_lists_groups_and_architectures():
    with pytest.raises(UserError, match=r"Valid: alexnet, .*htfe2, .*vgg11\."):
        assign_architectures("?", 4)


def test_unets_are_dense_and_nothing_else():
    dense = {name for name in [*groups.names(), *architectures.names()] if is_dense(name)}
    assert dense == {"unet", "unet_tiny"}
