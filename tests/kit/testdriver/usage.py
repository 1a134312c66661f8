"""A volume's usage: bytes and inodes, as NodeGetVolumeStats tells them."""

import os
from pathlib import Path

from common.csi import csi_pb2 as pb
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.records import Volume

SECTOR_BYTES = 512
"""What st_blocks counts (stat(2)), whatever the filesystem."""


def usage_of(volume: Volume, path: Path) -> list[pb.VolumeUsage]:
    """What is used of a volume that is mounted at a path."""
    if volume.layout is Layout.BLOCK:
        return [pb.VolumeUsage(unit=pb.VolumeUsage.BYTES, total=volume.size_bytes)]
    if volume.layout is Layout.DIRECTORY:
        return _directory(volume.size_bytes, path)
    return _filesystem(path)


def _filesystem(path: Path) -> list[pb.VolumeUsage]:
    whole = os.statvfs(path)
    return [
        pb.VolumeUsage(
            unit=pb.VolumeUsage.BYTES,
            total=whole.f_blocks * whole.f_frsize,
            used=(whole.f_blocks - whole.f_bfree) * whole.f_frsize,
            available=whole.f_bavail * whole.f_frsize,
        ),
        pb.VolumeUsage(
            unit=pb.VolumeUsage.INODES,
            total=whole.f_files,
            used=whole.f_files - whole.f_ffree,
            available=whole.f_favail,
        ),
    ]


def _directory(size_bytes: int, path: Path) -> list[pb.VolumeUsage]:
    """A directory's share of a filesystem that it does not have for itself: nothing holds a pod to its size."""
    whole = os.statvfs(path)
    used_bytes, inodes = tree_usage(path)
    return [
        pb.VolumeUsage(
            unit=pb.VolumeUsage.BYTES,
            total=size_bytes,
            used=used_bytes,
            available=max(0, min(size_bytes - used_bytes, whole.f_bavail * whole.f_frsize)),
        ),
        pb.VolumeUsage(
            unit=pb.VolumeUsage.INODES, total=inodes + whole.f_favail, used=inodes, available=whole.f_favail
        ),
    ]


def tree_usage(path: Path) -> tuple[int, int]:
    """Bytes and inodes of a directory tree, itself included. What vanishes meanwhile is left out."""
    total_bytes, inodes = path.stat().st_blocks * SECTOR_BYTES, 1
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            try:
                total_bytes += os.lstat(Path(folder, name)).st_blocks * SECTOR_BYTES
            except FileNotFoundError:
                continue
            inodes += 1
    return total_bytes, inodes
