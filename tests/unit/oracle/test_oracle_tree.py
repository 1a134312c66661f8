"""What the oracle sees of a node's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.peers.kubelet import tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def group(tmp_path: Path) -> str:
    """What a line says of the group that new files get here; nothing where it is root's."""
    gid = tmp_path.stat().st_gid
    return f" group {gid}" if gid else ""


def test_files_modes_groups_links_and_vol_data_are_lines(tmp_path: Path, group: str) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o750)
    (place / "vol_data.json").write_text('{"b": "2", "a": "1"}')
    (place / "vol_data.json").chmod(0o644)
    (place / "link").symlink_to("elsewhere")

    assert tree.look(tmp_path, [place]) == {
        f"place directory 0750{group}",
        f'place/vol_data.json file 0644{group} {{"a": "1", "b": "2"}}',
        f"place/link link 0777{group} -> elsewhere",
    }


def test_links_are_not_followed(tmp_path: Path, group: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "link").symlink_to("outside")

    assert tree.look(tmp_path, [tmp_path / "link"]) == {f"link link 0777{group} -> outside"}


def test_a_vol_data_that_is_no_json_is_shown_as_it_is(tmp_path: Path, group: str) -> None:
    (tmp_path / "vol_data.json").write_text("{half")
    (tmp_path / "vol_data.json").chmod(0o600)

    assert tree.look(tmp_path, [tmp_path / "vol_data.json"]) == {
        f"vol_data.json file 0600{group} which is no JSON: '{{half'",
    }


def test_what_is_not_there_has_no_line(tmp_path: Path) -> None:
    assert tree.look(tmp_path, [tmp_path / "nothing"]) == tree.EMPTY


def test_the_places_are_those_of_one_drivers_volumes_and_pods(tmp_path: Path) -> None:
    found = tree.places(tmp_path, driver="d.csi", volumes=["pv-1"], pods=["u-1"])

    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "plugins/kubernetes.io/csi/d.csi",
        "plugins/kubernetes.io/csi/volumeDevices/pv-1",
        "plugins/kubernetes.io/csi/volumeDevices/staging/pv-1",
        "plugins/kubernetes.io/csi/volumeDevices/publish/pv-1",
        "pods/u-1/volumes/kubernetes.io~csi",
        "pods/u-1/volumeDevices/kubernetes.io~csi",
    ]


def test_empty_directories_outside_of_pods_are_clean_and_anything_else_is_not() -> None:
    assert tree.is_clean(frozenset({"globalmount directory 0750"}))
    for left in (
        "globalmount directory 0777 mounted bind rw",
        "vol_data.json file 0644 {}",
        "loop device on /x",
        "pods/u/volumes/kubernetes.io~csi directory 0750",
    ):
        assert not tree.is_clean(frozenset({left}))
