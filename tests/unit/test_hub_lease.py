"""How a hub keeps the Lease of its cluster when it is edited, deleted, taken, or cannot be written."""

import asyncio
from typing import Any

import pytest

from cli.process_options import HUB_OPTIONS
from cloud.kube.client import RESOURCES, KubeError
from cloud.leadership.hub_lease import HubLease
from cloud.leadership.leadership import NAME
from common.errors import LeadershipLost
from tests.kit.fake_api import FakeApi

SETTINGS = HUB_OPTIONS.read({"kubeconfig": "k", "leader_election_namespace": "ns"})
RENEWAL = f"patch leases {NAME}"


async def _never() -> None:
    raise AssertionError("it has not to wait")


class Site:
    """A hub that holds the Lease; time passes only in its pauses, before each of which the test may do something."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.now = 1_000.0
        self.lease = HubLease(SETTINGS, "here", now=lambda: self.now, wall=lambda: 1.8e9, pause=self._pause)
        self.before: list[Any] = []
        self.pauses: list[float] = []

    async def take(self) -> dict[str, Any]:
        self.put({"holderIdentity": "", "leaseDurationSeconds": 1})
        assert await self.lease.take(self.api, asyncio.Event(), _never)  # type: ignore[arg-type]  # stands in for it
        return await self.read()

    async def read(self) -> dict[str, Any]:
        return await self.api.get(RESOURCES["Lease"], NAME, "ns")

    def put(self, spec: dict[str, Any], **metadata: Any) -> None:
        self.api.put({"kind": "Lease", "metadata": {"name": NAME, "namespace": "ns", **metadata}, "spec": spec})

    async def lose(self) -> str:
        """Keep the Lease until it is lost. Returns the reason."""
        with pytest.raises(LeadershipLost) as lost:
            await self.lease.keep(self.api)  # type: ignore[arg-type]  # stands in for it
        assert not self.lease.is_held
        return str(lost.value)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if self.before:
            self.before.pop(0)()


async def test_a_hub_that_cannot_renew_tries_each_second_and_ends_at_its_deadline() -> None:
    site = Site()
    await site.take()
    site.api.failures["patch"] = [KubeError("patch", 0, "", "no route")] * 100
    assert (await site.lose()).endswith("so that two hubs never work at once: Kubernetes: patch: no route")
    assert site.pauses == [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]


async def test_a_process_that_stood_still_ends_without_another_try() -> None:
    site = Site()
    await site.take()

    def stand_still() -> None:
        site.now += 100.0

    site.before, asked = [stand_still], len(site.api.asked)
    assert "did not run for a while" in await site.lose()
    assert len(site.api.asked) == asked


async def test_an_edited_lease_is_mended_a_deleted_one_is_made_anew_and_one_of_another_hub_is_lost_at_once() -> None:
    site = Site()
    taken = await site.take()
    seen: list[dict[str, Any]] = []

    def edit() -> None:
        site.put({**taken["spec"], "leaseDurationSeconds": 86_400})

    def delete() -> None:
        site.api.drop("Lease", NAME, "ns")

    def look() -> None:
        seen.append(site.api._objects["Lease"]["ns", NAME])

    def rob() -> None:
        site.put({"holderIdentity": "other_1_there", "leaseDurationSeconds": 15})

    site.before = [edit, look, delete, look, rob]
    assert (await site.lose()).endswith("other_1_there holds it now")
    for lease in seen:
        assert [lease["spec"][it] == taken["spec"][it] for it in ("holderIdentity", "leaseDurationSeconds")] == [
            True
        ] * 2
    assert site.pauses == [5.0] * 5
    await site.lease.release(site.api)  # type: ignore[arg-type]  # stands in for it
    assert (await site.read())["spec"]["holderIdentity"] == "other_1_there"


async def test_a_hub_that_finds_another_one_at_any_question_acts_no_more_and_one_whose_lease_was_deleted_goes_on() -> (
    None
):
    """Its clock may have stood still, and the next renewal is seconds away."""
    site = Site()
    taken = await site.take()
    site.api.drop("Lease", NAME, "ns")
    for holder, held in (("", True), ("other_1_there", False)):
        if holder:
            site.put({**taken["spec"], "holderIdentity": holder})
        with pytest.raises(KubeError, match=f"{holder or 'no hub'} holds the Lease ns/csi-bridge-hub now"):
            await site.lease.check(site.api)  # type: ignore[arg-type]  # stands in for it
        assert site.lease.is_held is held


async def test_a_copy_of_a_running_hubs_machine_makes_one_of_the_two_hubs_end() -> None:
    site = Site()
    taken = await site.take()
    copied = {**taken["spec"], "renewTime": "2027-01-15T08:00:05.000000Z"}
    site.before = [lambda: site.put(copied)]
    assert "a copy of this process renews it" in await site.lose()


async def test_a_released_lease_is_as_client_go_releases_one() -> None:
    site = Site()
    await site.take()
    await site.lease.release(site.api)  # type: ignore[arg-type]  # stands in for it
    spec = (await site.read())["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)
