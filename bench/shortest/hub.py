"""The hub: passes calls of proxy drivers on to the agent of their node, and claims the name of each create for it."""

import time

from bench.shortest import books
from bench.shortest.link import ACKNOWLEDGEMENT, ANSWER, CALL, Link
from common.csi import csi_pb2 as csi

_CREATE = b"/csi.v1.Controller/CreateVolume"
_METHODS = frozenset({_CREATE, b"/csi.v1.Controller/DeleteVolume", b"/csi.v1.Controller/ValidateVolumeCapabilities"})
_UNIMPLEMENTED, _UNAVAILABLE = 12, 14
_NOT_FINAL = frozenset({1, 2, 4, 8, 10, 13, _UNAVAILABLE})

_agents: dict[bytes, "FromAgent"] = {}
_claims: dict[tuple[bytes, str], "Claim"] = {}


class Claim:
    """A name that belongs to a node until its create has a final answer."""

    __slots__ = ("is_in_doubt", "key", "node")


class Call:
    """A call: a stream of the proxy driver's link, and one of the agent's."""

    __slots__ = ("agent", "agent_stream", "began", "claim", "code", "heading", "proxy", "proxy_stream", "request_bytes")


class FromProxy(Link):
    """The link of a proxy driver."""

    def called(self, stream: int, timeout_ms: int, heading: bytes, request: bytes) -> None:
        driver, method, node, _ = heading.split(b"\n")
        agent, claim = _agents.get(node), None
        if agent is None:
            return self.send(ANSWER, stream, _UNAVAILABLE, b"the node is not connected", b"")
        if method not in _METHODS:
            return self.send(ANSWER, stream, _UNIMPLEMENTED, b"the method is not known", b"")
        if method == _CREATE:
            key = driver, csi.CreateVolumeRequest.FromString(request).name
            claim = _claims.get(key)
            if claim is None:
                claim = _claims[key] = Claim()
                claim.key, claim.node, claim.is_in_doubt = key, node, False
            elif claim.node != node:
                return self.send(ANSWER, stream, _UNAVAILABLE, b"another node has the name", b"")
        call = self.calls[stream] = Call()
        call.proxy, call.proxy_stream, call.agent, call.agent_stream = self, stream, agent, agent.add(call)
        call.began, call.claim, call.heading, call.request_bytes = time.monotonic(), claim, heading, len(request)
        return agent.send(CALL, call.agent_stream, timeout_ms, heading, request)

    def acknowledged(self, stream: int) -> None:
        if (call := self.calls.pop(stream, None)) is not None:
            if (claim := call.claim) is not None and call.code == 0 and not claim.is_in_doubt:
                _claims.pop(claim.key, None)
            del call.agent.calls[call.agent_stream]
            call.agent.later(ACKNOWLEDGEMENT, call.agent_stream)


class FromAgent(Link):
    """The link of an agent, whose first frame names its node."""

    def called(self, _stream: int, _number: int, node: bytes, _body: bytes) -> None:
        _agents[node] = self

    def answered(self, stream: int, code: int, text: bytes, body: bytes) -> None:
        call = self.calls[stream]
        call.code = code
        if code and (claim := call.claim) is not None:
            claim.is_in_doubt = claim.is_in_doubt or code in _NOT_FINAL
            if not claim.is_in_doubt:
                _claims.pop(claim.key, None)
        call.proxy.send(ANSWER, call.proxy_stream, code, text, body)
        books.ended(call.heading, call.began, code, call.request_bytes, len(body))
