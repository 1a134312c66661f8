"""A parser: a function that makes a value of a text that an operator wrote.

Rules:
* A parser is pure: it reads no file, no environment and no clock.
* It raises ValueError with a text that says which values are allowed. The text fits after the name of a flag, and never
  repeats the value.
* Operators write units with the value (`10s`, `4MiB`). The value itself is in seconds or bytes.
"""

import ipaddress
import re
from pathlib import Path
from typing import Final, NamedTuple

LONGEST_DURATION_S: Final = 10 * 365 * 24 * 3600.0  # timers of the event loop and of the kernel can still hold it
LONGEST_SOCKET_PATH_BYTES: Final = 107  # `sun_path` has 108 bytes and ends with a NUL (unix(7))
LONGEST_NAME_CHARS: Final = 253  # of a Kubernetes object. A hub refuses nodes with longer names
LONGEST_DRIVER_NAME_CHARS: Final = 63  # CSI spec, GetPluginInfoResponse.name

_DRIVER_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*")


def is_driver_name(text: str) -> bool:
    """Whether Kubernetes accepts this name of a CSI driver (ValidateCSIDriverName). The CSI spec allows more names."""
    return len(text) <= LONGEST_DRIVER_NAME_CHARS and _DRIVER_NAME.fullmatch(text) is not None


_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_name(text: str) -> bool:
    """Whether Kubernetes accepts this name of an object (ValidateNodeName). Such a name is safe as that of a file."""
    return len(text) <= LONGEST_NAME_CHARS and _NAME.fullmatch(text) is not None


# Of keys and values: kubernetes apimachinery/pkg/util/validation, IsQualifiedName and IsValidLabelValue.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def is_label_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return (not slash or is_name(prefix)) and _LABEL.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    return not text or _LABEL.fullmatch(text) is not None


class HostPort(NamedTuple):
    """An address to listen on or to dial. `str()` gives the text that `host_port` reads."""

    host: str  # a name or an address; IPv6 without its brackets
    port: int  # 0: listen on any free port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class FileMode(int):
    """Permission bits of a file. `str()` is octal, as chmod(1) writes it."""

    def __str__(self) -> str:
        return f"{int(self):04o}"


_GO_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_GO_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")


def duration(text: str) -> float:
    """Seconds from `10s`, `500ms`, `1h30m` (as Go's time.ParseDuration, not negative) or a plain number of seconds."""
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    else:
        parts = _GO_DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError("must be a duration like 10s, 500ms or 1h30m (a plain number is seconds)")
        seconds = sum(float(number) * _GO_UNITS_S[unit] for number, unit in parts)
    if seconds > LONGEST_DURATION_S:
        raise ValueError("must be at most ten years (87600h)")
    return seconds


_SIZE_UNITS: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"([0-9]{1,18}) ?([A-Za-z]*)")


def size(text: str) -> int:
    """Bytes from `16384`, `4MiB`, `4Mi` or `4MB`."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in _SIZE_UNITS:
        raise ValueError("must be a whole number of bytes, KiB, MiB or GiB, like 16384 or 4MiB")
    return int(found[1]) * _SIZE_UNITS[found[2]]


_HOST_PORT: Final = re.compile(r"(?:\[(?P<ip6>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")


def host_port(text: str) -> HostPort:
    """An address from `127.0.0.1:10350`, `[::1]:10350` or `localhost:0`. An empty host (`:8080`) is refused."""
    found = _HOST_PORT.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError("must be HOST:PORT with a port up to 65535, like 127.0.0.1:10350 or [::1]:10350")
    if found["host"] == "":
        # Go takes ":8080" for every interface. That is too much to open to the network by leaving something out.
        raise ValueError("must name a host: 127.0.0.1 for this machine only, 0.0.0.0 or [::] for every interface")
    if found["ip6"] is not None:
        return HostPort(_ip6(found["ip6"]), int(found["port"]))
    if not _HOST.fullmatch(found["host"]):
        raise ValueError("must be HOST:PORT, and the host a name or an address")
    return HostPort(found["host"], int(found["port"]))


def _ip6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise ValueError("must have an IPv6 address between its brackets, like [::1]:10350") from None


def octal_mode(text: str) -> FileMode:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError("must be a file mode of three octal digits, like 0660")
    return FileMode(int(text, 8))


def unix_path(text: str) -> Path:
    """The path of a socket from `unix:///run/csi/csi.sock`, `unix:/run/…` or an absolute path, as sidecars take it."""
    if "://" in text and not text.startswith("unix://"):
        raise ValueError("must be a UNIX socket, like unix:///run/csi/csi.sock")
    name = text.removeprefix("unix:")
    name = name.removeprefix("//") if text.startswith("unix://") else name
    if not name.startswith("/") or "\0" in name:
        raise ValueError("must be the absolute path of a UNIX socket, like unix:///run/csi/csi.sock")
    length = len(name.encode(errors="surrogateescape"))
    if length > LONGEST_SOCKET_PATH_BYTES:
        raise ValueError(
            f"is too long for a UNIX socket: {length} bytes, and the system's limit is {LONGEST_SOCKET_PATH_BYTES}; "
            f"choose a shorter path"
        )
    return Path(name)


def words(text: str) -> str:
    """Any printable text that is not empty."""
    if not text:
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("must be a text without control characters")
    return text


def node_name(text: str) -> str:
    _no_longer_than(LONGEST_NAME_CHARS, text)
    if not is_name(text):
        raise ValueError("must be a node's name: lower-case letters, digits, dashes and dots, like edge-1.example.org")
    return text


def driver_name(text: str) -> str:
    """The name of a CSI driver: printable, not empty, and no longer than CSI allows."""
    return _no_longer_than(LONGEST_DRIVER_NAME_CHARS, text)


def _no_longer_than(limit: int, text: str) -> str:
    if len(text) > limit:
        raise ValueError(f"must be at most {limit} characters long")
    return words(text)
