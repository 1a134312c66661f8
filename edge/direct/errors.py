"""The errors of direct volumes, by what the caller can do."""

from common.errors import BridgeError


class DirectVolumeError(BridgeError):
    """A step on a direct volume failed. `str()` is a sentence for people, the same on each try."""


class VolumePathRefused(DirectVolumeError):
    """A volume path that cannot be a direct volume's: use another root directory. No driver was called."""

    def __init__(self, volume_path: str, why: str) -> None:
        super().__init__(f"{volume_path!r} cannot be the path of a direct volume: {why}")


class MountInfoBroken(DirectVolumeError):
    """A `mountInfo.json` that the runtimes cannot read; `why` has no path."""

    def __init__(self, why: str, *, volume_path: str = "") -> None:
        self.why = why
        whose = f"the mount info of direct volume {volume_path}" if volume_path else "the mount info"
        super().__init__(f"{whose} cannot be used: {why}")


class ShimError(DirectVolumeError):
    """A question to the runtime of a running sandbox has no good answer. It may have carried out the request."""


class Unsupported(ShimError):
    """No sandbox is known that uses the volume, or its runtime does not serve the request."""
