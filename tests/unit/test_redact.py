"""What of a CSI message is shown, and what makes two requests the same."""

from typing import Any

import pytest
from google.protobuf.message import Message

from common.csi import csi_pb2
from common.csi.methods import METHODS
from common.csi.redact import STRIPPED, digest, redacted, without_secrets

TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"


def create_volume() -> csi_pb2.CreateVolumeRequest:
    return csi_pb2.CreateVolumeRequest(
        name="pvc-1",
        capacity_range={"required_bytes": 1 << 30},
        parameters={"tier": "slow", "zone": "a"},
        secrets={"user": "ann", "password": "hunter2"},
        volume_capabilities=[{"mount": {"fs_type": "nfs", "mount_flags": ["password=hunter2"]}}],
        accessibility_requirements={"requisite": [{"segments": {"node": "n1"}}]},
    )


def with_unknown(message: Message, *fields: bytes) -> Message:
    return type(message).FromString(message.SerializeToString() + b"".join(fields))


UNKNOWN_MAP = (b"\xfa\x01\x06\n\x01a\x12\x01b", b"\xfa\x01\x06\n\x01c\x12\x01d")
"""Two entries, {"a": "b"} and {"c": "d"}, of a map with field number 31."""


def test_secrets_and_mount_flags_are_stripped_and_all_else_is_shown_with_the_names_of_the_proto() -> None:
    assert redacted(create_volume()) == {
        "name": "pvc-1",
        "capacity_range": {"required_bytes": "1073741824"},
        "parameters": {"tier": "slow", "zone": "a"},
        "secrets": STRIPPED,
        "volume_capabilities": [{"mount": {"fs_type": "nfs", "mount_flags": STRIPPED}}],
        "accessibility_requirements": {"requisite": [{"segments": {"node": "n1"}}]},
    }


STRIPPED_TOKENS = {"share": "a", TOKENS: STRIPPED}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (csi_pb2.NodeStageVolumeRequest(publish_context={"iqn": "hunter2"}), {"publish_context": STRIPPED}),
        (csi_pb2.ControllerPublishVolumeResponse(publish_context={"iqn": "hunter2"}), {"publish_context": STRIPPED}),
        (
            csi_pb2.NodePublishVolumeRequest(volume_context={"share": "a", TOKENS: "hunter2"}),
            {"volume_context": STRIPPED_TOKENS},
        ),
        (
            csi_pb2.ListVolumesResponse(entries=[{"volume": {"volume_context": {"share": "a", TOKENS: "hunter2"}}}]),
            {"entries": [{"volume": {"volume_context": STRIPPED_TOKENS}}]},
        ),
        (with_unknown(csi_pb2.DeleteVolumeRequest(volume_id="v1"), *UNKNOWN_MAP), {"volume_id": "v1"}),
    ],
    ids=["context of a request", "of an answer", "tokens", "tokens in an entry of a list", "unknown fields"],
)
def test_what_else_may_hold_a_secret_is_not_shown(message: Message, shown: dict[str, Any]) -> None:
    assert redacted(message) == shown


def test_redaction_leaves_the_message_as_it_was() -> None:
    message, twin = create_volume(), create_volume()
    redacted(message)
    without_secrets(message)
    digest(message)
    assert message == twin


WITH_SECRETS = [path for path, method in METHODS.items() if "secrets" in method.request.DESCRIPTOR.fields_by_name]


def test_the_contract_has_secrets_in_22_requests() -> None:
    assert len(WITH_SECRETS) == 22


@pytest.mark.parametrize("path", WITH_SECRETS)
def test_the_secrets_of_every_request_are_stripped_and_cleared(path: str) -> None:
    message = METHODS[path].request(secrets={"key": "hunter2"})
    assert redacted(message) == {"secrets": STRIPPED}
    assert without_secrets(message).SerializeToString() == b""


