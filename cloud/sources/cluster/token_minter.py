"""A token minter: lets the API server make the service account tokens of one pod, for `on_demand`.

Rules:

* It makes the requests of a kubelet (docs/csi-contract.md#tokens-and-republishing): each token is bound to the pod, and
  ends with it.
* Tokens are made anew when a fifth of the shortest life is left, or after a day (kubelet/token/token_manager.go).
* Tokens are only in memory, in the object for the pod's node, and in no text.
"""

import random
from typing import Final

from cloud.kinds.tokens import TokenRequest
from cloud.kube.client import RESOURCES, Body, Kube, KubeError
from common.objects.objects import Ref

_ACCOUNTS: Final = RESOURCES["ServiceAccount"]
_LONGEST_S: Final = 24 * 3_600.0  # the longest use of a token: the kubelet's maxTTL
_OF_LIFE: Final = 0.8  # the part of its life for which a token is used, as in the kubelet

# Tokens are made anew up to this much earlier, as in the kubelet, so that pods that started together drift apart.
_JITTER_S: Final = 10.0


class TokenMinter:
    """Gets tokens (`on_demand.Getter`) for the pods that want them."""

    def __init__(self, api: Kube) -> None:
        self._api = api
        self._requests: dict[Ref, TokenRequest] = {}

    def want(self, request: TokenRequest) -> None:
        self._requests[request.ref] = request

    def release(self, ref: Ref) -> None:
        self._requests.pop(ref, None)

    async def get(self, ref: Ref) -> tuple[Body, float]:
        """Make all tokens of a pod. Returns them, and the seconds until they are due again. Raises KubeError."""
        request = self._requests[ref]
        tokens: dict[str, Body] = {}
        shortest_s = _LONGEST_S / _OF_LIFE
        for audience, seconds in request.audiences:
            tokens[audience], lives_s = await self._mint(request, audience, seconds)
            shortest_s = min(shortest_s, lives_s)
        jitter_s = random.uniform(0.0, _JITTER_S)  # noqa: S311  # no secret
        return request.body(tokens=tokens), max(shortest_s * _OF_LIFE - jitter_s, _JITTER_S)

    def stand_in(self, ref: Ref, error: KubeError) -> Body:
        """An object with the reason why there are no tokens, for the pod's users."""
        body = self._requests[ref].body(tokens={}, problem=str(error))
        return body | {"metadata": body["metadata"] | {"uid": ""}}

    def in_words(self, ref: Ref, error: KubeError) -> str:
        return f"{self._requests[ref].pod} gets no new tokens for its volumes' drivers: {error}"

    async def _mint(self, request: TokenRequest, audience: str, seconds: int) -> tuple[Body, float]:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": request.pod.name, "uid": request.uid}
        spec = {
            "audiences": [audience] if audience else [],  # without any it is for the API server
            "expirationSeconds": seconds,
            "boundObjectRef": bound,
        }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await self._api.create_of(_ACCOUNTS, request.account, "token", body, request.pod.namespace)
        try:
            given = {name: str(made["status"][name]) for name in ("token", "expirationTimestamp")}
            return given, float(made["spec"]["expirationSeconds"])  # which may be another one than was asked for
        except (KeyError, TypeError, ValueError):
            raise KubeError(f"create token of ServiceAccount {request.account}", 0, "", "it holds no token") from None
