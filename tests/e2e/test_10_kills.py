"""A process of the cluster or the vendor's is killed in the middle of many claims. tests/chaos has our own."""

from collections.abc import Callable

import pytest

from tests.e2e.cluster import Cluster, Driver
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import SAN
from tests.kit.waiting import let_pass, wait_for

MIB = 1 << 20
_COUNT = 20
_AWAY_S = 2.0  # how long a killed process stays away: about as long as a kubelet takes to start a container again

_READY_LIMIT_S = 180.0  # an API server that starts is asked by everybody at once

_ALL_BOUND_LIMIT_S = 180.0


def _blows(cluster: Cluster, driver: Driver) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Victim → how it is killed, and how it comes back."""
    plane = cluster.plane

    def start_api_server() -> None:
        plane.api_server.start()
        plane.api_server.wait_until(plane.ready, what="being ready", timeout_s=_READY_LIMIT_S)

    return {
        "vendor": (driver.pinned.process.kill, driver.pinned.process.start),
        "csi-provisioner": (lambda: driver.keeper.kill("csi-provisioner"), lambda: None),
        "kube-apiserver": (plane.api_server.kill, start_api_server),
        "kube-controller-manager": (plane.controller_manager.kill, plane.controller_manager.start),
    }


@pytest.mark.parametrize("victim", ["vendor", "csi-provisioner", "kube-apiserver", "kube-controller-manager"])
def test_all_claims_are_bound_and_none_twice(cluster: Cluster, tenant: Tenant, victim: str) -> None:
    driver = cluster.driver(SAN)
    kill, revive = _blows(cluster, driver)[victim]
    before, calls = set(driver.directories()), len(driver.pinned.calls("CreateVolume"))
    claims, names = tenant.claims(driver), [f"data-{number}" for number in range(_COUNT)]
    driver.pinned.set_faults("CreateVolume=delay:1s")
    try:
        for name in names[: _COUNT // 2]:
            claims.ask(name, size_bytes=64 * MIB)
        wait_for(lambda: len(driver.pinned.calls("CreateVolume")) > calls, what="first CreateVolume")
        kill()
        if victim != "kube-apiserver":
            for name in names[_COUNT // 2 :]:
                claims.ask(name, size_bytes=64 * MIB)
        let_pass(_AWAY_S)
        revive()
        if victim == "kube-apiserver":
            for name in names[_COUNT // 2 :]:
                claims.ask(name, size_bytes=64 * MIB)
        volumes = [claims.wait_bound(name, timeout_s=_ALL_BOUND_LIMIT_S) for name in names]
    finally:
        driver.pinned.set_faults()

    handles = {volume["spec"]["csi"]["volumeHandle"] for volume in volumes}
    assert len(handles) == _COUNT
    assert set(driver.directories()).difference(before) == handles

    tenant.start_pod("web", "k1", names[0], names[-1])
    tenant.write("web", f"{names[-1]}/file", "hello")
    assert tenant.read("web", f"{names[-1]}/file") == "hello"
    tenant.delete_pod("web")
    for name in names:
        tenant.api.delete("PersistentVolumeClaim", name, namespace=tenant.namespace)
    wait_for(
        lambda: set(driver.directories()) == before,
        what="end of all volumes",
        timeout_s=_ALL_BOUND_LIMIT_S,
        instead=driver.directories,
    )
