"""An object: one Kubernetes object as it travels between hub and agent.

The body stays bytes on its way. Kind, namespace and name are the key. `uid` tells two objects of one name apart, and
`version` two states of one object. Versions are opaque (Kubernetes' resourceVersion, or a hash): they can be compared
for equality, not for order.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# JSON's escape for half of a pair of UTF-16. `encode_body` writes none; without its other half it is no character.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """An object's key. `namespace` is empty for cluster-wide kinds."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Stamp:
    """One state of an object: its uid and its version."""

    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class Object:
    """An object in one state. `body` is its JSON, as small as `encode_body` makes it."""

    ref: Ref
    stamp: Stamp
    body: bytes

    def read(self) -> dict[str, Any]:
        """The parsed body: a new dictionary at each call. ValueError: it is no object, or cannot be written again."""
        try:
            body = json.loads(self.body)
        except RecursionError:
            raise ValueError(f"{self.ref} is nested too deeply") from None
        if _SURROGATE.search(self.body):
            encode_body(body)
        if not isinstance(body, dict):
            raise ValueError(f"{self.ref} is not a JSON object")  # noqa: TRY004  # its value is wrong, as with bad JSON
        return body


def encode_body(body: Mapping[str, Any]) -> bytes:
    """The smallest JSON of an object; equal objects have equal JSON."""
    return json.dumps(body, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
