"""A left-over mount, as an agent tells the hub of it: a volume that is mounted, and that no pod of the node wants.

    {"more": 0, "volumes": [{"driver": "d.csi", "handle": "vol-1", "pv": "pv-1", "pod": "default/web",
                             "why": "the device is busy", "since": "2026-11-21T09:12:03Z"}]}

It stands in the fact about the Node, as `status.leftOver`. Agents before this one tell none.

Rules:

* It has at most `MOST_BYTES`: with the rest of the fact it must stay below the hub's limit for a Node, because the hub
  refuses a larger one whole, and then no volume is staged. What has no room is counted in `more`.
* Times are those of the mount's state, so an unchanged state is not sent again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from common.errors import seconds_of
from common.objects.objects import encode_body

MOST_BYTES: Final = 32 * 1024

_WHY_CHARS: Final = 200

TEXTS: Final = ("driver", "handle", "pv", "pod", "why", "since")  # the fields of a volume


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LeftOver:
    """One mount. A text is empty if the agent does not know it."""

    driver: str = ""
    handle: str = ""  # the vendor's id
    pv: str = ""  # the name of its PersistentVolume
    pod: str = ""  # namespace and name of the pod that had it
    why: str = ""  # why it is still mounted; empty: the agent waits for word of the hub
    since: str = ""  # when it came into this state

    @property
    def since_s(self) -> float:
        """The same in seconds since the epoch; 0 if that is not known."""
        return seconds_of(self.since)


def write(mounts: Iterable[LeftOver]) -> dict[str, Any]:
    in_order = sorted(mounts)
    told = []
    size_bytes = 0
    for mount in in_order:
        body = {name: text for name, text in asdict(mount).items() if text}
        if "why" in body:
            body["why"] = body["why"][:_WHY_CHARS]
        size_bytes += len(encode_body(body)) + 1
        if size_bytes > MOST_BYTES:
            break
        told.append(body)
    return {"more": len(in_order) - len(told), "volumes": told}


def read(status: Mapping[str, Any]) -> tuple[list[LeftOver], int] | None:
    """The mounts, and how many more there are. None if the agent tells none."""
    told = status.get("leftOver")
    if told is None:
        return None
    volumes = told.get("volumes") or ()
    return [LeftOver(**{name: it[name] for name in TEXTS if name in it}) for it in volumes], told.get("more") or 0
