"""The errors of direct volumes, by their cause and by what the caller can do.

DirectVolumeError
├── VolumePathRefused   the path cannot be a direct volume's: use another root directory
├── MountInfoBroken     a mountInfo.json that a runtime would not read either
├── VolumeInUse         a running sandbox uses the volume's present mountInfo.json: stop the pod first
├── StoreFailed         the file system refused
└── ShimError           a question to the runtime of a running sandbox has no good answer
    ├── NoSandbox         nobody to ask: no sandbox that runs is known to use the volume
    ├── ShimGone          no answer: it may have carried out the request
    ├── BadReply          an answer that is not Kata's: it may have carried out the request
    ├── ShimRefused       an error of the shim or its guest
    └── Unsupported       this runtime does not do that; another try helps only after an upgrade
"""

from pathlib import Path

from common.errors import BridgeError


class DirectVolumeError(BridgeError):
    """A step on a direct volume failed. `str()` is a sentence for people, the same on each try."""


class VolumePathRefused(DirectVolumeError):
    """A volume path that cannot be a direct volume's. No driver was called."""

    def __init__(self, volume_path: str, why: str) -> None:
        self.volume_path, self.why = volume_path, why
        super().__init__(f"{volume_path!r} cannot be the path of a direct volume: {why}")


class MountInfoBroken(DirectVolumeError):
    """A mount info that the runtimes cannot read.

    Attributes:
        why: the reason, without a path.
    """

    def __init__(self, why: str, *, volume_path: str = "") -> None:
        self.why, self.volume_path = why, volume_path
        whose = f"the mount info of direct volume {volume_path}" if volume_path else "the mount info"
        super().__init__(f"{whose} cannot be used: {why}")


class VolumeInUse(DirectVolumeError):
    """The volume's mount info would change while a sandbox uses it."""

    def __init__(self, volume_path: str, sandbox_id: str) -> None:
        self.volume_path, self.sandbox_id = volume_path, sandbox_id
        super().__init__(
            f"sandbox {sandbox_id} uses direct volume {volume_path} with another mount info; stop its pod first"
        )


class StoreFailed(DirectVolumeError):
    """The directory of the direct volumes cannot be read or changed."""

    def __init__(self, what: str, error: OSError) -> None:
        super().__init__(f"cannot {what}: {error.strerror or error}")


class ShimError(DirectVolumeError):
    """A question to the runtime of a running sandbox has no good answer."""


class NoSandbox(ShimError):
    """No sandbox that runs is known to use the volume."""

    def __init__(self, device: str) -> None:
        self.device = device
        super().__init__(
            f"no running sandbox is known that uses device {device}: its pod has not started, or its runtime does not "
            f"record its sandboxes"
        )


class ShimGone(ShimError):
    """The shim gave no answer. It may have carried out the request."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"the runtime at {path} gave no answer: {why}")


class BadReply(ShimError):
    """The shim's answer is not Kata's. It may have carried out the request."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"the answer of the runtime at {path} cannot be used: {why}")


class ShimRefused(ShimError):
    """The shim or its guest answered with an error.

    Attributes:
        status: the HTTP status.
        text: the shim's own text.
    """

    def __init__(self, path: Path, status: int, text: str) -> None:
        self.path, self.status, self.text = path, status, text
        super().__init__(f"the runtime at {path} answered with {status}: {text}")


class Unsupported(ShimError):
    """The runtime does not serve the request."""
