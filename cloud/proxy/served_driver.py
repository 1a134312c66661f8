"""A served driver: one whose proxy driver runs inside the hub's process (`csi-bridge hub --serve`)."""

from dataclasses import dataclass
from pathlib import Path

from cloud.proxy.driver_settings import NOT_WITH_NODEID, Mode
from common.parsers import FileMode, driver_name, node_name, octal_mode, unix_path


@dataclass(frozen=True, slots=True)
class ServedDriver:
    """One value of `--serve`, with flags of `csi-bridge driver`. `str()` gives a text that `served_driver` reads."""

    name: str
    endpoint: Path
    endpoint_mode: FileMode
    placement: str
    nodeid: str | None

    def __str__(self) -> str:
        told = [f"{self.name}=unix://{self.endpoint}", f"endpoint-mode={self.endpoint_mode}"]
        told.append(f"placement={self.placement}")
        return ",".join(told if self.nodeid is None else [*told, f"nodeid={self.nodeid}"])


def served_driver(text: str) -> ServedDriver:
    """Read `NAME=unix:///PATH`, then options as `,placement=local`, in any order. Raises ValueError."""
    first, *rest = text.split(",")
    name, separator, path = first.partition("=")
    if not (name and separator):
        raise ValueError("must be NAME=unix:///PATH, then any of ,placement=…, ,nodeid=… and ,endpoint-mode=…")
    options = _options(rest)
    placement = options.get("placement", Mode.AUTO)
    if placement not in [*Mode]:
        raise ValueError(f"placement must be one of {', '.join(Mode)}")
    if placement in NOT_WITH_NODEID and "nodeid" in options:
        raise ValueError(f"placement={placement} and nodeid exclude each other: every call goes to nodeid")
    return ServedDriver(
        driver_name(name),
        unix_path(path),
        octal_mode(options.get("endpoint-mode", "0660")),
        placement,
        node_name(options["nodeid"]) if "nodeid" in options else None,
    )


def _options(texts: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or key not in {"placement", "nodeid", "endpoint-mode"}:
            raise ValueError("the socket's path has no comma, and after it come placement=, nodeid= and endpoint-mode=")
        if key in options:
            raise ValueError(f"{key} is there twice")
        options[key] = value
    return options
