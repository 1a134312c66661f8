"""Lets a hub, its agents and proxy drivers do a bit of everything, kills them, and copies their state directories.

Run it in a checkout of the commit whose state is to be copied (root; README.md beside this file):

    PYTHONPATH=. .venv/bin/python …/tests/stored/make.py TARGET

Everything is small and fixed: nodes n1 (mounts, no kubelet), n2 and n3; the drivers dirdriver.csi and vendor.test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.csi import csi_pb2 as csi
from common.topology import NODE_SEGMENT
from tests.kit.bridge import Bridge
from tests.kit.edge_node import DRIVER, EdgeNode, pod, volume
from tests.kit.requests import create
from tests.kit.sidecar import Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from tests.kit.sidecar import Outcome

BASE = Path("/tmp/csi-bridge-state")
"""Stands in the state wherever a path must: sockets, the root directory."""

SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "credentials", "namespace": "default"},
    "stringData": {"password": "not-so-secret"},
}

KEEP = {
    "hub": ("hub.db", "placement.db", "hub.losses", "placement.losses", "claim-sizes.json", "facts", "manifests"),
    "n1": ("edge.db", "volumes.db", "edge.key", "drivers.json", "instance.json", "home.json"),
    "p0/state": (f"identity-{DRIVER}.json",),
    "p1/state": ("identity-vendor.test.json",),
}
"""What is copied of each state directory: all but locks and journals, which the dumps include."""


def main(target: Path) -> None:
    """Write the copies below `target`."""
    shutil.rmtree(BASE, ignore_errors=True)
    BASE.mkdir()
    with tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as stack:
        node = stack.enter_context(EdgeNode(BASE, Path(logs)))
        node.start()
        vendors = {}
        for name in ("n2", "n3"):
            vendor = vendors[name] = stack.enter_context(Vendor(BASE / f"vendor-{name}.sock"))
            vendor.identity.node_id = f"id-of-{name}"
            node.bridge.start_agent(name, vendor.socket)
        mounted(node)
        placed(node, vendors)
        for member in reversed(node.bridge.members):
            member.kill()
        for directory, names in KEEP.items():
            for name in names:
                if (BASE / directory / name).exists():
                    keep(BASE / directory / name, target / directory.removesuffix("/state") / name)
    shutil.rmtree(BASE)
    BASE.mkdir()
    with tempfile.TemporaryDirectory() as logs, Bridge(BASE, Path(logs)) as bridge:
        lossy(bridge)
        keep(BASE / "hub/hub.losses", target / "hub-with-a-loss/hub.losses")
    shutil.rmtree(BASE)


def lossy(bridge: Bridge) -> None:
    """A hub that lost its database."""
    bridge.start_hub()
    bridge.hub.stop()
    (BASE / "hub/hub.db").write_bytes(b"no database" * 100)
    bridge.hub.start()
    bridge.hub.stop()


def mounted(node: EdgeNode) -> None:
    """Volumes of n1: one of a pod, one of two pods, one with a Secret, one that grew, one that cannot be staged."""
    node.write(SECRET, file="credentials")
    secret = {"nodeStageSecretRef": {"name": "credentials", "namespace": "default"}}
    node.write(*volume("data", node.make_volume("data")), pod("web", "data"), file="web")
    node.write(*volume("both", node.make_volume("both")), pod("one", "both"), pod("two", "both"), file="both")
    node.write(*volume("locked", node.make_volume("locked"), source=secret), pod("safe", "locked"), file="locked")
    grown = node.make_volume("grown")
    node.write(*volume("grown", grown), pod("large", "grown"), file="grown")
    for name in ("web", "one", "two", "safe", "large"):
        (path,) = node.wait_published(name)
        (path / "file").write_text(f"of {name}\n")
    with Sidecar(node.driver.socket) as sidecar:
        larger = csi.ControllerExpandVolumeRequest(volume_id=grown, capacity_range={"required_bytes": 32 << 20})
        assert sidecar.call("ControllerExpandVolume", larger).ok
    node.write(*volume("grown", grown, size="32Mi"), pod("large", "grown"), file="grown")
    sizes = BASE / "hub" / "claim-sizes.json"
    wait_for(lambda: facts("PersistentVolumeClaim", "grown"), what="size of the claim", instead=node.tell)
    wait_for(sizes.exists, what="sizes of the claims")
    node.driver.set_faults("NodeStageVolume=error:UNAVAILABLE:the array is busy")
    node.write(*volume("stuck", node.make_volume("stuck")), pod("waiting", "stuck"), file="stuck")
    wait_for(
        lambda: any("array is busy" in str(each) for each in node.volumes("waiting")), what="error", instead=node.tell
    )
    wait_for(lambda: any("array is busy" in str(row) for row in facts("Pod", "waiting")), what="its fact")
    wait_for(lambda: facts("Event", "%"), what="event")


def facts(kind: str, name: str) -> list[Any]:
    """The hub's facts about the objects of a kind and name."""
    return rows(BASE / "hub" / "facts.db", f"SELECT * FROM facts WHERE kind = '{kind}' AND name LIKE '{name}'")


