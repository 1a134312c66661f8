"""The commands `denials`, `facts`, `token list` and `volumes`: each shows one page of the hub on this host."""

from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import quote

from cli.operators.hub_state import ask
from cli.operators.operator_options import OperatorSettings
from cli.operators.table import answer, paragraph, table
from cloud.sources.manifests.documents import write_yaml
from common.pages.hub import DenialStatus, HubStatus, NodeFact, TokenStatus, VolumeStatus
from common.pages.json_form import shown

T = TypeVar("T")

_NODE = "csi-bridge.io/fact-node"
_TOLD_AT = "csi-bridge.io/fact-told-at"  # the annotations that a fact's YAML has in addition


def denials(settings: OperatorSettings, *, as_json: bool) -> None:
    found = _page(settings, "/denials", list[DenialStatus])
    answer(_show_denials(found), {"denials": found}, as_json=as_json)


def tokens(settings: OperatorSettings, *, as_json: bool) -> None:
    found = _page(settings, "/tokens", list[TokenStatus])
    answer(_show_tokens(found), {"tokens": found}, as_json=as_json)


def volumes(settings: OperatorSettings, *, as_json: bool) -> None:
    found = _page(settings, "/volumes", list[VolumeStatus])
    has_source = bool(found) or _has_source(settings)
    answer(show_volumes(found, has_source=has_source), {"volumes": found}, as_json=as_json)


def facts(settings: OperatorSettings, *, node: str, as_json: bool) -> None:
    found = _page(settings, f"/facts/{quote(node, safe='')}" if node else "/facts", list[NodeFact])
    has_source = bool(found) or _has_source(settings)
    answer(_show_facts(found, has_source=has_source), {"facts": found}, as_json=as_json)


def _page(settings: OperatorSettings, path: str, page: type[T]) -> T:
    return ask(settings.hub, path, page, timeout_s=settings.timeout_s)


def _has_source(settings: OperatorSettings) -> bool:
    return _page(settings, "/status", HubStatus).has_source


def _show_denials(denials: list[DenialStatus]) -> Iterator[str]:
    if not denials:
        yield "the hub denies no node and no certificate"
        return
    rows = [(_subject(it), shown(it.at), it.why) for it in denials]
    yield from table(("DENIED", "SINCE", "REASON"), rows)


def _subject(denial: DenialStatus) -> str:
    return denial.subject if denial.kind == "node" else f"serial={denial.subject.upper()}"


def _show_tokens(tokens: list[TokenStatus]) -> Iterator[str]:
    if not tokens:
        yield "the hub has no tokens; csi-bridge token create makes one"
        return
    head = ("ID", "NODES", "DRIVERS", "STATE", "USED", "ENDS")
    yield from table(head, [_token(it) for it in tokens])
    joins = [(it.id, join) for it in tokens for join in it.joins]
    yield from paragraph(
        f"JOINED: {it.node} at {shown(it.at)} from {it.address or 'an unknown address'}, with {token}"
        for token, it in joins
    )


def _token(it: TokenStatus) -> tuple[str, ...]:
    nodes = f"{it.nodes} (replaced)" if it.replace else it.nodes
    return it.id, nodes, ", ".join(it.drivers) or "all", it.state, f"{it.used}/{it.uses}", shown(it.ends_at)


def show_volumes(volumes: list[VolumeStatus], *, has_source: bool) -> Iterator[str]:
    if not volumes:
        without = "the hub knows no volumes; it was started without --kubeconfig and without --manifests"
        yield "the hub knows no volume of a CSI driver" if has_source else without
        return
    head = ("VOLUME", "DRIVER", "NODE", "PV", "CLAIM", "STATE")
    rows = [(it.volume, it.driver, it.node or "-", it.pv or "-", it.claim or "-", it.state) for it in volumes]
    yield from table(head, rows)
    yield from paragraph(f"{it.pv} on {it.node}: {it.error}" for it in volumes if it.error)


def _show_facts(facts: list[NodeFact], *, has_source: bool) -> Iterator[str]:
    if not facts:
        without = "the hub keeps no facts; it was started without --kubeconfig and without --manifests"
        yield f"# {'the hub has no such facts' if has_source else without}"
    for fact in facts:
        yield "---"
        yield from write_yaml(_annotated(fact)).decode().splitlines()


def _annotated(fact: NodeFact) -> dict[str, Any]:
    metadata = fact.object["metadata"]
    about = {_NODE: fact.node, _TOLD_AT: shown(fact.told_at)}
    return {**fact.object, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **about}}}
