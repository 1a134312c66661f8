"""The fields of a CSI request that `rules` name, and the ids in a create's answer. Pure."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from cloud.claims.rules import RULES, Rule, Thing
from common.csi.csi_pb2 import CreateVolumeResponse, TopologyRequirement, VolumeCapability
from common.csi.methods import METHODS

# Only an attacker sends a longer name or id. CSI allows 128 bytes (CSI spec, "Size Limits"), and some vendors use more.
LONGEST_CHARS: Final = 1_024

# The access modes that a driver knows only if it has the capability SINGLE_NODE_MULTI_WRITER.
_OF_ONE_NODE: Final = frozenset(
    {VolumeCapability.AccessMode.SINGLE_NODE_SINGLE_WRITER, VolumeCapability.AccessMode.SINGLE_NODE_MULTI_WRITER}
)


_AT: Final = " to node "

# The methods whose key has the vendor's node id.
_OF_A_NODE: Final = frozenset({"ControllerPublishVolume", "ControllerUnpublishVolume"})

# The kind of the thing in a key, by method.
_KINDS: Final = {
    method.rpartition("/")[2]: rule.about[0][0] for method, rule in RULES.items() if rule.changes or rule.deletes
}

# The method that deletes a thing, by its kind.
_DELETIONS: Final = {rule.about[0][0]: method.rpartition("/")[2] for method, rule in RULES.items() if rule.deletes}


class RequestFields(NamedTuple):
    """The fields of one request, each with the same meaning for all methods."""

    name: str = ""  # of a create: its method and name, such as `CreateVolume pvc-1`; else empty
    things: tuple[Thing, ...] = ()  # the things that the request is about; of a create its sources
    parts: tuple[Thing, ...] = ()  # the snapshots of a group in `things`. They show the node if the group is unknown.
    deletes: tuple[Thing, ...] = ()  # the things that do not exist after a success
    node_id: str = ""  # the vendor's id of a node, or empty
    # the requested topology, preferred terms first: each a set of segments. Empty: the request has no topology.
    terms: tuple[Mapping[str, str], ...] = ()
    # a required field that is empty; every vendor refuses such a request. Empty: no field is missing.
    missing: str = ""
    token: str = ""  # `starting_token` of a list
    # of any other call that changes something: its method and id, such as `DeleteVolume vol-1`; of a publication also
    # the node id, such as `ControllerPublishVolume vol-1 to node i-1`. Else empty.
    key: str = ""
    has_secrets: bool = False  # of a deletion: whether it has Secrets


NO_FIELDS: Final = RequestFields()  # of a request that names nothing, or that the hub does not read


_Getters = tuple[tuple[str, Callable[[Any], Any]], ...]  # by kind of things, a function that returns their ids


class _Fields(NamedTuple):
    """The fields that a `Rule` names, as functions that read them."""

    rule: Rule
    short: str  # the method without its service
    request: type[Message]  # the request's class
    name: Callable[[Any], Any] | None  # None: the method makes nothing
    about: _Getters  # by kind
    parts: _Getters  # by kind
    deletes: _Getters  # by kind
    # by path: the required fields. Every vendor refuses a request without them.
    needed: tuple[tuple[str, Callable[[Any], Any]], ...]


@functools.cache
def _fields(method: str) -> _Fields:
    # Call it only for a method with a rule: callers could fill the cache with methods that they invent.
    rule = RULES[method]
    request = METHODS[method].request
    about, parts, deletes = (
        tuple((kind, _getter(request, path)) for kind, path in it) for it in (rule.about, rule.parts, rule.deletes)
    )
    needed = ((rule.name,) if rule.name else ()) + (() if rule.optional else tuple(path for _, path in rule.about))
    name = _getter(request, rule.name) if rule.name else None
    getters = tuple((path, _getter(request, path)) for path in needed)
    return _Fields(rule, method.rpartition("/")[2], request, name, about, parts, deletes, getters)


def read(method: str, request: bytes, *, is_pinned: bool = False) -> RequestFields:
    """Read a request; of a pinned one only its name, things and topology, and the things that it deletes.

    Raises ValueError: it does not parse.
    """
    if method not in RULES:
        return NO_FIELDS
    fields = _fields(method)
    rule = fields.rule
    message = fields.request()
    try:
        message.ParseFromString(request)
    except DecodeError:
        raise ValueError(f"not a {fields.request.DESCRIPTOR.name}") from None
    name = f"{fields.short} {own}" if fields.name is not None and (own := fields.name(message)) else ""
    things = _things(fields.about, message) if fields.about else ()
    deletes = _things(fields.deletes, message) if fields.deletes else ()
    terms: dict[frozenset[tuple[str, str]], Mapping[str, str]] = {}
    if rule.requested_topology:
        wanted: Any = getattr(message, rule.requested_topology)
        is_list = isinstance(wanted, TopologyRequirement)
        for topology in (*wanted.preferred, *wanted.requisite) if is_list else (wanted,):
            if segments := dict(topology.segments):
                terms[frozenset(segments.items())] = segments
    if is_pinned:
        return RequestFields(name, things, (), deletes, "", tuple(terms.values()))
    missing = ""
    for path, get in fields.needed:
        if not any(get(message)):
            missing = path
            break
    return RequestFields(
        name=name,
        things=things,
        parts=_things(fields.parts, message) if fields.parts else (),
        deletes=deletes,
        node_id=getattr(message, "node_id", ""),
        terms=tuple(terms.values()),
        missing=missing,
        token=getattr(message, "starting_token", ""),
        key=_key(fields.short, message, rule) if rule.changes or rule.deletes else "",
        has_secrets=bool(rule.deletes and getattr(message, "secrets", None)),
    )


def _key(short: str, message: Message, rule: Rule) -> str:
    _, field = rule.about[0]
    id_ = operator.attrgetter(field)(message)
    if not id_:
        return ""
    if short not in _OF_A_NODE:
        return f"{short} {id_}"
    # `about` splits the key at the last " to node ", so the node id must not have one.
    node_id = getattr(message, "node_id", "").replace(_AT, _AT.replace(" ", "\N{NO-BREAK SPACE}"))
    return f"{short} {id_}{_AT}{node_id}"


def about(key: str) -> "Thing | None":
    """The thing of a `RequestFields.key`; None for the name of a create."""
    method, _, rest = key.partition(" ")
    kind = _KINDS.get(method)
    if kind is None:
        return None
    return Thing(kind, rest.rpartition(_AT)[0] if method in _OF_A_NODE else rest)


def deletion_of(thing: Thing) -> str:
    """The `RequestFields.key` of the deletion of a thing."""
    return f"{_DELETIONS[thing.kind]} {thing.id}"


def settled_with(key: str, others: Iterable[str]) -> list[str]:
    """The keys, of `others` about the same thing, whose open calls a success of `key` settles.

    A deletion settles all of them. ControllerPublishVolume and ControllerUnpublishVolume of one node settle each other.
    """
    method, _, rest = key.partition(" ")
    if method in _OF_A_NODE:
        return [other for other in others if other.partition(" ")[2] == rest and other.partition(" ")[0] in _OF_A_NODE]
    return list(others) if method.startswith("Delete") else []


def needs(method: str, request: bytes) -> frozenset[str]:
    """The capabilities without which a driver refuses a request. The request must parse.

    CSI spec, "ControllerGetCapabilities"; csi.proto.
    """
    rule = RULES.get(method)
    if rule is None or not rule.needs:
        return frozenset()
    message: Any = METHODS[method].request.FromString(request)
    needed = {capability for capability, field in rule.needs if not field or _is_set(message, field)}
    for field in ("volume_capability", "volume_capabilities"):
        if any(mode in _OF_ONE_NODE for mode in _access_modes(message, field)):
            needed.add("SINGLE_NODE_MULTI_WRITER")
    return frozenset(needed)


class Made(NamedTuple):
    """The things and the topology that the answer to a create names."""

    things: tuple[Thing, ...] = ()
    terms: tuple[Mapping[str, str], ...] = ()  # the topology of a volume; empty: the answer has none


NOTHING_MADE: Final = Made()


def things_in(method: str, answer: bytes) -> Made:
    """Read a create's answer. Raises ValueError: it does not parse."""
    message: Any = METHODS[method].response()
    try:
        message.ParseFromString(answer)
    except DecodeError:
        raise ValueError(f"not a {message.DESCRIPTOR.name}") from None
    terms = list[Mapping[str, str]]()
    if isinstance(message, CreateVolumeResponse):
        for term in message.volume.accessible_topology:
            terms.append(dict(term.segments))  # a comprehension is one more function
    return Made(_things(_makes(method), message), tuple(terms))


