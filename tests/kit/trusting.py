"""The rights of nodes whose every word counts, for tests of other things than rights."""

from collections.abc import Mapping
from typing import Any

from cloud.node_rights import NodeRights
from common.objects import Ref


class _Trusting(NodeRights):
    def believed(self, _node: str, _ref: Ref, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return body


TRUSTING = _Trusting(lambda _: {}, lambda _: (), lambda *_: "")
