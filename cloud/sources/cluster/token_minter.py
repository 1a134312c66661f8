"""A token minter: lets the API server make the service account tokens of one pod, for `on_demand`.

Rules:

* It asks for what a kubelet asks for (kubernetes pkg/volume/csi/csi_mounter.go): each token is bound to the pod, and
  ends with it.
* They are made anew when a fifth of the shortest life is left, or after a day (kubelet/token/token_manager.go).
* Tokens are in memory alone, in the object that is told to the pod's node, and in no text.
"""

import random
from typing import Any, Final, Protocol

from cloud.kinds.tokens import TokenRequest
from cloud.kube import RESOURCES, KubeError, Resource
from common.objects import Ref

_ACCOUNTS: Final = RESOURCES["ServiceAccount"]

_LONGEST_S: Final = 24 * 3_600.0
"""No token is used for longer: the kubelet's maxTTL."""

_OF_LIFE: Final = 0.8
"""A token is used for this part of its life: the kubelet's."""

_JITTER_S: Final = 10.0
"""Up to so much earlier, so that pods that started together drift apart: the kubelet's."""

Body = dict[str, Any]


class TokenApi(Protocol):
    """What is asked of `cloud.kube.Kube`."""

    async def create_of(self, resource: Resource, name: str, subresource: str, body: Body, namespace: str = "") -> Body:
        """What an object makes on request."""


class TokenMinter:
    """Has tokens made (`on_demand.Getter`), of the pods that it was told of."""

    def __init__(self, api: TokenApi) -> None:
        """No pod needs any yet."""
        self._api = api
        self._requests: dict[Ref, TokenRequest] = {}

    def want(self, request: TokenRequest) -> None:
        """A pod needs these, in place of those of before."""
        self._requests[request.ref] = request

    def release(self, ref: Ref) -> None:
        """It needs none any more."""
        self._requests.pop(ref, None)

    async def get(self, ref: Ref) -> tuple[Body, float]:
        """The tokens of a pod, all of them new.

        Raises:
            KubeError: one was refused, or not answered.
        """
        request = self._requests[ref]
        tokens: dict[str, Body] = {}
        shortest_s = _LONGEST_S / _OF_LIFE
        for audience, seconds in request.audiences:
            tokens[audience], lives_s = await self._mint(request, audience, seconds)
            shortest_s = min(shortest_s, lives_s)
        jitter_s = random.uniform(0.0, _JITTER_S)  # noqa: S311  # no secret
        return request.body(tokens=tokens), max(shortest_s * _OF_LIFE - jitter_s, _JITTER_S)

    def stand_in(self, ref: Ref, error: KubeError) -> Body:
        """Why there are none: a node that has none says it to the pod's users."""
        body = self._requests[ref].body(tokens={}, problem=str(error))
        return body | {"metadata": body["metadata"] | {"uid": ""}}

    def in_words(self, ref: Ref, error: KubeError) -> str:
        """For people."""
        return f"{self._requests[ref].pod} gets no new tokens for its volumes' drivers: {error}"

    async def _mint(self, request: TokenRequest, audience: str, seconds: int) -> tuple[Body, float]:
        """One token, and for how many seconds it is good."""
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
