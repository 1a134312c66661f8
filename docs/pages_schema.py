"""The table of all pages, and their JSON Schema: pages.schema.json (`make reference`).

The descriptions in the schema are the docstrings of the dataclasses, and the comments at their fields.
"""

import inspect
import json
import sys
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Final, cast, get_args, get_origin

from common.pages import agent, hub
from common.pages.json_form import hints, is_required


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `kind` is its dataclass, or that of each entry of a list."""

    server: str  # the process that serves it: `hub` or `agent`
    path: str
    kind: type
    is_list: bool = False


PAGES: Final = (
    Page("hub", "/status", hub.HubStatus),
    Page("hub", "/nodes", hub.NodeStatus, is_list=True),
    Page("hub", "/volumes", hub.VolumeStatus, is_list=True),
    Page("hub", "/facts", hub.NodeFact, is_list=True),
    Page("hub", "/facts/NODE", hub.NodeFact, is_list=True),
    Page("hub", "/denials", hub.DenialStatus, is_list=True),
    Page("hub", "/tokens", hub.TokenStatus, is_list=True),
    Page("agent", "/status", agent.AgentStatus),
    Page("agent", "/volumes", agent.NodeVolumes),
)

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_SIMPLE: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    NoneType: {"type": "null"},
    Any: {},
}


def render() -> str:
    """The schema as text: `$defs` has each dataclass by its name."""
    definitions: dict[str, Any] = {}
    for page in PAGES:
        _define(page.kind, definitions)
    return json.dumps({"$schema": _DIALECT, "$defs": definitions}, indent=2) + "\n"


def _define(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definition: dict[str, Any] = {"type": "object"}
        definitions[kind.__name__] = definition  # before its fields, which may refer to it
        texts = _comments(kind)
        definition |= {
            "description": (inspect.getdoc(kind) or "").replace("\n", " "),
            "properties": {
                name: _schema(hint, definitions) | {"description": texts[name]} for name, hint in hints(kind).items()
            },
            "required": [field.name for field in fields(kind) if is_required(field)],
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if get_origin(hint) is UnionType:
        return {"anyOf": [_schema(one, definitions) for one in get_args(hint)]}
    if get_origin(hint) is list:
        return {"type": "array", "items": _schema(get_args(hint)[0], definitions)}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _schema(get_args(hint)[1], definitions)}
    return _define(cast("type", hint), definitions) if is_dataclass(hint) else dict(_SIMPLE[hint])


def _comments(kind: type) -> dict[str, str]:
    found: dict[str, str] = {}
    parts: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        code, _, comment = line.strip().partition("# ")
        parts.append(comment)
        if code:
            found[code.partition(":")[0]] = " ".join(filter(None, parts)).removesuffix(".") + "."
            parts = []
    return found


if __name__ == "__main__":
    sys.stdout.write(render())
