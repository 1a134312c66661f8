"""A parser: how one text that an operator wrote becomes a value.

Rules:
* A parser is pure: text in, value out; it reads no file, no environment and no clock.
* It raises ValueError, whose text says what is allowed, fit to stand after the name of the setting and never
  repeating the value, which may be a secret.
* Units are written with the value (`10s`, `4MiB`); the value itself is in seconds and bytes.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
N = TypeVar("N", int, float)

LONGEST_DURATION_S: Final = 10 * 365 * 24 * 3600.0
"""Ten years: no operator means more, and the timers of the loop and of the kernel still hold it."""

LONGEST_SOCKET_PATH_BYTES: Final = 107
"""`sun_path` of a UNIX socket's address has 108 bytes and ends with a NUL (unix(7))."""


LONGEST_NAME_CHARS: Final = 253
"""A Kubernetes object's name is at most so long. A hub refuses a longer one."""

LONGEST_DRIVER_NAME_CHARS: Final = 63
"""CSI spec, GetPluginInfoResponse.name."""

_DRIVER_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*")


def is_driver_name(text: str) -> bool:
    """Whether a CSI driver can have this name in Kubernetes: a DNS subdomain, which may have capitals.

    Source: kubernetes pkg/apis/core/validation, ValidateCSIDriverName; the CSI spec takes names that are none.
    """
    return len(text) <= LONGEST_DRIVER_NAME_CHARS and _DRIVER_NAME.fullmatch(text) is not None


class HostPort(NamedTuple):
    """An address to listen on or to dial. `str()` is what `host_port` reads.

    Attributes:
        host: a name or an address; IPv6 without its brackets.
        port: 0 … 65535; 0 to listen on any free port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Mode(int):
    """Permission bits of a file. `str()` is octal, as chmod(1) writes it."""

    def __str__(self) -> str:
        return f"{int(self):04o}"


@dataclass(frozen=True, slots=True)
class Parser(Generic[T]):
    """How a text becomes a value.

    Attributes:
        read: text to value; raises ValueError, whose text says what is allowed.
        metavar: what `--help` shows in the value's place; empty for a switch, which takes none.
        suffix: the unit that the names of such fields end with, e.g. `_s`; empty for a value without one.
    """

    read: Callable[[str], T]
    metavar: str
    suffix: str = ""

    def __call__(self, text: str) -> T:
        """The value of a text. Raises ValueError with what is allowed."""
        return self.read(text)


_GO_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_GO_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h)")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")


def _duration(text: str) -> float:
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    else:
        parts = _GO_DURATION.findall(text)
        if not parts or "".join(parts) != text:
            raise ValueError("must be a duration like 10s, 500ms or 1h30m (a plain number is seconds)")
        seconds = sum(_go_part_s(part) for part in parts)
    if seconds > LONGEST_DURATION_S:
        raise ValueError("must be at most ten years (87600h)")
    return seconds


def _go_part_s(part: str) -> float:
    number = part.rstrip("nuµμmsh")
    return float(number) * _GO_UNITS_S[part.removeprefix(number)]


_SIZE_UNITS: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"([0-9]{1,18}) ?([A-Za-z]*)")


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in _SIZE_UNITS:
        raise ValueError("must be a whole number of bytes, KiB, MiB or GiB, like 16384 or 4MiB")
    return int(found[1]) * _SIZE_UNITS[found[2]]


_HOST_PORT: Final = re.compile(r"(?:\[(?P<ip6>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")


def _host_port(text: str) -> HostPort:
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


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("must be a whole number, 0 or more")
    return int(text)


def _ratio(text: str) -> float:
    number = text.removesuffix("%")
    value = float(number) / (100 if number != text else 1) if _NUMBER.fullmatch(number) else 2.0
    if value > 1:
        raise ValueError("must be a ratio from 0 to 1, like 0.2 or 20%")
    return value


def _octal_mode(text: str) -> Mode:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError("must be a file mode of three octal digits, like 0660")
    return Mode(int(text, 8))


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("must be a path")
    return Path(text)


def _unix_path(text: str) -> Path:
    if "://" in text and not text.startswith("unix://"):
        raise ValueError("must be a UNIX socket, like unix:///run/csi/csi.sock")
    name = text.removeprefix("unix:")
    name = name.removeprefix("//") if text.startswith("unix://") else name
    if not name.startswith("/") or "\0" in name:
        raise ValueError("must be the absolute path of a UNIX socket, like unix:///run/csi/csi.sock")
    size = len(name.encode(errors="surrogateescape"))
    if size > LONGEST_SOCKET_PATH_BYTES:
        raise ValueError(
            f"is too long for a UNIX socket: {size} bytes, and the system's limit is {LONGEST_SOCKET_PATH_BYTES}; "
            f"choose a shorter path"
        )
    return Path(name)


_SWITCH: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


def _switch(text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _words(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("must be a text without control characters")
    return text


def _no_longer_than(limit: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text) > limit:
            raise ValueError(f"must be at most {limit} characters long")
        return _words(text)

    return read


duration: Final = Parser(_duration, "DURATION", "_s")
"""`10s`, `500ms`, `1h30m` (Go's time.ParseDuration, not negative), or a plain number of seconds → float seconds."""

size: Final = Parser(_size, "SIZE", "_bytes")
"""`16384`, `4MiB`, `4Mi`, `4MB` → int bytes."""

host_port: Final = Parser(_host_port, "HOST:PORT")
"""`127.0.0.1:10350`, `[::1]:10350`, `localhost:0` → `HostPort`. An empty host (`:8080`) is refused."""

count: Final = Parser(_count, "N")
"""A whole number, 0 or more. Limit it with `bounded`."""

ratio: Final = Parser(_ratio, "RATIO")
"""`0.2` or `20%` → float from 0 to 1."""

octal_mode: Final = Parser(_octal_mode, "MODE")
"""`0660` → `Mode`."""

path: Final = Parser(_path, "PATH")
"""A path → `Path`. Whether it exists is for its user to find out."""

unix_path: Final = Parser(_unix_path, "unix:///PATH")
"""`unix:///run/csi/csi.sock`, `unix:/run/…` or the bare absolute path, as sidecars take it → `Path`."""

switch: Final = Parser(_switch, "")
"""A flag without a value; `true` or `false` in its variable."""

words: Final = Parser(_words, "TEXT")
"""Any printable text that is not empty → str."""

node_name: Final = Parser(_no_longer_than(LONGEST_NAME_CHARS), "NAME")
"""A node's name: printable, not empty, and no longer than a hub takes → str."""

driver_name: Final = Parser(_no_longer_than(LONGEST_DRIVER_NAME_CHARS), "NAME")
"""A CSI driver's name: printable, not empty, and no longer than CSI allows → str."""


def choice(*allowed: str) -> Parser[str]:
    """A parser of one word out of a closed set."""

    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return Parser(read, "|".join(allowed))


def bounded(parser: Parser[N], *, low: str | None = None, high: str | None = None) -> Parser[N]:
    """A parser that also refuses what lies outside its bounds, both inclusive and written as an operator would."""
    least = parser(low) if low is not None else None
    most = parser(high) if high is not None else None
    limits = " and ".join([f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None))

    def read(text: str) -> N:
        value = parser(text)
        if (least is not None and value < least) or (most is not None and value > most):
            raise ValueError(f"must be {limits}")
        return value

    return Parser(read, parser.metavar, parser.suffix)
