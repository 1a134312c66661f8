"""A small device without a kubelet: the kernel gives the agent little memory and processor time."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.control_group import ControlGroup
from tests.kit.edge_node import NODE, EdgeNode, csi_driver, pod, volume
from tests.kit.needs import needs_mounts

_VOLUMES = 100


@pytest.mark.slow
@needs_mounts
def test_an_agent_with_128_mb_and_a_quarter_of_a_core_mounts_a_hundred_volumes(short_dir: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        try:
            group = stack.enter_context(ControlGroup(f"csi-bridge-{short_dir.name}", memory_mb=128, cores=0.25))
        except OSError as error:
            pytest.skip(f"needs a control group: {error}")
        node = stack.enter_context(EdgeNode(short_dir, tmp_path))
        node.start_vendor(("--no-attach",))
        handles = {f"v{number}": node.make_volume(f"v{number}") for number in range(_VOLUMES)}
        node.write(csi_driver(), *(each for name, it in handles.items() for each in volume(name, it)), file="volumes")
        node.write(*(pod(f"p-{name}", name) for name in handles), file="pods")
        node.bridge.start_hub(f"--manifests={node.manifests}")
        flags = (f"--root-dir={node.root}",)
        node.agent = node.bridge.start_agent(NODE, node.driver.socket, flags=flags, within=group.words)

        def published() -> bool:
            return [it["state"] for it in node.state()["volumes"]] == ["published"] * _VOLUMES

        node.agent.process.wait_until(published, what="published volumes", timeout_s=60.0)
