"""Node calls: the fields that keep a volume or a Secret safe, and what the parity with the kubelet does not show."""

from dataclasses import replace
from typing import Any

import pytest

from common.csi import csi_pb2 as pb
from common.observe.metrics import VolumeStats
from edge.calls import node_requests as requests
from edge.calls.node_requests import Has
from edge.volumes import DriverRules, Pod, PodVolume, Volume

Mode = pb.VolumeCapability.AccessMode.Mode
POD = Pod(uid="u1", namespace="shop", name="web", fs_group=2000)
VOLUME = Volume(driver="d.csi", handle="vol-1", name="pv1", fs_type="ext4", mount_options=("noatime", "discard"))
ALL = frozenset(range(1, 9))
STAGE_ONLY = frozenset({Has.STAGE_UNSTAGE_VOLUME})


def wanted(volume: Volume = VOLUME, pod: Pod = POD, **more: Any) -> PodVolume:
    return PodVolume(pod=pod, volume=volume, volume_name="data", **more)


def stage(volume: Volume = VOLUME, capabilities: frozenset[int] = STAGE_ONLY, **more: Any) -> pb.NodeStageVolumeRequest:
    return requests.stage(wanted(volume, **more), "/staging", capabilities, requests.Inputs())


def publish(
    what: PodVolume | None = None, capabilities: frozenset[int] = STAGE_ONLY, **more: Any
) -> pb.NodePublishVolumeRequest:
    return requests.publish(what or wanted(), "/target", "/staging", capabilities, requests.Inputs(**more))


@pytest.mark.parametrize(
    ("modes", "without", "with_it"),
    [
        (("ReadWriteOnce",), Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_MULTI_WRITER),
        (("ReadWriteOncePod",), Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_SINGLE_WRITER),
        (("ReadOnlyMany",), Mode.MULTI_NODE_READER_ONLY, Mode.MULTI_NODE_READER_ONLY),
        (("ReadWriteMany",), Mode.MULTI_NODE_MULTI_WRITER, Mode.MULTI_NODE_MULTI_WRITER),
        (("ReadOnlyMany", "ReadWriteOnce"), Mode.MULTI_NODE_READER_ONLY, Mode.MULTI_NODE_READER_ONLY),
        (("Newer",), Mode.UNKNOWN, Mode.UNKNOWN),
        ((), Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_MULTI_WRITER),
    ],
)
def test_the_first_access_mode_counts(modes: tuple[str, ...], without: Any, with_it: Any) -> None:
    volume = replace(VOLUME, access_modes=modes)
    able = frozenset({Has.SINGLE_NODE_MULTI_WRITER})
    assert stage(volume, frozenset()).volume_capability.access_mode.mode == without
    assert stage(volume, able).volume_capability.access_mode.mode == with_it
    assert publish(wanted(volume), able).volume_capability.access_mode.mode == with_it


def test_a_file_system_called_block_is_taken_for_a_block_volume_as_by_the_kubelet() -> None:
    assert stage(replace(VOLUME, fs_type="block")).volume_capability.WhichOneof("access_type") == "block"


def test_the_selinux_label_is_a_mount_option() -> None:
    label = "system_u:object_r:container_file_t:s0:c15,c25"
    flags = ["noatime", "discard", f'context="{label}"']
    assert stage(selinux_context=label).volume_capability.mount.mount_flags == flags
    assert publish(wanted(selinux_context=label)).volume_capability.mount.mount_flags == flags
    assert publish(wanted()).volume_capability.mount.mount_flags == flags[:2]


def test_a_publication_says_what_the_pod_may_do_and_who_it_is() -> None:
    volume = replace(VOLUME, attributes={"pool": "fast"}, rules=DriverRules(pod_info=True))
    request = publish(wanted(volume, replace(POD, service_account="seller"), read_only=True))
    assert (request.readonly, list(request.volume_capability.mount.mount_flags)) == (True, ["noatime", "discard"])
    assert dict(request.volume_context) == {
        "pool": "fast",
        "csi.storage.k8s.io/pod.name": "web",
        "csi.storage.k8s.io/pod.namespace": "shop",
        "csi.storage.k8s.io/pod.uid": "u1",
        "csi.storage.k8s.io/serviceAccount.name": "seller",
        "csi.storage.k8s.io/ephemeral": "false",
    }
    assert (publish().readonly, dict(publish().volume_context)) == (False, {})


def test_the_group_is_told_to_a_driver_that_applies_it_and_to_no_other() -> None:
    able = frozenset({Has.VOLUME_MOUNT_GROUP})
    for capabilities, told in ((able, "2000"), (STAGE_ONLY, "")):
        assert stage(capabilities=capabilities).volume_capability.mount.volume_mount_group == told
        assert publish(capabilities=capabilities).volume_capability.mount.volume_mount_group == told


def test_an_expansion_says_the_size() -> None:
    request = requests.expand(VOLUME, "/target", "/staging", ALL, requests.Inputs(), required_bytes=2**31)
    assert request.capacity_range.required_bytes == 2**31


TOKENS = {
    "vault": {"token": "ey<1>", "expirationTimestamp": "2026-01-01T00:00:00Z"},
    "": {"token": "ey2", "expirationTimestamp": "2026-01-02T00:00:00Z"},
}
ASKED = (("vault", 600), ("", 0))


