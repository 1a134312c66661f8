"""A process that publishes or unpublishes one volume with the real plugin, so that a test can kill it on its way."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from edge.csi_volume_plugin import Published, Staged, VolumePlugin
from edge.volumes import DriverRules, Pod, PodVolume, Volume
from tests.kit.socket_driver import SocketDriver


async def take(order: dict[str, str]) -> None:
    """Do the order: `up` or `down`, for a volume `block` or not, with the driver at `socket`."""
    driver = SocketDriver(order["driver"], Path(order["socket"]), 1)
    plugin = VolumePlugin(Path(order["root"]), "n1", {order["driver"]: driver}.get)
    block = order["mode"] == "block"
    names: dict[str, Any] = {"driver": order["driver"], "handle": order["handle"], "name": order["name"]}
    if order["way"] == "up":
        volume = Volume(**names, block=block, rules=DriverRules(fs_group_policy="File"))
        pod = Pod(uid=order["uid"], namespace="shop", name="web", fs_group=4321)
        await plugin.stage(volume, publish_context={}, secrets={})
        wanted = PodVolume(pod=pod, volume=volume, volume_name="data")
        await plugin.publish(wanted, publish_context={}, secrets={})
        return
    published = Published(**names, pod_uid=order["uid"], block=block)
    await plugin.unpublish(published)
    await plugin.clean_leftovers(published)
    await plugin.unstage(Staged(**names, block=block))


if __name__ == "__main__":
    asyncio.run(take(json.loads(sys.argv[1])))
