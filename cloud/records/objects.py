"""Where each record stands in the objects of a cluster. Pure.

    VolumePlacement     a claim: which node has the volume, snapshot or group of a name
    EdgeNode            a node: its status. Its spec must outlive a backup without status: certificates, fence,
                        topology segments, and the facts that keep volumes from other nodes
    JoinToken, Denial   tokens and denials
    Lease               the node that an election has chosen for a driver
    ConfigMap           the offer of a driver, and the mark of all records. People need neither

Rules:

* A record is one field of one object. Several records may share an object: its fields are written together.
* The name of an object is the hash of its key, because callers choose the names of volumes: no two keys get one name,
  and every key gets a valid one. An edge node's object has the node's own name if that is a valid one.
* The parts of the key stand in the object, too, so that a record can be read back.
* The names of fields are written as Kubernetes writes them: `issued_at` is `issuedAt`. A map with keys of another kind
  must have a character in each that no name has, such as the `/` of a method.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cloud.kube.client import Resource
from cloud.records.records import Body, Key, RecordKind
from common.parsers import is_name

GROUP: Final = "csi-bridge.io"
_PATH: Final = f"apis/{GROUP}/v1alpha1"
_CRDS: Final = "deploy/chart/templates/crds.yaml"
_LABEL: Final = f"{GROUP}/record"  # of a Lease or ConfigMap: the record's kind; and a Lease's annotation: the record

PLACEMENT: Final = Resource("VolumePlacement", _PATH, "volumeplacements", made_by=_CRDS)
NODE: Final = Resource("EdgeNode", _PATH, "edgenodes", made_by=_CRDS)
TOKEN: Final = Resource("JoinToken", _PATH, "jointokens", made_by=_CRDS)
DENIAL: Final = Resource("Denial", _PATH, "denials", made_by=_CRDS)
LEASE: Final = Resource("Lease", "apis/coordination.k8s.io/v1", "leases", namespaced=True, labels=_LABEL)
CONFIG: Final = Resource("ConfigMap", "api/v1", "configmaps", namespaced=True, labels=_LABEL)

RESOURCES: Final = (PLACEMENT, NODE, TOKEN, DENIAL, LEASE, CONFIG)

_SNAKE: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
_CAMEL: Final = re.compile(r"[a-z][a-z0-9]*([A-Z][a-z0-9]*)+")

Path = tuple[str, ...]  # A field of an object: `("spec", "fence")`


class RecordPlace(NamedTuple):
    """Where a record stands."""

    resource: Resource
    name: str
    path: Path
    frame: Body  # the object without its records, and without its namespace


@dataclass(frozen=True, slots=True)
class _Mapping:
    resource: Resource
    path: Path
    parts: tuple[str, ...]
    name: Callable[[Key], str]  # the object's name by the key
    only: str = ""  # the one field of a body that is the value; empty: the whole body is


def _hash(key: Key) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:40]


def _node_name(key: Key) -> str:
    return key[0] if is_name(key[0]) else f"x-{_hash(key)}"


def _prefixed(kind: RecordKind) -> Callable[[Key], str]:
    return lambda key: f"csi-bridge-{kind}-{_hash(key)}"


STATUS: Final[Path] = ("status",)  # the field of a node's record, which is written by a request of its own
_SPEC: Final = ("spec",)
_DATA: Final = ("data", "record")
_MAPPINGS: Final = {
    RecordKind.CLAIM: _Mapping(PLACEMENT, _SPEC, ("driver", "name"), _hash),
    RecordKind.TOKEN: _Mapping(TOKEN, _SPEC, ("id",), lambda key: key[0]),
    RecordKind.DENIAL: _Mapping(DENIAL, _SPEC, ("kind", "value"), _hash),
    RecordKind.NODE: _Mapping(NODE, STATUS, ("node",), _node_name),
    RecordKind.SEGMENTS: _Mapping(NODE, ("spec", "segments"), ("node",), _node_name, only="segments"),
    RecordKind.CERTIFICATES: _Mapping(NODE, ("spec", "certificates"), ("node",), _node_name, only="certificates"),
    RecordKind.MACHINE: _Mapping(NODE, ("spec", "machine"), ("node",), _node_name),
    RecordKind.FACT: _Mapping(NODE, ("spec", "facts"), ("node", "kind", "namespace", "name"), _node_name),
    RecordKind.FENCE: _Mapping(NODE, ("spec", "fence"), ("node",), _node_name),
    RecordKind.ELECTION: _Mapping(
        LEASE, ("metadata", "annotations", _LABEL), ("driver",), _prefixed(RecordKind.ELECTION)
    ),
    RecordKind.OFFER: _Mapping(CONFIG, _DATA, ("driver",), _prefixed(RecordKind.OFFER)),
    RecordKind.MARK: _Mapping(CONFIG, _DATA, ("mark",), _prefixed(RecordKind.MARK)),
}


def place_of(kind: RecordKind, key: Key) -> RecordPlace:
    it = _MAPPINGS[kind]
    name = it.name(key)
    metadata: Body = {"name": name}
    frame: Body = {"apiVersion": it.resource.group.partition("/")[2], "kind": it.resource.kind, "metadata": metadata}
    if it.resource.namespaced:
        metadata["labels"] = {_LABEL: str(kind)}
    if it.resource is NODE:
        frame["spec"] = {"node": key[0], "facts": {}}
    path = (*it.path, "/".join(key[1:])) if kind is RecordKind.FACT else it.path
    return RecordPlace(it.resource, name, path, frame)


def value_of(kind: RecordKind, key: Key, body: Body) -> Any:
    it = _MAPPINGS[kind]
    if kind is RecordKind.FACT:
        return json.dumps(body, ensure_ascii=False)
    if it.resource is NODE:
        return _renamed(body[it.only] if it.only else body, _SNAKE, _camel)
    whole = {**dict(zip(it.parts, key, strict=True)), **body}
    return json.dumps(whole, ensure_ascii=False) if it.resource.namespaced else _renamed(whole, _SNAKE, _camel)


def records_in(resource: Resource, body: Body) -> Iterator[tuple[RecordKind, Key, Body]]:
    """The records of an object, as the API server has it.

    Raises ValueError, KeyError, TypeError or AttributeError if a field is no record.
    """
    label = (body["metadata"].get("labels") or {}).get(_LABEL)
    for kind, it in _MAPPINGS.items():
        value = _value_at(body, it.path)
        if it.resource.kind != resource.kind or value is None or (it.resource.namespaced and label != kind):
            continue
        if kind is RecordKind.FACT:
            for name, text in value.items():
                yield kind, (str(body["spec"]["node"]), *name.split("/", 2)), json.loads(text)
        elif it.resource is NODE:
            found = _renamed(value, _CAMEL, _snake)
            yield kind, (str(body["spec"]["node"]),), {it.only: found} if it.only else found
        else:
            whole = json.loads(value) if it.resource.namespaced else _renamed(value, _CAMEL, _snake)
            yield kind, tuple(str(whole.pop(part)) for part in it.parts), whole


def _value_at(body: Any, path: Path) -> Any:
    for part in path:
        body = (body or {}).get(part)
    return body


def _renamed(value: Any, names: re.Pattern[str], rename: Callable[[str], str]) -> Any:
    # A null is left out: a schema has none.
    if isinstance(value, list | tuple):
        return [_renamed(it, names, rename) for it in value]
    if not isinstance(value, dict):
        return value
    return {rename(name) if names.fullmatch(name) else name: _renamed(it, names, rename) for name, it in value.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)
