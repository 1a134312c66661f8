"""A mount info: the bytes of Kata's Go package, and what is read of the files of others."""

import json
from pathlib import Path
from typing import Any

import pytest

from edge.direct.mount_info import device_of, mount_info
from edge.volume_errors import Uncertain

ALL = json.loads((Path(__file__).parent / "mount_info_vectors.json").read_text(encoding="utf-8"))
VECTORS = [vector for vector in ALL if vector["mount_info"]["volume_type"] == "directvol"]
"""Made by Kata's own package: a volume path and a mount info, and the name and the bytes that it gives them."""


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["volume_path"])
def test_the_bytes_are_those_of_katas_package(vector: dict[str, Any]) -> None:
    given = vector["mount_info"]
    found = mount_info(given["device"], given["fstype"], given["options"], given["metadata"])
    assert found == vector["file_utf8"].encode()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["volume_path"])
def test_the_device_is_read_from_a_file_of_katas_package(vector: dict[str, Any]) -> None:
    assert device_of(vector["file_utf8"].encode()) == vector["mount_info"]["device"]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        pytest.param(b"[" * 100_000, "it is not JSON", id="too deep"),
        (b"[]", "it names no device"),
        (b'{"volume-type":"directvol","fstype":"ext4"}', "it names no device"),
        (b'{"volume-type":"directvol","device":7,"fstype":"ext4"}', "it names no device"),
        (b'{"volume-type":"directvol","device":"/d\\ud800","fstype":""}', "its device is not Unicode text"),
    ],
)
def test_a_file_without_a_device_is_refused_with_the_reason(raw: bytes, why: str) -> None:
    with pytest.raises(Uncertain, match=why):
        device_of(raw)


def test_a_device_whose_path_is_no_text_is_refused() -> None:
    with pytest.raises(Uncertain, match="a value is not Unicode text"):
        mount_info("/dev/\udcff", "ext4", (), {})
