"""Service account tokens, which the hub sends to nodes for pods whose drivers have `tokenRequests`.

One object holds all tokens of one pod by audience, and is named by the pod's UID. Errors hold no token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from cloud.kinds.rules.fields import Body, Fields
from cloud.kinds.rules.kind_rules import KindRules, pick
from common.objects.objects import Ref

KIND: Final = "ServiceAccountToken"
API_VERSION: Final = "csi-bridge.io/v1"  # the kind is the bridge's own: Kubernetes makes tokens, and stores none
_DEFAULT_S: Final = 3_600  # the life of a token if the driver sets none: the API server's default (TokenRequest)
_OVER: Final = ("Succeeded", "Failed")  # the phases of a pod that gets no more volumes


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """The tokens that a pod's volumes need."""

    pod: Ref  # the pod; the tokens end with it
    uid: str
    account: str  # the service account, in the pod's namespace
    audiences: tuple[tuple[str, int], ...]  # the sorted audiences, each with the token's life in seconds

    @property
    def ref(self) -> Ref:
        return Ref(KIND, self.pod.namespace, self.uid)

    def body(self, **fields: Any) -> dict[str, Any]:
        metadata = {"name": self.uid, "namespace": self.pod.namespace, "uid": self.uid}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, **fields}


def request_of(pod: Body, drivers: Iterable[Body]) -> TokenRequest | None:
    """The tokens that the CSIDrivers of a pod's volumes request; None if there are none, or the pod is over.

    If two drivers request the same audience, the token gets the shorter life.
    """
    wanted: dict[str, int] = {}
    for driver in drivers:
        for one in (driver.get("spec") or {}).get("tokenRequests") or ():
            audience = one.get("audience") or ""
            seconds = one.get("expirationSeconds") or _DEFAULT_S
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
