"""Which names cannot lead out of the root directory. The parity with the kubelet shows where each thing lies."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.disk.layout import Layout
from edge.volume_errors import NotReady

ROOT = Path("/var/lib/kubelet")
LAYOUT = Layout(ROOT)


def test_a_slash_in_a_volumes_name_becomes_a_tilde() -> None:
    assert LAYOUT.target("u1", "a/b").parent.name == "a~b"


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "x" * 256, "ä" * 128])
def test_a_name_that_cannot_name_a_directory_is_refused(name: str) -> None:
    with pytest.raises(NotReady):
        LAYOUT.target("u1", name)
    with pytest.raises(NotReady):
        LAYOUT.target(name, "pv1")
    with pytest.raises(NotReady):
        LAYOUT.staging_target(name, "vol-1")


@pytest.mark.parametrize("name", ["../../etc", "a/b"])
def test_a_slash_in_a_pods_uid_or_a_drivers_name_is_refused(name: str) -> None:
    with pytest.raises(NotReady, match="cannot name a directory"):
        LAYOUT.target(name, "pv1")
    with pytest.raises(NotReady, match="cannot name a directory"):
        LAYOUT.staging_target(name, "vol-1")


def test_the_refusal_of_a_name_of_5000_characters_says_whose_it_is_and_stays_short() -> None:
    with pytest.raises(NotReady, match=r"the volume's name has 5000 bytes \('xxx") as refused:
        LAYOUT.target("u1", "x" * 5000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["staging", "publish"])
def test_a_block_volume_is_not_called_like_the_directories_beside_it(name: str) -> None:
    with pytest.raises(NotReady, match="give its PersistentVolume another name"):
        LAYOUT.block_data(name)


@pytest.mark.parametrize("name", ["pv", "volumeDevices"])
def test_a_driver_that_has_file_systems_is_not_called_like_the_directories_beside_the_drivers(name: str) -> None:
    with pytest.raises(NotReady, match=f"a driver cannot be called {name}"):
        LAYOUT.staging_target(name, "vol-1")


def test_a_volume_without_a_handle_has_no_staging_directory() -> None:
    with pytest.raises(NotReady, match="empty volumeHandle"):
        LAYOUT.staging_target("d.csi", "")


@given(st.text(), st.text(), st.text())
def test_no_name_leads_out_of_the_root_directory(driver: str, uid: str, name: str) -> None:
    ways: list[Callable[[], Path]] = [
        lambda: LAYOUT.target(uid, name),
        lambda: LAYOUT.staging_target(driver, name),
        lambda: LAYOUT.device_map(name, uid),
        lambda: LAYOUT.block_target(name, uid),
        lambda: LAYOUT.device_link(uid, name),
    ]
    for way in ways:
        try:
            found = way()
        except NotReady:
            continue
        assert ".." not in found.parts
        assert found.is_relative_to(ROOT)
        assert len(found.parts) >= len(ROOT.parts) + 5
