"""The facts: the objects that the edge nodes have told the hub on this host, as YAML or JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cli.hub_state import ask, tell
from cli.operator_options import OperatorSettings
from cloud.sources.manifests.documents import write_yaml
from common.pages.hub import HubStatus, NodeFact
from common.pages.json_form import shown

_NODE = "csi-bridge.io/fact-node"
_TOLD_AT = "csi-bridge.io/fact-told-at"  # the annotations that a fact's YAML has in addition


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a hub has, and whether it gets objects from anywhere."""

    facts: list[NodeFact]
    has_source: bool


def show(state: Facts, _width: int | None = None) -> Iterator[str]:
    if not state.facts:
        without = "the hub keeps no facts; it was started without --kubeconfig and without --manifests"
        yield f"# {'the hub has no such facts' if state.has_source else without}"
    for fact in state.facts:
        yield "---"
        yield from write_yaml(_annotated(fact)).decode().splitlines()


def run(settings: OperatorSettings, *, node: str, as_json: bool) -> None:
    def look(settings: OperatorSettings) -> Facts:
        hub = ask(settings.hub, "/status", HubStatus, timeout_s=settings.timeout_s)
        path = f"/facts/{quote(node, safe='')}" if node else "/facts"
        return Facts(ask(settings.hub, path, list[NodeFact], timeout_s=settings.timeout_s), hub.has_source)

    tell(settings, look, show, (lambda state: {"facts": state.facts}) if as_json else None)


def _annotated(fact: NodeFact) -> dict[str, Any]:
    metadata = fact.object["metadata"]
    about = {_NODE: fact.node, _TOLD_AT: shown(fact.told_at)}
    return {**fact.object, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **about}}}
