"""Figures of the edge: pods' volumes on one node, from the pod to the mount, by the agent and beside the real kubelet.

The driver makes real mounts. It is the load generator's, in Go, wherever a slower one would dominate the measurement.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from bench.call_figures import sizes
from bench.chain import Command
from bench.figure import Figure, of_samples
from bench.load_node import LoadNode, cpu_s, pods_with_a_volume, pods_without_volumes
from bench.progress import say
from tests.kit.edge_node import NODE, EdgeNode, csi_driver, pod, volume
from tests.kit.joined_edge import JoinBridge
from tests.kit.waiting import wait_for

_VOLUMES = 300
_OBJECTS = 10_000
_REST_S = 5.0
_IDLE_S = 60.0
"""Each volume is looked at once within this time."""


def missing(loadgen: Command) -> str:
    """Return why no volume can be measured here; empty if volumes can."""
    if os.geteuid() != 0:
        return "only root can mount"
    if Path(loadgen[0]).name != "loadgen":
        return "its driver is the load generator's, which needs Go"
    return ""


# ---- an agent's memory -----------------------------------------------------------------------------------------------

_KEY_MAKER = """
from edge.identity.key_maker import answer
from edge.identity.keys import AskForRequest
answer(AskForRequest(b"", b"", False))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def agent_size(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure an agent's memory: after some thousand calls, and with a volume's Secret after a renewal."""
    found = sizes(directory, loadgen)
    after = f"hub {found['hub']:.0f}, proxy driver {found['proxy']:.0f}"
    calls = of_samples("edge agent, resident, after 3,000 calls", [found["agent"]], "MB", note=after, digits=0)
    what = "edge agent, resident, idle"
    if os.geteuid() != 0:
        return [calls, Figure(what, "left out: only root can mount")]
    here, logs = directory / "n", directory / "logs"
    here.mkdir()
    with EdgeNode(here, logs) as node:
        node.bridge = bridge = JoinBridge(here, logs)
        node.start_vendor(("--no-attach",))
        source = {"nodePublishSecretRef": {"name": "s", "namespace": "default"}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": source["nodePublishSecretRef"]}
        claim = volume("v", node.make_volume("v"), source=source)
        node.write(csi_driver(), secret | {"stringData": {"key": "word"}}, *claim, pod("web", "v"), file="all")
        bridge.start_hub(f"--manifests={node.manifests}", "--cert-ttl=2m")
        joined = bridge.node(NODE)
        joined.join(bridge.token(f"--node={NODE}"))
        joined.make_due()
        agent = bridge.start_joined(joined, node.driver.socket, flags=[f"--root-dir={node.root}"])
        agent.wait_logged("is published to pod")
        agent.wait_logged("the former link to the hub")  # it ends after the renewal
        time.sleep(_REST_S)
        idle = psutil.Process(agent.process.pid).memory_full_info()
    command = [sys.executable, "-I", "-c", _KEY_MAKER]
    peak_kb = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    mb = [size / 1_048_576 for size in (idle.rss, idle.pss, idle.uss)]
    note = f"{mb[1]:.0f} in proportion, {mb[2]:.0f} alone; at the renewal, a process of {peak_kb / 1024:.0f}"
    return [calls, of_samples(what, mb[:1], "MB", at_most=42, note=note, digits=0)]


# ---- many volumes ----------------------------------------------------------------------------------------------------


def many_volumes(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure a node with 10,000 objects and 300 volumes: first sync, repeated sync, and a boot without a hub."""
    what = f"{_OBJECTS:,} objects, {_VOLUMES} volumes"
    if why := missing(loadgen):
        return [Figure(what, f"left out: {why}")]
    volumes = pods_with_a_volume(_VOLUMES, secrets="first")
    with LoadNode(directory, loadgen) as node:
        node.write_json(volumes, file="volumes")
        node.write_json(pods_without_volumes(_OBJECTS - len(volumes) - 2), file="idle")  # without Node and CSIDriver
        node.start_cloud()
        node.wait_hub_read()
        first = _first_time(node)
        nothing = node.reconnect()
        changed = [*pods_with_a_volume(1, secrets="second"), *volumes[6:]]
        three = node.reconnect(lambda: _change(node, changed))
        boot = _boot(node)
    return [
        of_samples(f"{what}: told after", [first["told_s"]], "s", note=f"{first['down'] / 1e6:.2f} MB"),
        of_samples(f"{what}: link up to first mount", [first["first_s"]], "s", at_most=2),
        of_samples(f"{what}: link up to all mounts", [first["all_s"]], "s"),
        of_samples(f"{what}: edge agent, resident", [first["rss_mb"]], "MB", at_most=60, digits=0),
        Figure(f"{what}: bytes of a reconnect, nothing new, down / up", f"{nothing['down']:,} / {nothing['up']:,}"),
        Figure(f"{what}: the same, three Secrets changed", f"{three['down']:,} / {three['up']:,}"),
        of_samples(
            f"{what}: boot without a hub, agent's start to all mounts",
            [boot["all_s"]],
            "s",
            note=f"first {boot['first_s']:.2f} s",
        ),
    ]


def _first_time(node: LoadNode) -> dict[str, float]:
    began = time.time()
    node.start_agent(wait=False)
    calls = node.wait_all_published(_VOLUMES, since=began)
    wait_for(lambda: node.meter.quiet_s() > 1.0, what="end of the talk")
    up = node.meter.ups[0]
    large = [chunk.at for chunk in node.meter.chunks if chunk.down and chunk.size_bytes > 1_000]
    return {
        "up_s": up - began,
        "told_s": large[-1] - up,
        "first_s": (calls[0].end or 0) - up,
        "all_s": (calls[-1].end or 0) - up,
        "rss_mb": node.process.memory_info().rss / 1_048_576,
        "cpu_s": cpu_s(node.process),
        "down": node.meter.bytes_since(began, down=True),
        "up": node.meter.bytes_since(began, down=False),
    }


def _change(node: LoadNode, objects: list[dict[str, Any]]) -> None:
    node.write_json(objects, file="volumes")
    time.sleep(2.0)  # the hub waits a second before it takes a replaced file
    node.wait_hub_read()


def _boot(node: LoadNode) -> dict[str, float]:
    """Measure a reboot without network: no hub, no mounts, a new agent process."""
    node.bridge.hub.kill()
    node.agent.stop()
    node.wipe_mounts()
    began = time.time()
    node.agent.start(wait=False)
    calls = node.wait_all_published(_VOLUMES, since=began)
    return {"first_s": (calls[0].end or 0) - began, "all_s": (calls[-1].end or 0) - began}


# ---- an idle node ----------------------------------------------------------------------------------------------------


def idle_volumes(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure an agent whose only work is to look at 300 volumes every minute."""
    name = f"idle agent, {_VOLUMES} volumes, looked at every minute"
    if why := missing(loadgen):
        return [Figure(name, f"left out: {why}")]
    with LoadNode(directory, loadgen) as node:
        node.write_json(pods_with_a_volume(_VOLUMES), file="volumes")
        node.start_cloud()
        began = time.time()
        node.start_agent(wait=False)
        node.wait_all_published(_VOLUMES, since=began)
        say(f"idle: {_VOLUMES} volumes are mounted; a minute with looking at them, and a minute without")
        share, looks = _idle_share(node)
        node.agent.stop()
        node.agent.process.command.append("--volume-stats-interval=24h")
        node.agent.start()
        wait_for(lambda: bool(node.state()["in_step"]), what="agent in step")
        without, _ = _idle_share(node)
    measured = f"{share:.2%} of a core ({without:.2%} without looking)"
    details = {"share": share, "without": without, "looks": looks}
    return [Figure(name, measured, "< 0.50%", share < 0.005, details, [share * 100])]


def _idle_share(node: LoadNode) -> tuple[float, int]:
    """Return the share of CPU time, and how often the driver was asked for a volume's usage."""
    time.sleep(5.0)  # the work for the mounts is over
    began, cpu, looks = time.monotonic(), cpu_s(node.process), len(node.driver.calls("NodeGetVolumeStats"))
    time.sleep(_IDLE_S)
    share = (cpu_s(node.process) - cpu) / (time.monotonic() - began)
    return share, len(node.driver.calls("NodeGetVolumeStats")) - looks
