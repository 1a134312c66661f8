"""The bridge's own parameter of a StorageClass never reaches a driver, and nothing else of a request changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.calls.class_parameters import as_direct, asks_for_direct, without_own
from common.csi import csi_pb2 as csi
from common.csi.volume_context import DIRECT_VOLUME
from common.objects.offline_policy import PARAMETER

SERVICE = "/csi.v1.Controller/"
TAKEN: dict[str, Any] = {
    f"{SERVICE}CreateVolume": csi.CreateVolumeRequest,
    f"{SERVICE}GetCapacity": csi.GetCapacityRequest,
    f"{SERVICE}ValidateVolumeCapabilities": csi.ValidateVolumeCapabilitiesRequest,
}
CREATE = f"{SERVICE}CreateVolume"

UNKNOWN = bytes.fromhex("aa3f03616263b03f8101bd3f01020304b93f0102030405060708")
"""Fields that no version of CSI has, of each type: bytes, a number, 4 bytes and 8 bytes."""


def entry(key: str, value: str = "fence") -> bytes:
    """CreateVolume's field with one parameter, as protobuf writes it."""
    return csi.CreateVolumeRequest(parameters={key: value}).SerializeToString()


@pytest.mark.parametrize("method", TAKEN)
@pytest.mark.parametrize("own", [(PARAMETER,), (DIRECT_VOLUME,), (PARAMETER, DIRECT_VOLUME)])
def test_the_parameter_is_taken_out_of_every_call_with_the_parameters_of_a_class(
    method: str, own: tuple[str, ...]
) -> None:
    request = TAKEN[method](parameters={**dict.fromkeys(own, "true"), "type": "ssd"}).SerializeToString()
    assert TAKEN[method].FromString(without_own(method, request)) == TAKEN[method](parameters={"type": "ssd"})


def test_every_other_field_stays_unknown_ones_included() -> None:
    given = csi.CreateVolumeRequest(
        name="pvc-1",
        capacity_range={"required_bytes": 1 << 30},
        volume_capabilities=[
            csi.VolumeCapability(mount={"fs_type": "ext4"}, access_mode={"mode": "SINGLE_NODE_WRITER"})
        ],
        parameters={"type": "ssd"},
        secrets={PARAMETER: "a secret of this name"},
        accessibility_requirements={"preferred": [{"segments": {"zone": "a"}}]},
        mutable_parameters={PARAMETER: "a mutable one"},
    )
    request = given.SerializeToString() + UNKNOWN + entry(PARAMETER)
    kept = without_own(CREATE, request)
    expected = csi.CreateVolumeRequest.FromString(given.SerializeToString() + UNKNOWN)
    assert csi.CreateVolumeRequest.FromString(kept) == expected
    assert kept.endswith(UNKNOWN)
    assert len(kept) == len(request) - len(entry(PARAMETER))


def test_a_parameter_with_another_name_or_with_the_name_as_its_value_stays() -> None:
    for request in (entry(f"{PARAMETER}x"), entry("a", PARAMETER), entry(f"my.{PARAMETER}")):
        assert without_own(CREATE, request) == request


def test_a_call_without_it_or_of_another_method_is_the_same_object() -> None:
    request = entry("type")
    assert without_own(CREATE, request) is request
    snapshot = csi.CreateSnapshotRequest(parameters={PARAMETER: "fence"}).SerializeToString()
    assert without_own(f"{SERVICE}CreateSnapshot", snapshot) is snapshot


@pytest.mark.parametrize("cut", [b"\x22", b"\x22\x7f", b"\xff" * 11, b"\x0f", b"\x09abc"])
def test_what_is_no_message_stays_as_it_is(cut: bytes) -> None:
    request = entry(PARAMETER) + cut
    assert without_own(CREATE, request) == request


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=5), st.text(max_size=20), st.text())
def test_it_agrees_with_protobuf(parameters: dict[str, str], name: str, value: str) -> None:
    message = csi.CreateVolumeRequest(name=name, parameters={**parameters, PARAMETER: value})
    kept = csi.CreateVolumeRequest.FromString(without_own(CREATE, message.SerializeToString()))
    assert kept == csi.CreateVolumeRequest(name=name, parameters=parameters)


@pytest.mark.parametrize(
    ("method", "request_bytes", "asks"),
    [
        (CREATE, entry(DIRECT_VOLUME, "true"), True),
        (CREATE, entry(DIRECT_VOLUME, "True"), True),
        (CREATE, entry(DIRECT_VOLUME, "false"), False),
        (CREATE, entry("of", DIRECT_VOLUME), False),
        (CREATE, entry(DIRECT_VOLUME, "true") + b"\x0f", False),
        (
            f"{SERVICE}GetCapacity",
            csi.GetCapacityRequest(parameters={DIRECT_VOLUME: "true"}).SerializeToString(),
            False,
        ),
    ],
)
def test_only_a_create_with_the_parameter_asks_for_a_direct_volume(
    method: str, request_bytes: bytes, asks: bool
) -> None:
    assert asks_for_direct(method, request_bytes) is asks


def test_the_answer_gets_the_attribute_and_keeps_every_other_field() -> None:
    given = csi.CreateVolumeResponse(volume={"volume_id": "v", "volume_context": {"pool": "a"}, "capacity_bytes": 7})
    told = csi.CreateVolumeResponse.FromString(as_direct(given.SerializeToString() + UNKNOWN))
    assert dict(told.volume.volume_context) == {"pool": "a", DIRECT_VOLUME: "true"}
    del told.volume.volume_context[DIRECT_VOLUME]
    assert told == csi.CreateVolumeResponse.FromString(given.SerializeToString() + UNKNOWN)
    assert as_direct(b"\x0f") == b"\x0f"