def test_tokens_are_written_as_go_writes_them() -> None:
    volume = replace(VOLUME, rules=DriverRules(token_audiences=ASKED))
    request = publish(wanted(volume), tokens=TOKENS)
    assert request.volume_context[requests.TOKENS_KEY] == (
        '{"":{"token":"ey2","expirationTimestamp":"2026-01-02T00:00:00Z"},'
        '"vault":{"token":"ey\\u003c1\\u003e","expirationTimestamp":"2026-01-01T00:00:00Z"}}'
    )
    assert requests.TOKENS_KEY not in request.secrets


def test_tokens_go_into_the_secrets_if_the_driver_says_so() -> None:
    volume = replace(VOLUME, rules=DriverRules(token_audiences=(("vault", 0),), tokens_in_secrets=True))
    given = {"key": "s3cret"}
    request = publish(wanted(volume), tokens=TOKENS, secrets=given)
    assert (requests.TOKENS_KEY in request.secrets, requests.TOKENS_KEY in request.volume_context) == (True, False)
    assert given == {"key": "s3cret"}


def test_a_block_volume_gets_no_tokens_as_from_the_kubelet() -> None:
    volume = replace(VOLUME, block=True, rules=DriverRules(token_audiences=ASKED))
    assert requests.TOKENS_KEY not in publish(wanted(volume)).volume_context


def test_equal_arguments_make_equal_bytes() -> None:
    many = {f"k{number}": "v" for number in range(20)}
    backwards = dict(reversed(many.items()))
    assert stage(replace(VOLUME, attributes=many)) == stage(replace(VOLUME, attributes=backwards))
    assert stage(replace(VOLUME, attributes=many), ALL) == stage(replace(VOLUME, attributes=backwards), ALL)


@pytest.mark.parametrize(
    ("policy", "fs_type", "modes", "expected"),
    [
        ("File", "", ("ReadWriteMany",), True),
        ("None", "ext4", ("ReadWriteOnce",), False),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteOnce",), True),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteOncePod",), True),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteMany", "ReadWriteOnce"), True),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteMany",), False),
        ("ReadWriteOnceWithFSType", "", ("ReadWriteOnce",), False),
    ],
)
def test_who_changes_the_group_of_the_files(policy: str, fs_type: str, modes: tuple[str, ...], expected: bool) -> None:
    volume = replace(VOLUME, fs_type=fs_type, access_modes=modes, rules=DriverRules(fs_group_policy=policy))
    assert requests.wants_fs_group(wanted(volume), frozenset()) is expected
    assert not requests.wants_fs_group(wanted(volume, read_only=True), frozenset())
    assert not requests.wants_fs_group(wanted(volume, replace(POD, fs_group=None)), frozenset())
    assert not requests.wants_fs_group(wanted(volume), frozenset({Has.VOLUME_MOUNT_GROUP}))


def test_an_inline_volume_counts_as_one_writers() -> None:
    volume = replace(VOLUME, ephemeral=True, access_modes=())
    assert requests.wants_fs_group(wanted(volume), frozenset())


USAGE = pb.NodeGetVolumeStatsResponse(
    usage=[
        pb.VolumeUsage(available=1, total=3, used=2, unit=pb.VolumeUsage.BYTES),
        pb.VolumeUsage(available=10, total=30, used=20, unit=pb.VolumeUsage.INODES),
        pb.VolumeUsage(available=7, unit=pb.VolumeUsage.UNKNOWN),
    ]
).SerializeToString()
SICK = bytes([0x12, 0x0C, 0x08, 0x01, 0x12, 0x08]) + b"too hot!"
COUNTS: dict[str, Any] = {
    "available_bytes": 1,
    "capacity_bytes": 3,
    "used_bytes": 2,
    "inodes_free": 10,
    "inodes": 30,
    "inodes_used": 20,
}


def test_usage_is_read() -> None:
    assert requests.read_stats(USAGE, frozenset({2})) == VolumeStats(**COUNTS)


def test_an_old_drivers_condition_is_read_from_the_field_that_csi_1_13_has_no_more() -> None:

    assert requests.read_stats(USAGE + SICK, frozenset({2, 4})) == VolumeStats(
        **COUNTS, abnormal=True, message="too hot!"
    )
    assert requests.read_stats(USAGE, frozenset({2, 4})) == VolumeStats(**COUNTS, abnormal=False)


def test_a_condition_of_a_driver_that_has_no_such_capability_is_not_taken_for_one() -> None:
    assert requests.read_stats(USAGE + SICK, frozenset({2})) == VolumeStats(**COUNTS)


def test_an_answer_without_usage_says_nothing_unless_it_tells_the_condition() -> None:
    assert requests.read_stats(b"", frozenset({2})) is None
    assert requests.read_stats(SICK, frozenset({2, 4})) == VolumeStats(abnormal=True, message="too hot!")


def test_health_is_abnormal_with_every_reason_told() -> None:
    entry = pb.VolumeHealth.VolumeHealthEntry
    answer = pb.NodeGetVolumeHealthResponse(
        volume_health=pb.VolumeHealth(
            health_statuses=[
                entry(status=pb.DEGRADED, reason="Slow", message="one disk is gone"),
                entry(status=pb.DATA_LOSS, reason="Lost"),
            ]
        )
    )
    assert requests.read_health(answer.SerializeToString()) == (True, "Slow: one disk is gone; Lost")
    assert requests.read_health(b"") == (False, "")


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="its answer is not a Node"):
        requests.read_health(b"\xff\xff")
