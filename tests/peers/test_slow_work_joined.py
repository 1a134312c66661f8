"""A driver that takes longer than the provisioner waits: the retries join the work instead of doing it again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.forms import in_each_form
from tests.kit.peers.claims import Claims
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.peers.tunnel import Tunnel


@in_each_form
@pytest.mark.slow
def test_a_volume_that_takes_25_s_to_make_is_made_once_under_a_time_out_of_10_s(
    testdriver: Callable[..., RunningDriver],
    tunnel_to: Callable[[Path, str], Tunnel],
    claims: Claims,
    sidecars: Sidecars,
) -> None:
    # Attempts at 0 to 10, 11 to 21 and 23 to 33 s; the third one gets the answer.
    # docs/csi-contract.md#a-timeout-is-not-a-cancel
    vendor = testdriver(claims.storage_class, flags=("--no-topology", "--fault=CreateVolume=delay:25s"))
    sidecars.start("csi-provisioner", tunnel_to(vendor.socket, vendor.name).socket, "--timeout=10s")
    claims.ask("data")

    failures = claims.wait_failed("data", times=2, timeout_s=90.0)
    volume = claims.wait_bound("data")

    assert ["DeadlineExceeded" in failure["message"] for failure in failures] == [True] * len(failures)
    assert [call.code for call in vendor.calls("CreateVolume")] == ["OK"]
    assert vendor.volumes == [volume["spec"]["csi"]["volumeHandle"]]
    claims.let_go("data")