def _things(getters: _Getters, message: Message) -> tuple[Thing, ...]:
    things = []
    for kind, get in getters:
        value = get(message)
        for id_ in (value,) if isinstance(value, str) else value:
            if id_:
                things.append(Thing(kind, id_))  # noqa: PERF401  # a comprehension is one more function
    return tuple(things)


@functools.cache
def _makes(method: str) -> _Getters:
    rule = RULES.get(method)
    return tuple((kind, _getter(METHODS[method].response, path)) for kind, path in rule.makes) if rule else ()


def _is_set(message: Message, field: str) -> bool:
    holder, _, last = field.rpartition(".")
    # If a message on the path is absent, protobuf returns an empty one, which has no set fields.
    parent: Message = operator.attrgetter(holder)(message) if holder else message
    return any(known.name == last for known, _ in parent.ListFields())


def _access_modes(message: Message, field: str) -> Iterator[int]:
    found: Any = getattr(message, field, ())
    for capability in (found,) if isinstance(found, VolumeCapability) else found:
        yield capability.access_mode.mode


def _getter(message_type: type[Message], path: str) -> Callable[[Any], Any]:
    # The function returns the value of a field, or the values if a part of the path is repeated. `attrgetter` takes a
    # whole path in one step in C.
    value: Any = message_type()
    for part in path.split("."):
        value = getattr(value, part)
        if not isinstance(value, (str, Message)):
            return lambda message: list(walk(message, path))
    return operator.attrgetter(path)


def walk(message: Message, path: str) -> Iterator[Any]:
    """The values or messages at a path. A part of the path may be repeated, or an absent message."""
    first, _, rest = path.partition(".")
    value: Any = getattr(message, first)
    values: Iterable[Any] = value
    if isinstance(value, str):
        values = (value,)
    elif isinstance(value, Message):
        values = (value,) if message.HasField(first) else ()
    for each in values:
        if rest:
            yield from walk(each, rest)
        else:
            yield each
