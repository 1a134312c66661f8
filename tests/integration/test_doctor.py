"""`csi-bridge doctor`, `nodes` and `volumes` on real processes: what is well, what is wrong, and how they say it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Routed
from tests.kit.bridge import Agent, Bridge, Hub
from tests.kit.certificates import Authority, Pem
from tests.kit.cluster_objects import as_yaml, claim, driver, pod, volume
from tests.kit.operator import by_hand
from tests.kit.running_driver import Running
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


def findings(*argv: str) -> dict[str, tuple[str, str]]:
    """By check: level and sentence. Of several checks of one name the worst."""
    done = by_hand("doctor", "-o", "json", *argv)
    told = json.loads(done.stdout)
    assert (done.stderr, done.returncode) == ("", 1 if told["wrong"] else 0)
    order = ("ok", "warning", "wrong")
    found = sorted(told["findings"], key=lambda one: order.index(one["level"]))
    return {one["check"]: (one["level"], one["what"]) for one in found}


def level(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: level for name, (level, _) in found.items()}


def by_sockets(hub: Hub, agent: Agent, *more: str) -> tuple[str, ...]:
    return (f"--hub=unix://{hub.uds}", f"--status=unix://{agent.socket}", *more)


def test_a_bridge_that_works_is_well_and_what_is_dead_is_told_from_both_sides(routed: Routed) -> None:
    bridge, agent = routed.bridge, routed.agent
    args = by_sockets(bridge.hub, agent, f"--endpoint=unix://{routed.proxy.socket}")
    found = findings(*args)
    assert {name for name, level in level(found).items() if level != "ok"} <= {
        "volumes",
        "problem",
    }  # no objects, no TLS
    assert found["sidecars"][1].startswith(f"connections to {routed.proxy.socket}: 1;")

    bridge.hub.kill()
    wait_for(lambda: "ECONNREFUSED" in agent.status()["hubs"][0]["why"], what="a dial that the dead hub's host refuses")
    bridge.wait_linked(routed.proxy, linked=False)
    found = findings(*args)
    assert {name for name, level in level(found).items() if level == "wrong"} == {"socket", "driver", "link"}
    assert "nobody listens on" in found["socket"][1]
    assert "the proxy driver has no link to the hub" in found["driver"][1]
    assert "ECONNREFUSED" in found["link"][1]


def test_each_trouble_with_a_certificate_is_told_at_the_node_and_who_was_refused_at_the_hub(
    bridge: Bridge, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    hub = bridge.start_hub(*authority.hub().flags)

    def start(node: str, pem: Pem) -> Agent:
        return bridge.start_agent(node, flags=(f"--hub=wss://{hub.address}", *pem.flags))

    misnamed = start("n1", authority.edge("n2"))
    hub.wait_logged("refused edge n1")
    misnamed.process.wait_until(lambda: "it needs one for" in misnamed.status()["hubs"][0]["why"], what="refusal")
    at_edge = findings(f"--status=unix://{misnamed.socket}")
    assert at_edge["certificate"][0] == "wrong"
    assert "its certificate is for csi-bridge:node:n2" in at_edge["link"][1]
    at_hub = json.loads(by_hand("doctor", "-o", "json", f"--hub=unix://{hub.uds}").stdout)["findings"]
    assert [one for one in at_hub if one["check"] == "problem" and " edge n1 from 127.0.0.1:" in one["what"]]
    nodes = by_hand("nodes", f"--hub=unix://{hub.uds}").stdout
    assert nodes.startswith("the hub knows no edge node\n\nREFUSED: ")

    expired = start("n3", authority.issue("system:node:n3", "system:nodes", file="old", expired=True))
    told = json.loads(by_hand("doctor", "-o", "json", f"--status=unix://{expired.socket}").stdout)["findings"]
    advice = {one["check"]: one["do"] for one in told if one["level"] == "wrong"}
    assert advice["link"].startswith("see the check of the certificate")
    assert advice["certificate"].startswith("replace the file")

    distrustful = start("n4", Authority(tmp_path, name="other CA").edge("n4"))
    wait_for(lambda: distrustful.status()["hubs"][0]["why"] != "not dialled yet", what="a dial")
    found = findings(f"--status=unix://{distrustful.socket}")
    assert found["link"][0] == "wrong"
    assert "its certificate is not trusted" in found["link"][1]

    good = start("n5", authority.edge("n5"))
    good.wait_connected()
    found = findings(f"--status=unix://{good.socket}")
    assert f"connected to wss://{hub.address}" in found["link"][1]
    assert level(found)["certificate"] in {"ok", "warning"}  # the test's end within the hour


def test_a_driver_that_does_not_answer_is_wrong(bridge: Bridge, short_dir: Path) -> None:
    bridge.start_hub()
    agent = bridge.start_agent("n1", short_dir / "none.sock")
    found = findings(f"--status=unix://{agent.socket}")
    assert (found["driver"][0], f"unix://{short_dir}/none.sock" in found["driver"][1]) == ("wrong", True)


def test_a_driver_without_a_controller_needs_no_proxy_driver_and_one_beside_it_is_told_so(
    bridge: Bridge, short_dir: Path
) -> None:
    node_only = Running(short_dir, "--no-controller", "--drivername=only.csi", node="v").start()
    try:
        hub, agent = bridge.start_hub(), bridge.start_agent("n1", node_only.socket)
        agent.wait_connected()
        wait_for(lambda: "only.csi" in json.dumps(listed("nodes", hub)), what="report of the driver")
        done = json.loads(by_hand("doctor", "-o", "json", *by_sockets(hub, agent)).stdout)["findings"]
        drivers = [(it["level"], it["what"]) for it in done if it["check"] == "driver"]
        assert [level for level, _ in drivers] == ["ok", "ok"], drivers
        assert (
            drivers[0][1]
            == "driver only.csi runs on n1, and needs no proxy driver, as it says that it has no controller"
        )
        proxy = bridge.start_proxy("only.csi")
        bridge.wait_linked(proxy)
        wait_for(lambda: level(findings(f"--endpoint=unix://{proxy.socket}"))["driver"] == "warning", what="the report")
        assert "only.csi says that it has no controller" in findings(f"--endpoint=unix://{proxy.socket}")["driver"][1]
    finally:
        node_only.stop()


def listed(command: str, hub: Hub) -> Any:
    return json.loads(by_hand(command, "-o", "json", f"--hub=unix://{hub.uds}").stdout)[command]


def test_volumes_tell_what_the_manifests_and_the_node_say(
    bridge: Bridge, short_dir: Path, tmp_path: Path, vendor: Vendor
) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    objects = (
        pod("web", claims=("data",)),
        claim("data", volume="v"),
        volume("v", driver="vendor.test"),
        volume("free", driver="vendor.test"),
        driver("vendor.test", attachRequired=False),
    )
    (manifests / "web.yaml").write_text(as_yaml(*objects))
    hub = bridge.start_hub(f"--manifests={manifests}")

    def states() -> list[tuple[str, str, str]]:
        return [(one["pv"], one["node"], one["state"]) for one in listed("volumes", hub)]

    wait_for(lambda: len(states()) == 2, what="manifests")
    assert states() == [("free", "", "available"), ("v", "n1", "waiting")]
    bridge.start_agent("n1", vendor.socket)
    wait_for(lambda: states()[1][2] in {"mounted", "error"}, what="word of the node's", instead=bridge.log_tails)


@pytest.mark.parametrize("command", ["status", "nodes", "volumes"])
def test_without_a_hub_the_listings_say_where_it_was_sought(short_dir: Path, command: str) -> None:
    told = by_hand(command, f"--hub=unix://{short_dir}/none.sock")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith(f"csi-bridge: cannot reach unix://{short_dir}/none.sock: ")
