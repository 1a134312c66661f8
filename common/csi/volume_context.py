"""The bridge's own key in a volume's context, which the driver's answer to CreateVolume has."""

from typing import Final

# `true` asks that the pod's runtime mounts the volume, and allows it: an administrator or the driver has written it. A
# parameter of the StorageClass with this name becomes an attribute of each new volume (`cloud.calls.class_parameters`).
DIRECT_VOLUME: Final = "csi-bridge.io/direct-volume"
