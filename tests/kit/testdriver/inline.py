"""An inline volume: made by its pod's NodePublishVolume under the kubelet's id, gone with NodeUnpublishVolume.

The kubelet neither creates, attaches nor stages it, and knows nothing of its capacity (Kubernetes, CSI ephemeral
volumes).
"""

from dataclasses import replace

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from tests.kit.testdriver import units, wishes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.records import Phase, Volume
from tests.kit.testdriver.state import Tables

EPHEMERAL_KEY = wishes.RESERVED_PREFIX + "ephemeral"
"""The kubelet's mark in volume_context (CSIDriver.spec.podInfoOnMount)."""

SIZE_KEY = "size"
"""The one attribute that a pod may give: the volume's size, e.g. `100Mi`."""


def is_inline(request: pb.NodePublishVolumeRequest) -> bool:
    """Whether a publication is of an inline volume."""
    return request.volume_context.get(EPHEMERAL_KEY) == "true"


def inline_volume(driver: Driver, request: pb.NodePublishVolumeRequest) -> Volume:
    """The volume of the publication; makes it if this is the first.

    Raises:
        CsiError: INVALID_ARGUMENT, ALREADY_EXISTS, RESOURCE_EXHAUSTED.
    """
    if request.volume_capability.WhichOneof("access_type") != "mount":
        raise errors.invalid("an inline volume is a filesystem: access type mount (Kubernetes)")
    with driver.state.writing() as tables:
        found = tables.volumes.get(volume_id=request.volume_id)
        if found is not None and not found.ephemeral:
            raise errors.already_exists(f"volume {request.volume_id} exists, and is no inline volume")
        if found is not None and found.phase is Phase.READY:
            return found
        planned = _planned(driver, tables, request)
        tables.volumes.put(planned)
    driver.pool.remove(planned)  # what a failure left half made
    try:
        driver.pool.make(planned)
    except BaseException:
        driver.forget(planned)
        raise
    made = replace(planned, phase=Phase.READY)
    with driver.state.writing() as tables:
        tables.volumes.put(made)
    return made


def _planned(driver: Driver, tables: Tables, request: pb.NodePublishVolumeRequest) -> Volume:
    equal = pb.CreateVolumeRequest(
        name=request.volume_id,
        volume_capabilities=[request.volume_capability],
        capacity_range=pb.CapacityRange(required_bytes=_size(request)),
    )
    wish = wishes.parse_wish(equal, driver.settings)
    size = wishes.wished_size(wish, None, driver.settings)
    if size > driver.free_bytes(tables, driver.node):
        raise errors.exhausted(f"inline volume {request.volume_id}: not enough free capacity on {driver.node}")
    return Volume(
        volume_id=request.volume_id,
        name=wish.name,
        phase=Phase.CREATING,
        owner=driver.node,
        layout=wish.layout,
        size_bytes=size,
        fs_type=wish.fs_type,
        node=driver.node,
        ephemeral=True,
    )


def _size(request: pb.NodePublishVolumeRequest) -> int:
    text = request.volume_context.get(SIZE_KEY, "")
    try:
        return units.parse_size(text) if text else 0
    except ValueError as error:
        raise errors.invalid(f"volume attribute {SIZE_KEY}: write bytes or a number with Ki, Mi, Gi or Ti") from error
