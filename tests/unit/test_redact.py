"""What of a CSI message is shown, and what makes two requests the same."""

import json
from typing import Any

import pytest
from google.protobuf.message import Message

from common.csi import csi_pb2
from common.csi.methods import METHODS
from common.redact import STRIPPED, digest, redacted, without_secrets

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


def test_what_may_be_shown_is_shown_with_the_names_of_the_proto() -> None:
    shown = redacted(create_volume())
    assert shown["name"] == "pvc-1"
    assert shown["capacity_range"] == {"required_bytes": "1073741824"}
    assert shown["parameters"] == {"tier": "slow", "zone": "a"}
    assert shown["accessibility_requirements"] == {"requisite": [{"segments": {"node": "n1"}}]}


def test_secrets_are_stripped_with_their_keys() -> None:
    shown = redacted(create_volume())
    assert shown["secrets"] == STRIPPED
    assert "password" not in json.dumps(shown)


def test_mount_flags_are_stripped_where_they_are_nested() -> None:
    assert redacted(create_volume())["volume_capabilities"] == [{"mount": {"fs_type": "nfs", "mount_flags": STRIPPED}}]


def test_publish_context_is_stripped_from_requests_and_answers() -> None:
    request = csi_pb2.NodeStageVolumeRequest(volume_id="v1", publish_context={"iqn": "hunter2"})
    answer = csi_pb2.ControllerPublishVolumeResponse(publish_context={"iqn": "hunter2"})
    assert redacted(request) == {"volume_id": "v1", "publish_context": STRIPPED}
    assert redacted(answer) == {"publish_context": STRIPPED}


def test_service_account_tokens_are_stripped_and_the_rest_of_the_volume_context_is_shown() -> None:
    request = csi_pb2.NodePublishVolumeRequest(volume_context={"share": "a", TOKENS: '{"aud": {"token": "hunter2"}}'})
    assert redacted(request) == {"volume_context": {"share": "a", TOKENS: STRIPPED}}


def test_tokens_are_stripped_in_a_volume_that_an_answer_holds() -> None:
    answer = csi_pb2.ListVolumesResponse(entries=[{"volume": {"volume_id": "v1", "volume_context": {TOKENS: "x"}}}])
    assert redacted(answer) == {"entries": [{"volume": {"volume_id": "v1", "volume_context": {TOKENS: STRIPPED}}}]}


def test_unknown_fields_are_not_shown() -> None:
    assert redacted(with_unknown(csi_pb2.DeleteVolumeRequest(volume_id="v1"), *UNKNOWN_MAP)) == {"volume_id": "v1"}


def test_an_empty_message_is_shown_as_such() -> None:
    assert redacted(csi_pb2.CreateVolumeRequest()) == {}


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
    one, other = b'"\x06\n\x01a\x12\x01b', b'"\x06\n\x01c\x12\x01d'  # two entries of parameters, field 4
    read = csi_pb2.CreateVolumeRequest.FromString
    assert digest(read(one + other)) == digest(read(other + one))
    assert digest(read(one + other)) != digest(read(one))


def test_the_digest_does_not_depend_on_the_order_of_a_large_map() -> None:
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
    ],
)
def test_the_digest_depends_on_every_argument(change: dict[str, Any]) -> None:
    changed = create_volume()
    changed.MergeFrom(csi_pb2.CreateVolumeRequest(**change))
    assert digest(changed) != digest(create_volume())


def test_the_digest_depends_on_arguments_that_are_not_shown() -> None:
    changed = create_volume()
    changed.volume_capabilities[0].mount.mount_flags.append("ro")
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
