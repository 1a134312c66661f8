"""Service account tokens, as the hub tells them to the nodes of pods whose drivers ask for them (`tokenRequests`).

One object holds all tokens of one pod, by audience, and has the pod's UID for its name. No error ever holds a token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from cloud.kinds.fields import Body, Fields
from cloud.kinds.kind_rules import KindRules, pick
from common.objects import Ref

KIND: Final = "ServiceAccountToken"

API_VERSION: Final = "csi-bridge.io/v1"
"""The kind is our own: Kubernetes makes tokens, and keeps none."""

_DEFAULT_S: Final = 3_600
"""How long a token lives whose driver does not say: the API server's default (TokenRequest)."""

_OVER: Final = ("Succeeded", "Failed")
"""Phases of a pod that gets no volume any more."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What tokens a pod's volumes need.

    Attributes:
        pod: whose they are; they end with it.
        uid: of the pod.
        account: the service account, in the pod's namespace.
        audiences: for whom each is, sorted, and how many seconds it is to live.
    """

    pod: Ref
    uid: str
    account: str
    audiences: tuple[tuple[str, int], ...]

    @property
    def ref(self) -> Ref:
        """The object that holds them."""
        return Ref(KIND, self.pod.namespace, self.uid)

    def body(self, **fields: Any) -> dict[str, Any]:
        """That object."""
        metadata = {"name": self.uid, "namespace": self.pod.namespace, "uid": self.uid}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, **fields}


def request_of(pod: Body, drivers: Iterable[Body]) -> TokenRequest | None:
    """What tokens the CSIDrivers of a pod's volumes ask for; None if none does, or the pod is over.

    Where two ask for one audience, the token has the shorter life of the two.
    """
    wanted: dict[str, int] = {}
    for driver in drivers:
        for one in (driver.get("spec") or {}).get("tokenRequests") or ():
            audience, seconds = one.get("audience") or "", one.get("expirationSeconds") or _DEFAULT_S
            wanted[audience] = min(seconds, wanted.get(audience, seconds))
    if not wanted or (pod.get("status") or {}).get("phase") in _OVER:
        return None
    metadata = pod["metadata"]
    ref = Ref("Pod", metadata["namespace"], metadata["name"])
    account = pod["spec"].get("serviceAccountName") or "default"
    return TokenRequest(ref, metadata["uid"], account, tuple(sorted(wanted.items())))


def _check(fields: Fields) -> None:
    tokens = fields.part("tokens")
    for audience in tokens.body:
        token = tokens.part(audience, required=True)
        token.text("token", required=True)
        token.time("expirationTimestamp")
    fields.text("problem")


def _trim(body: Body) -> dict[str, Any]:
    tokens = {name: pick(token, "token", "expirationTimestamp") for name, token in (body.get("tokens") or {}).items()}
    return {"tokens": tokens, **pick(body, "problem")}


RULES: Final = KindRules(kind=KIND, api_version=API_VERSION, namespaced=True, check=_check, trim=_trim)
