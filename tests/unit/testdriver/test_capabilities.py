"""What each switch adds to the capabilities."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.testdriver import capabilities
from tests.kit.testdriver.capabilities import Controller, Node, Plugin
from tests.kit.testdriver.settings import Settings


def settings(**switches: Any) -> Settings:
    return Settings(endpoint="unix:///s", state_dir=Path("/s"), node_id="n1", **switches)


EVERYTHING = settings(mutable_parameters=("q",), mount_group=True)


def test_with_every_switch_on_every_capability_of_the_spec_is_there() -> None:
    plugin = capabilities.chosen(capabilities.PLUGIN, EVERYTHING)
    controller = capabilities.chosen(capabilities.CONTROLLER, EVERYTHING)
    node = capabilities.chosen(capabilities.NODE, EVERYTHING)

    assert {*plugin, Plugin.UNKNOWN} == set(Plugin.values())
    assert {*controller, Controller.UNKNOWN} == set(Controller.values())
    assert {*node, Node.UNKNOWN} == set(Node.values())


@pytest.mark.parametrize(
    ("switches", "gone"),
    [
        ({"attach": False}, {Controller.PUBLISH_UNPUBLISH_VOLUME, Controller.PUBLISH_READONLY, 10}),
        ({"mutable_parameters": ()}, {Controller.MODIFY_VOLUME}),
        ({"stage": False}, set()),
    ],
)
def test_a_switch_takes_its_controller_capabilities_along(switches: dict[str, Any], gone: set[int]) -> None:
    all_on = set(capabilities.chosen(capabilities.CONTROLLER, EVERYTHING))

    left = set(capabilities.chosen(capabilities.CONTROLLER, settings(**{"mutable_parameters": ("q",)} | switches)))

    assert all_on - left == gone


def test_without_staging_the_node_has_no_staging_capability() -> None:
    assert Node.STAGE_UNSTAGE_VOLUME not in capabilities.chosen(capabilities.NODE, settings(stage=False))


def test_the_mount_group_is_left_to_the_caller_unless_the_driver_is_told() -> None:
    assert Node.VOLUME_MOUNT_GROUP not in capabilities.chosen(capabilities.NODE, settings())


def test_a_driver_at_odds_with_itself_expands_in_the_controller_and_not_on_the_node() -> None:
    at_odds = settings(node_expand=False)

    assert Node.EXPAND_VOLUME not in capabilities.chosen(capabilities.NODE, at_odds)
    assert Controller.EXPAND_VOLUME in capabilities.chosen(capabilities.CONTROLLER, at_odds)


def test_an_older_driver_has_single_node_multi_writer_on_neither_side() -> None:
    older = settings(multi_writer=False)

    assert Node.SINGLE_NODE_MULTI_WRITER not in capabilities.chosen(capabilities.NODE, older)
    assert Controller.SINGLE_NODE_MULTI_WRITER not in capabilities.chosen(capabilities.CONTROLLER, older)


def test_without_topology_a_snapshot_has_none_either() -> None:
    chosen = capabilities.chosen(capabilities.PLUGIN, settings(topology=False))

    assert set(chosen) == {
        Plugin.CONTROLLER_SERVICE,
        Plugin.GROUP_CONTROLLER_SERVICE,
        Plugin.SNAPSHOT_METADATA_SERVICE,
    }


def test_the_topology_of_snapshots_can_be_left_out_alone() -> None:
    chosen = capabilities.chosen(capabilities.PLUGIN, settings(snapshot_topology=False))

    assert Plugin.VOLUME_ACCESSIBILITY_CONSTRAINTS in chosen
    assert Plugin.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not in chosen
