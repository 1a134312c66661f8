"""A mount info: the bytes of Kata's Go package, and what is read of the files of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge.direct.mount_info import MountInfo, MountInfoBroken

VECTORS = json.loads((Path(__file__).parent / "mount_info_vectors.json").read_text(encoding="utf-8"))
"""Made by Kata's own package: a volume path and a mount info, and the name and the bytes that it gives them."""


def info_of(vector: dict[str, Any]) -> MountInfo:
    given = vector["mount_info"]
    return MountInfo(
        device=given["device"],
        fs_type=given["fstype"],
        options=tuple(given["options"]),
        metadata=given["metadata"],
        volume_type=given["volume_type"],
    )


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["volume_path"])
def test_the_bytes_are_those_of_katas_package(vector: dict[str, Any]) -> None:
    assert info_of(vector).encode() == vector["file_utf8"].encode()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["volume_path"])
def test_a_file_of_katas_package_is_read_as_it_was_meant(vector: dict[str, Any]) -> None:
    assert MountInfo.parse(vector["file_utf8"].encode()) == info_of(vector)


SERDE = b'{"volume-type":"directvol","device":"/dev/sdf","fstype":"ext4","metadata":{"b":"2","a":"1"},"options":["ro"]}'
OLDER = (
    b'{"volume_type":"directvol","fs_type":"ext4","device":"/dev/sdf","metadata":{"a":"1","b":"2"},"options":["ro"]}'
)
BY_HAND = b"""{
  "options": ["ro"], "metadata": {"a": "1", "b": "2"}, "x": 1,
  "fstype": "ext4", "device": "/dev/sdf", "volume-type": "directvol"
}
"""
BOTH_SPELLINGS = b"""{"volume-type":"directvol","volume_type":"x","device":"/dev/sdf","fstype":"ext4","fs_type":"x",
"metadata":{"a":"1","b":"2"},"options":["ro"]}"""


@pytest.mark.parametrize(
    "raw", [SERDE, BY_HAND, OLDER, BOTH_SPELLINGS], ids=["serde", "by hand", "runtime-rs 3.2", "both spellings"]
)
def test_the_other_forms_of_a_file_are_read(raw: bytes) -> None:
    assert MountInfo.parse(raw) == MountInfo(
        device="/dev/sdf", fs_type="ext4", options=("ro",), metadata={"a": "1", "b": "2"}
    )


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        pytest.param(b"[" * 100_000, "it is not JSON", id="too deep"),
        (b"[]", "it is not a JSON object"),
        (b'{"device":"/d","fstype":"ext4"}', "it has no volume-type"),
        (b'{"volume-type":"directvol","fstype":"ext4"}', "it has no device"),
        (b'{"volume-type":"directvol","device":"/d"}', "it has no fstype"),
        (b'{"volume-type":"directvol","device":7,"fstype":"ext4"}', "its device is not a string"),
        (
            b'{"volume-type":"directvol","device":"/d","fstype":"","metadata":"{}"}',
            "its metadata is a string, which no",
        ),
        (b'{"volume-type":"directvol","device":"/d","fstype":"","metadata":[]}', "its metadata is not an object"),
        (b'{"volume-type":"directvol","device":"/d","fstype":"","metadata":{"a":1}}', "its metadata is not an object"),
        (b'{"volume-type":"directvol","device":"/d","fstype":"","options":"ro"}', "its options are not a list"),
        (b'{"volume-type":"directvol","device":"/d","fstype":"","options":[1]}', "its options are not a list"),
        (b'{"volume-type":"directvol","device":"/d\\ud800","fstype":""}', "a value is not Unicode text"),
    ],
)
def test_a_file_that_no_runtime_can_use_is_refused_with_the_reason(raw: bytes, why: str) -> None:
    with pytest.raises(MountInfoBroken, match=why):
        MountInfo.parse(raw)


def test_null_is_no_metadata_and_no_options_as_for_katas_package() -> None:
    raw = b'{"volume-type":"directvol","device":"/d","fstype":"ext4","metadata":null,"options":null}'
    assert MountInfo.parse(raw) == MountInfo(device="/d", fs_type="ext4")


def test_a_device_whose_path_is_no_text_is_refused() -> None:
    with pytest.raises(MountInfoBroken, match="a value is not Unicode text"):
        MountInfo(device="/dev/\udcff", fs_type="ext4").encode()
