"""The opt-in to deferral: all conditions hold, or the pod learns which one does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.csi.volume_context import DIRECT_VOLUME
from edge.disk.layout import Layout
from edge.disk.runtimes import DirectRuntime, direct_runtime
from edge.volumes import Deferral, DriverRules, Pod, PodVolume, SecretRef, Volume
from edge.wanted.opt_in import NotDeferrable, OptIn, asked_names

GO = DirectRuntime(name="kata", flavour="go", version="3.20")
RS = DirectRuntime(name="kata-rs", flavour="rs", version="4.1", fs_types=("ext4",))
OLD_RS = DirectRuntime(name="kata-3", flavour="rs", version="3.31")
OPT_IN = OptIn({"kata": GO, "kata-rs": RS, "kata-3": OLD_RS}, Layout(Path("/var/lib/kubelet")))


def want(*, volume: dict[str, Any] | None = None, **pod: Any) -> PodVolume:
    return PodVolume(
        pod=Pod(**({"uid": "u1", "namespace": "ns", "name": "web", "runtime_class": "kata"} | pod)),
        volume=Volume(**({"driver": "d.csi", "handle": "h", "name": "pv-1"} | (volume or {}))),
        volume_name="data",
    )


def decide(given: PodVolume, *, allowed: bool = True, sub_path: bool = False) -> PodVolume:
    return OPT_IN.decide(given, allowed=allowed, sub_path=sub_path)


def test_a_deferred_volume_is_a_block_volume_for_the_driver() -> None:
    given = want(volume={"mount_options": ("noatime",), "rules": DriverRules(fs_group_policy="File")}, fs_group=7)
    deferral = Deferral(runtime="kata, go", flavour="go", fs_type="ext4", fs_group=7)
    assert decide(given) == replace(given, volume=replace(given.volume, block=True), deferral=deferral)


def test_the_volumes_own_attribute_allows_it_too() -> None:
    assert decide(want(volume={"attributes": {DIRECT_VOLUME: "true"}}), allowed=False).deferral is not None


def test_the_group_follows_the_drivers_policy_for_mounted_volumes() -> None:
    def group(policy: str, **volume: Any) -> int | None:
        decided = decide(want(volume={"rules": DriverRules(fs_group_policy=policy), **volume}, fs_group=7))
        assert decided.deferral is not None
        return decided.deferral.fs_group

    assert group("File") == 7
    assert group("None") is None
    assert group("ReadWriteOnceWithFSType") == 7


TOKENS = DriverRules(token_audiences=(("vault", 0),))
REFUSALS = {
    "no-runtime": (want(runtime_class=""), "the pod has no runtimeClassName"),
    "unknown-runtime": (want(runtime_class="gvisor"), "was not started with --direct-runtime=gvisor="),
    "inline": (want(volume={"ephemeral": True}), "it is an inline volume"),
    "block": (want(volume={"block": True}), "its volumeMode is Block"),
    "many-nodes": (want(volume={"access_modes": ("ReadWriteMany",)}), "several nodes may use it at once"),
    "secret": (want(volume={"publish_secret": SecretRef("ns", "s")}), "gets secrets when it publishes"),
    "token": (want(volume={"rules": TOKENS}), "gets secrets when it publishes"),
    "file-system": (want(volume={"fs_type": "xfs"}, runtime_class="kata-rs"), "runtime kata-rs mounts ext4"),
    "bind": (want(volume={"mount_options": ("rbind",)}), "its mount option rbind has no meaning in a guest"),
    "password": (want(volume={"mount_options": ("password=x",)}), "one of its mount options looks like a secret"),
    "group": (want(volume={"fs_type": "ext4"}, runtime_class="kata-rs", fs_group=7), "kata-rs, rs does not apply"),
    "options-of-old-rs": (
        want(volume={"mount_options": ("noatime",)}, runtime_class="kata-3"),
        "ignores mount options",
    ),
    "read-only-of-old-rs": (
        replace(want(runtime_class="kata-3"), read_only=True),
        "ignores mount options and read-only claims",
    ),
    "group-0": (want(volume={"fs_type": "ext4"}, fs_group=0), "the pod's fsGroup is 0"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_each_condition_that_does_not_hold_is_the_reason(case: str) -> None:
    given, says = REFUSALS[case]
    with pytest.raises(NotDeferrable, match=says):
        decide(given)


def test_a_sub_path_and_a_driver_that_does_not_allow_it_are_reasons() -> None:
    with pytest.raises(NotDeferrable, match="subPath"):
        decide(want(), sub_path=True)
    with pytest.raises(NotDeferrable, match="has no annotation"):
        decide(want(), allowed=False)


def test_a_path_of_189_bytes_is_the_longest() -> None:
    room = 189 - len("/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi//mount")
    assert decide(want(volume={"name": "v" * room})).deferral is not None
    with pytest.raises(NotDeferrable, match=r"190 bytes.*allows 189 at most"):
        decide(want(volume={"name": "v" * (room + 1)}))


def test_the_names_in_a_pods_annotation_are_separated_by_commas() -> None:
    assert asked_names({"csi-bridge.io/direct-volumes": "data, logs,"}) == {"data", "logs"}
    assert asked_names(None) == asked_names({}) == frozenset()


def test_a_runtime_is_read_from_its_flag_and_written_back() -> None:
    assert direct_runtime("kata=go:3.20") == GO
    assert direct_runtime(str(RS)) == RS
    assert GO.shown == "kata, go"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kata", "must be NAME=go:VERSION"),
        ("kata=qemu:3.20", "must be NAME=go:VERSION"),
        ("kata=go:2.4", "needs version 2.5 or later"),
        ("kata=rs:3.2.0", "needs version 3.3 or later"),
        ("kata=go:3.20:btrfs", "may name only file systems"),
    ],
)
def test_another_text_is_refused_with_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        direct_runtime(text)


def test_mount_options_reach_the_guest_of_a_runtime_that_reads_them() -> None:
    given = replace(want(volume={"mount_options": ("noatime",)}, runtime_class="kata-rs"), read_only=True)
    assert decide(given).deferral == Deferral(runtime="kata-rs, rs", flavour="rs", fs_type="ext4")