def placed(node: EdgeNode, vendors: dict[str, Vendor]) -> None:
    """Volumes that the hub placed: made, listed, deleted, and names whose outcome is open."""
    first = node.bridge.start_proxy(DRIVER, "--placement=local")
    proxy = node.bridge.start_proxy("vendor.test", "--placement=local")
    pinned = node.bridge.start_proxy("vendor.test", node="n3")
    sidecar = proxy.sidecar()
    node.bridge.wait_routed(first.sidecar())
    for name in vendors:
        wait_for(lambda name=name: at(sidecar, f"on-{name}", name).ok, what=name)  # type: ignore[misc]  # see name
    listed = [csi.Volume(volume_id=id_) for id_ in ("id-of-on-n2", "found-on-n2")]
    entries = csi.ListVolumesResponse(entries=[csi.ListVolumesResponse.Entry(volume=each) for each in listed])
    vendors["n2"].on("ListVolumes", lambda _: entries)
    assert at(sidecar, "short-lived", "n2").ok
    deleted = csi.DeleteVolumeRequest(volume_id="id-of-short-lived")
    wait_for(lambda: sidecar.call("DeleteVolume", deleted).ok, what="deletion")
    # Nobody knows this one: the hub asks all nodes for their lists.
    unknown = csi.DeleteVolumeRequest(volume_id="id-of-nothing")
    sidecar.call("DeleteVolume", unknown)
    database = BASE / "hub" / "placement.db"
    wait_for(lambda: rows(database, "SELECT * FROM things WHERE id = 'found-on-n2'"), what="listed volume")
    wait_for(lambda: rows(database, "SELECT * FROM nodes", file="hub.db"), what="nodes")
    gates = [vendors[name].hold("CreateVolume") for name in vendors]
    with ThreadPoolExecutor(2) as pool:
        local = pool.submit(at, sidecar, "open-on-n2", "n2")
        vendors["n2"].wait_for_call("CreateVolume", len(vendors["n2"].calls("CreateVolume")) + 1)
        one = pool.submit(pinned.sidecar().call, "CreateVolume", create("open-on-n3"))
        vendors["n3"].wait_for_call("CreateVolume", len(vendors["n3"].calls("CreateVolume")) + 1)
        agent = next(each for each in node.bridge.members if getattr(each, "node", "") == "n3")
        agent.kill()  # the hub now doubts whether n3 made it
        assert not one.result().ok
        wait_for(lambda: rows(database, "SELECT * FROM holds WHERE name LIKE '%open-on-n3'"), what="doubt on disk")
        wait_for(lambda: rows(database, "SELECT * FROM nodes WHERE NOT connected", file="hub.db"), what="n3's end")
        node.bridge.hub.kill()
        assert not local.result().ok
    for gate in gates:
        gate.set()


def at(sidecar: Sidecar, name: str, node: str) -> Outcome:
    """CreateVolume as external-provisioner asks with --strict-topology."""
    term = csi.Topology(segments={NODE_SEGMENT: node})
    return sidecar.call(
        "CreateVolume",
        create(name, accessibility_requirements=csi.TopologyRequirement(requisite=[term], preferred=[term])),
    )


def rows(database: Path, query: str, *, file: str = "") -> list[Any]:
    """Rows of a database that a process uses."""
    with contextlib.closing(sqlite3.connect(database.with_name(file or database.name), timeout=10.0)) as connection:
        return connection.execute(query).fetchall()


def keep(source: Path, target: Path) -> None:
    """Copy a file or a tree, without what identifies this machine; of a database its dump, of the key its digits."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        for file in sorted(source.rglob("*")):
            if file.is_file():
                keep(file, target / file.relative_to(source))
    elif source.suffix == ".db":
        target.with_name(f"{target.name}.sql").write_text(neutral(dump(source)))
    elif source.suffix == ".key":
        target.with_name(f"{target.name}.hex").write_text(f"{source.read_bytes().hex()}\n")
    elif source.suffix == ".losses":  # a block of blank lines, but for the losses
        target.write_text(source.read_text().strip("\n") + "\n")
    else:
        target.write_text(neutral(source.read_text()))


def neutral(text: str) -> str:
    """A text without what identifies this machine."""
    for own, other in (
        (Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "00000000-0000-4000-8000-00000000b007"),
        (Path("/etc/machine-id").read_text().strip(), "0123456789abcdef0123456789abcdef"),
        (os.uname().release, "6.1.0"),
    ):
        text = text.replace(own, other)
    return text


def dump(database: Path) -> str:
    """A database as SQL: its version, its tables and its rows. A BLOB that is text stands there as text."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        lines = [f"PRAGMA user_version={version};"]
        tables = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
        for name, sql in tables:
            lines.append(f"{sql};")
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            found = connection.execute(f"SELECT {', '.join(names)} FROM {name}").fetchall()
            lines += [f"INSERT INTO {name} VALUES ({', '.join(map(literal, row))});" for row in sorted(found)]
    return "\n".join(lines) + "\n"


def literal(value: object) -> str:
    """A value in SQL."""
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            if (text := value.decode()).isprintable():
                return f"CAST({literal(text)} AS BLOB)"
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