def test_no_message_type_holds_itself() -> None:
    def walk(message: Any, above: tuple[str, ...]) -> None:
        assert message.full_name not in above
        for field in message.fields:
            if field.message_type is not None:
                walk(field.message_type, (*above, message.full_name))

    for method in METHODS.values():
        walk(method.request.DESCRIPTOR, ())
        walk(method.response.DESCRIPTOR, ())


def test_a_copy_without_secrets_keeps_everything_else() -> None:
    copy = without_secrets(create_volume())
    expected = create_volume()
    expected.ClearField("secrets")
    assert copy == expected
    assert copy.volume_capabilities[0].mount.mount_flags == ["password=hunter2"]


def test_a_copy_without_secrets_keeps_unknown_fields() -> None:
    message = with_unknown(csi_pb2.DeleteVolumeRequest(volume_id="v1", secrets={"a": "b"}), *UNKNOWN_MAP)
    assert without_secrets(message).SerializeToString() == b"\n\x02v1" + b"".join(UNKNOWN_MAP)


def test_the_digest_does_not_depend_on_secrets() -> None:
    rotated = create_volume()
    rotated.secrets["password"] = "swordfish"
    assert digest(rotated) == digest(create_volume())
    assert len(digest(rotated)) == 32


def test_the_digest_does_not_depend_on_the_order_of_a_map() -> None:
    # Small maps come out in one order anyway; the table of a map that has shrunk has another order.
    pairs = {f"key {number}": "value" for number in range(40)}
    plain, shrunk = csi_pb2.CreateVolumeRequest(parameters=pairs), csi_pb2.CreateVolumeRequest()
    shrunk.parameters.update({f"gone {number}": "value" for number in range(1000)} | pairs)
    for number in range(1000):
        del shrunk.parameters[f"gone {number}"]
    assert plain.SerializeToString() != shrunk.SerializeToString()
    assert digest(plain) == digest(shrunk)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "pvc-2"},
        {"capacity_range": {"required_bytes": 1}},
        {"parameters": {"tier": "fast"}},
        {"mutable_parameters": {"iops": "1"}},
        {"volume_content_source": {"volume": {"volume_id": "v1"}}},
        {"volume_capabilities": [{"mount": {"mount_flags": ["ro"]}}]},
    ],
)
def test_the_digest_depends_on_every_argument(change: dict[str, Any]) -> None:
    changed = create_volume()
    changed.MergeFrom(csi_pb2.CreateVolumeRequest(**change))
    assert digest(changed) != digest(create_volume())


def test_the_digest_depends_on_unknown_fields_but_not_on_their_order() -> None:
    plain = csi_pb2.DeleteVolumeRequest(volume_id="v1")
    one = with_unknown(plain, *UNKNOWN_MAP)
    other = with_unknown(plain, *reversed(UNKNOWN_MAP))
    assert digest(one) == digest(other)
    assert digest(one) != digest(plain)
    assert digest(one) != digest(with_unknown(plain, UNKNOWN_MAP[0]))


def test_the_digest_tells_where_an_unknown_field_stands() -> None:
    read = csi_pb2.VolumeCapability.FromString
    at_first = csi_pb2.CreateVolumeRequest(volume_capabilities=[read(UNKNOWN_MAP[0]), csi_pb2.VolumeCapability()])
    at_second = csi_pb2.CreateVolumeRequest(volume_capabilities=[csi_pb2.VolumeCapability(), read(UNKNOWN_MAP[0])])
    assert digest(at_first) != digest(at_second)


def test_the_digest_reads_unknown_groups() -> None:
    plain = csi_pb2.DeleteVolumeRequest(volume_id="v1")
    group, other = b"\xfb\x01\x08\x01\xfc\x01", b"\xfb\x01\x08\x02\xfc\x01"  # field 31, holding field 1 = 1, or 2
    assert digest(with_unknown(plain, group)) != digest(with_unknown(plain, other))
    assert digest(with_unknown(plain, group)) == digest(with_unknown(plain, group))
