"""A hub or an agent has no free file descriptor: calls go on, nothing is forgotten, and all of it mends."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from tests.intrusion.test_hostile_closures import _RULES, inline, pod
from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.hostile_hub import attack
from tests.kit.intruder import connections, gets_in
from tests.kit.processes import Process
from tests.kit.requests import create, delete
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

_FEW = 128  # a soft limit of open files, as the 1,024 of many systems in small


@contextlib.contextmanager
def without_descriptors(process: Process) -> Iterator[None]:
    """Let a process open no further file."""
    _, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, most))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))


def test_strangers_take_no_descriptor_that_an_agent_needs(bridge: Bridge, authority: Authority) -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FEW, most))
    try:
        hub = bridge.start_hub(*authority.hub().flags)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    with connections(hub, 2 * _FEW):
        assert gets_in(hub, "n1", authority.edge("n1").client())


def test_creates_and_deletes_go_on_while_the_hub_has_no_descriptor(bridge: Bridge, short_dir: Path) -> None:
    hub = bridge.start_hub()
    with Vendor(short_dir / "v.sock") as vendor:
        bridge.start_agent("n1", vendor.socket)
        proxy = bridge.start_proxy("vendor.test", "--placement=local")
        sidecar = proxy.sidecar()
        wait_for(lambda: sidecar.call("CreateVolume", create("first")).ok, what="the first create")
        with without_descriptors(hub.process):
            for number in range(5):
                outcome = sidecar.call("CreateVolume", create(f"v{number}"))
                assert outcome.ok, outcome.refusal
            assert sidecar.call("DeleteVolume", delete("v0")).ok
            proxy.kill()
            proxy.start()
        again = proxy.sidecar()
        wait_for(
            lambda: again.call("DeleteVolume", delete("v1")).ok, what="delete after the proxy driver has come back"
        )


async def test_an_agent_without_a_descriptor_mounts_later_and_forgets_no_volume(
    short_dir: Path, tmp_path: Path
) -> None:
    async with attack(short_dir, tmp_path) as attacked:
        attacked.hub.put(_RULES, pod("before", inline("before")))
        assert (await attacked.volume("before"))["state"] == "published"
        with without_descriptors(attacked.agent.process):
            attacked.hub.put(pod("after", inline("after")))
            attacked.agent.process.wait_until(
                lambda: "Too many open files" in attacked.agent.process.output(), what="error"
            )
            attacked.hub.clear()
        attacked.hub.put(_RULES, pod("again", inline("again")))
        assert (await attacked.volume("again"))["state"] == "published"
        attacked.hub.clear()
        await attacked.nothing_left()
        assert sorted((attacked.root / "pods").glob("*/volumes/*/*")) == []
