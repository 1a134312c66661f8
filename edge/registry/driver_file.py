"""The driver file: this node's drivers on disk, for a node that boots without its cloud.

Rules:

* A crash or a power cut leaves the old file or the new one, never a part. Its mode is 0600.
* The agent renames a file that it cannot use, and logs the reason. The drivers come back as they register.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from common.state_file import Form, read_state, write_state
from edge.registry.registration import NodeInfo, Registration

T = TypeVar("T")

log = logging.getLogger("csi_bridge.edge.registrar")


FORM = Form("edge agent")
"""The form of `drivers.json` and `observed.json`."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of the file.

    Attributes:
        node_plugins: by driver name: the last socket of its node plugin, also of drivers that are forgotten.
        with_topology: the drivers that had a topology of their own when the agent last knew all of their sockets.
    """

    drivers: tuple[Registration, ...] = ()
    node_plugins: Mapping[str, str] = field(default_factory=dict)
    with_topology: frozenset[str] = frozenset()


class DriverFile:
    """A file in the agent's state directory. Both methods block: call them off the loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()

    def read(self) -> Kept:
        """Read the stored state; empty without a usable file. Raises SettingsError if a newer agent wrote it."""
        try:
            return _from_json(read_state(self.path, FORM))
        except FileNotFoundError:
            return Kept()
        except OSError as error:
            log.warning("%s cannot be read (%s): drivers are known once they register", self.path, error.strerror)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._move_aside(str(error) if type(error) is ValueError else type(error).__name__)
        return Kept()

    def write(self, kept: Kept) -> None:
        """Replace the stored state. Waits for a write that an earlier caller left running in its thread."""
        body = {
            "drivers": [_driver_to_json(found) for found in kept.drivers],
            "nodePlugins": dict(kept.node_plugins),
            "withTopology": sorted(kept.with_topology),
        }
        with self._writing:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_state(self.path, FORM, body, mode=0o600)

    def _move_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.stem}-{int(time.time())}.corrupt")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        log.warning("%s cannot be used (%s) and is now %s: drivers are known once they register", self.path, why, aside)


def _driver_to_json(found: Registration) -> dict[str, Any]:
    return {
        "name": found.name,
        "endpoint": found.endpoint,
        "socket": found.socket,
        "version": list(found.version),
        "nodeID": found.info.node_id,
        "maxVolumes": found.info.max_volumes,
        "topology": dict(found.info.topology),
        "capabilities": sorted(found.info.capabilities),
        "gone": found.gone,
    }


def _from_json(body: dict[str, Any]) -> Kept:
    drivers = tuple(_driver_from_json(item) for item in body["drivers"])
    node_plugins = {_checked(name, str): _checked(socket, str) for name, socket in body["nodePlugins"].items()}
    return Kept(drivers, node_plugins, frozenset(_checked(name, str) for name in _checked(body["withTopology"], list)))


def _driver_from_json(item: dict[str, Any]) -> Registration:
    info = NodeInfo(
        node_id=_checked(item["nodeID"], str),
        max_volumes=_checked(item["maxVolumes"], int),
        topology={_checked(key, str): _checked(value, str) for key, value in item["topology"].items()},
        capabilities=frozenset(_checked(number, int) for number in item["capabilities"]),
    )
    return Registration(
        name=_checked(item["name"], str),
        endpoint=_checked(item["endpoint"], str),
        socket=_checked(item["socket"], str),
        version=tuple(_checked(part, int) for part in item["version"]),
        info=info,
        gone=_checked(item["gone"], bool),
    )


def _checked(value: object, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(value)
    return value
