"""Settings that cannot work are refused with the flag's name."""

from pathlib import Path
from typing import Any

import pytest

from examples.dirdriver.settings import SettingsError
from tests.kit.testdriver.settings import Settings


def settings(**fields: Any) -> Settings:
    needed: dict[str, Any] = {"endpoint": "unix:///run/csi.sock", "state_dir": Path("/s"), "node_id": "n1"}
    return Settings(**needed | fields)


@pytest.mark.parametrize("endpoint", ["unix:///run/csi.sock", "unix:/run/csi.sock", "/run/csi.sock"])
def test_an_endpoint_is_a_socket_path_with_or_without_its_scheme(endpoint: str) -> None:
    chosen = settings(endpoint=endpoint)
    chosen.check()

    assert chosen.socket_path == Path("/run/csi.sock")


def test_the_largest_volume_is_the_capacity_unless_it_is_said() -> None:
    assert settings(capacity_bytes=1 << 30).largest_volume_bytes == 1 << 30
    assert settings(max_volume_bytes=1 << 21).largest_volume_bytes == 1 << 21


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"endpoint": "tcp://127.0.0.1:1"}, "--endpoint"),
        ({"endpoint": "csi.sock"}, "--endpoint"),
        ({"endpoint": "unix:///" + "x" * 107}, "--endpoint"),
        ({"driver_name": "1"}, "--drivername"),
        ({"node_id": ""}, "--node-id"),
        ({"node_id": "not a label"}, "--node-id"),
        ({"node_id": "a/b", "topology": False}, "--node-id"),
        ({"node_id": "x" * 257, "topology": False}, "--node-id"),
        ({"capacity_bytes": 1}, "--capacity"),
        ({"max_volume_bytes": 1}, "--max-volume-size"),
        ({"faults": ("CreateVolume=slow",)}, "--fault"),
    ],
)
def test_a_value_that_cannot_work_is_refused_naming_its_flag(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingsError) as failure:
        settings(**fields).check()

    assert failure.value.flag == flag


def test_without_topology_a_node_id_need_not_be_a_label_value() -> None:
    settings(node_id="i-0123:4567 (rack 3)", topology=False).check()
