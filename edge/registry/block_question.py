"""The question whether a volume can be used as a block device: ValidateVolumeCapabilities, at the driver's controller.

A volume that is deferred to a pod's runtime was mostly created for mounting. Some drivers then refuse it as a block
device, and say so when they are asked. Only a clear no counts. If the controller is not on this node, does not answer,
or needs secrets that a node does not have, the driver's NodeStageVolume decides.
"""

import logging
from collections.abc import Sequence

from common.errors import CallError
from common.status import code_name
from edge import node_requests
from edge.drivers import Driver
from edge.registry.driver_services import find_driver
from edge.volume_errors import NotReady
from edge.volumes import Volume

log = logging.getLogger("csi_bridge.edge.volumes")

_LIMIT_S = 10.0
"""Drivers answer from their records. A pod waits meanwhile."""


async def validate_block(drivers: Sequence[Driver], node: str, volume: Volume) -> None:
    """Raise NotReady if a driver says that its volume cannot be used as a block device."""
    method = node_requests.VALIDATE
    try:
        driver = find_driver(drivers, volume.driver, node, method)
        request = node_requests.validate(volume)
        status, answer = await driver.unary(method, request, timeout_s=_LIMIT_S, to=volume.driver)
        if not status.ok:
            log.debug("volume %s: its driver answered %s: %s", volume.key, code_name(status.code), status.message)
            return
        why = node_requests.why_not_valid(answer or b"")
    except (CallError, ValueError) as error:
        log.debug("volume %s: nobody says whether it can be a block device: %s", volume.key, error)
        return
    if why is not None:
        raise NotReady(
            f"driver {volume.driver} cannot publish the volume as a block device, so it cannot be deferred to the "
            f"runtime{f': {why}' if why else ''}"
        )
