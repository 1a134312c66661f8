"""What the mount table says."""

from pathlib import Path

import pytest

from edge.disk import mounts
from edge.disk.mounts import Mount, MountTable, parse, read_table

TABLE = """\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
90 25 0:40 / /proc rw - proc proc rw
101 25 8:16 /pool/v1 /var/lib/kubelet/plugins/kubernetes.io/csi/d/H/globalmount rw shared:7 master:3 - ext4 /dev/sdb rw
102 25 8:16 /pool/v1 /var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pv1/mount ro - ext4 /dev/sdb rw
103 25 0:50 / /var/lib/kubelet/pods/u2/volumes/kubernetes.io~csi/a\\040b\\011\\134c/mount rw - nfs4 srv:/x rw
"""
KUBELET = Path("/var/lib/kubelet")
STAGED = KUBELET / "plugins/kubernetes.io/csi/d/H/globalmount"
TARGET = KUBELET / "pods/u1/volumes/kubernetes.io~csi/pv1/mount"


def table(text: str = TABLE) -> MountTable:
    return MountTable(parse(text))


def test_a_line_is_parsed_with_any_number_of_optional_fields() -> None:
    assert parse(TABLE)[2] == Mount("8:16", "/pool/v1", str(STAGED))
    assert parse(TABLE)[3] == Mount("8:16", "/pool/v1", str(TARGET))


@pytest.mark.parametrize("odd", ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\udcff"])
def test_a_line_ends_where_the_kernel_ends_it_whatever_a_path_or_a_source_holds(
    odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"103 25 0:50 /x{odd}y /media/a{odd}b rw shared:9 - vfat /dev/disk{odd}1 rw\n"
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    mounts.MOUNTINFO.write_bytes((line + TABLE).encode("utf-8", "surrogateescape"))
    first, *rest = read_table(KUBELET).mounts
    assert first == Mount("0:50", f"/x{odd}y", f"/media/a{odd}b")
    assert rest == parse(TABLE)


def test_escaped_characters_in_a_path_are_undone() -> None:
    assert table().is_mount_point(KUBELET / "pods/u2/volumes/kubernetes.io~csi/a b\t\\c/mount")


def test_a_directory_on_a_mount_is_no_mount_point() -> None:
    assert not table().is_mount_point(TARGET / "sub")
    assert not table().is_mount_point(TARGET.parent)


def test_the_mounts_within_a_directory_are_found_and_no_neighbours() -> None:
    assert table().within(KUBELET / "pods/u1") == [str(TARGET)]
    assert table().within(TARGET) == [str(TARGET)]
    assert table().within(KUBELET / "pods/u") == []


def test_only_a_publication_refers_to_a_staging_and_neither_its_other_paths_nor_its_neighbours_do() -> None:
    again = f"104 25 8:16 /pool/v1 /host{STAGED} rw - ext4 /dev/sdb rw\n"
    neighbour = "105 25 8:16 /pool/v2 /mnt/v2 rw - ext4 /dev/sdb rw\n"
    assert table(TABLE + again + neighbour).references(STAGED) == [str(TARGET)]
    without = "\n".join(line for line in TABLE.splitlines() if "/pods/u1/" not in line)
    assert table(without).references(STAGED) == []


def test_a_bind_of_a_directory_that_is_no_mount_itself_is_a_reference() -> None:
    plain = KUBELET / "plugins/kubernetes.io/csi/d/H2/globalmount"
    bound = f"106 25 8:1 {plain} /mnt/x rw - ext4 /dev/sda1 rw\n"
    assert table(TABLE + bound).references(plain) == ["/mnt/x"]


def test_a_root_directory_behind_a_link_is_looked_up_by_its_real_path() -> None:
    seen = MountTable(parse(TABLE), root=Path("/link"), real_root=KUBELET)
    assert seen.is_mount_point(Path("/link/pods/u1/volumes/kubernetes.io~csi/pv1/mount"))
    assert seen.references(Path("/link/plugins/kubernetes.io/csi/d/H/globalmount")) == [str(TARGET)]
