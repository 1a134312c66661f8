"""A runtime that mounts volumes in its guest: what the operator says about it, and what it can therefore do.

Versions are those of Kata Containers. Source: src/runtime (Go) and src/runtime-rs of its releases.
"""

import re
from dataclasses import dataclass

# The word for a block device or a disk image, in a mount info for both runtimes, and in a mount for runtime-rs.
DIRECT = "directvol"

FS_TYPES = ("ext4", "xfs")  # the file systems that the agent can make and recognise

# The first version that finds a volume by the key of today (Go), and in a mount of type bind (runtime-rs).
_FIRST_VERSION = {"go": (2, 5), "rs": (3, 3)}

_OPTIONS_OF_RS = (4, 0)  # the first version of runtime-rs that reads the options of a mount info

_WORDS = re.compile(
    r"(?P<name>[a-z0-9]([a-z0-9.-]*[a-z0-9])?)=(?P<flavour>go|rs):(?P<version>\d{1,3}\.\d{1,3}(\.\d{1,3})?)"
    r"(:(?P<fs_types>[a-z0-9]+(\+[a-z0-9]+)*))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRuntime:
    """A runtime to which volumes may be handed over."""

    name: str  # the RuntimeClass that its pods name
    flavour: str  # `go` for Kata's Go runtime, `rs` for runtime-rs
    version: str  # its version, as the operator gave it
    fs_types: tuple[str, ...] = FS_TYPES  # the file systems that its guest kernel mounts

    @property
    def applies_fs_group(self) -> bool:
        # runtime-rs ignores the metadata
        return self.flavour == "go"

    @property
    def applies_options(self) -> bool:
        # such as `ro`; runtime-rs before 4.0 ignores them
        return self.flavour == "go" or _release(self.version) >= _OPTIONS_OF_RS

    @property
    def shown(self) -> str:
        return f"{self.name}, {self.flavour}"

    def __str__(self) -> str:
        # `direct_runtime` reads it
        return f"{self.name}={self.flavour}:{self.version}:{'+'.join(self.fs_types)}"


def direct_runtime(text: str) -> DirectRuntime:
    found = _WORDS.fullmatch(text)
    if found is None:
        raise ValueError("must be NAME=go:VERSION or NAME=rs:VERSION, and may end with :ext4+xfs, for example")
    flavour = found["flavour"]
    version = found["version"]
    first = _FIRST_VERSION[flavour]
    if _release(version) < first:
        raise ValueError(f"needs version {first[0]}.{first[1]} or later of the runtime with flavour {flavour}")
    fs_types = tuple(found["fs_types"].split("+")) if found["fs_types"] else FS_TYPES
    if not set(FS_TYPES).issuperset(fs_types):
        raise ValueError(f"may name only file systems that the agent can make: {', '.join(FS_TYPES)}")
    return DirectRuntime(name=found["name"], flavour=flavour, version=version, fs_types=fs_types)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
