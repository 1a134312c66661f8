"""A token minter: asks for what a kubelet asks for, in time, and says why there is none."""

from typing import Any

import pytest

from cloud.kinds.rules.kind_rules import trimmed
from cloud.kinds.table import KINDS
from cloud.kinds.tokens import TokenRequest
from cloud.kube.client import KubeError, Resource
from cloud.sources.cluster.token_minter import TokenMinter
from common.objects.objects import Ref

REQUEST = TokenRequest(Ref("Pod", "default", "web"), "uid-web", "robot", (("", 3600), ("vault", 600)))
REF = Ref("ServiceAccountToken", "default", "uid-web")

Body = dict[str, Any]


class Api:
    """Makes tokens that live as long as it likes."""

    def __init__(self, lives_s: float | None = None) -> None:
        self.asked: list[tuple[str, str, str, str, Body]] = []
        self.lives_s = lives_s
        self.error: KubeError | None = None

    async def create_of(self, resource: Resource, name: str, subresource: str, body: Body, namespace: str = "") -> Body:
        if self.error is not None:
            raise self.error
        self.asked.append((resource.plural, namespace, name, subresource, body))
        status = {"token": f"token-{len(self.asked)}", "expirationTimestamp": "2030-01-31T12:00:00Z"}
        seconds = self.lives_s or body["spec"]["expirationSeconds"]
        return {"spec": {"expirationSeconds": seconds}, "status": status}


def minter(api: Api) -> TokenMinter:
    made = TokenMinter(api)
    made.want(REQUEST)
    return made


async def test_each_audience_gets_a_token_that_is_bound_to_the_pod() -> None:
    api = Api()
    body, _ = await minter(api).get(REF)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-web"}
    assert [it[:4] for it in api.asked] == [("serviceaccounts", "default", "robot", "token")] * 2
    assert [it[4]["spec"] for it in api.asked] == [
        {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound},
        {"audiences": ["vault"], "expirationSeconds": 600, "boundObjectRef": bound},
    ]
    assert body["tokens"] == {
        "": {"token": "token-1", "expirationTimestamp": "2030-01-31T12:00:00Z"},
        "vault": {"token": "token-2", "expirationTimestamp": "2030-01-31T12:00:00Z"},
    }
    assert body["metadata"] == {"namespace": "default", "name": "uid-web", "uid": "uid-web"}
    assert trimmed(body, rules=KINDS["ServiceAccountToken"]) == body


@pytest.mark.parametrize(
    ("lives_s", "least_s", "most_s"),
    [(None, 470, 480), (3600, 2870, 2880), (30 * 86_400, 86_390, 86_400), (1, 10, 10)],
    ids=["as asked", "as the server likes", "at most a day", "never all the time"],
)
async def test_they_are_made_anew_when_a_fifth_of_the_shortest_life_is_left(
    lives_s: float | None, least_s: float, most_s: float
) -> None:
    _, good_for_s = await minter(Api(lives_s)).get(REF)
    assert least_s <= good_for_s <= most_s


async def test_why_there_are_none_is_told_in_place_of_tokens_and_as_no_object() -> None:
    api = Api()
    api.error = KubeError("create token of ServiceAccount default/robot", 404, "NotFound", '"robot" not found')
    made = minter(api)
    with pytest.raises(KubeError):
        await made.get(REF)
    told = made.stand_in(REF, api.error)
    assert told["tokens"] == {}
    assert '"robot" not found' in told["problem"]
    assert told["metadata"] == {"namespace": "default", "name": "uid-web", "uid": ""}
    assert trimmed(told, rules=KINDS["ServiceAccountToken"]) == told
    assert made.in_words(REF, api.error).startswith("Pod default/web gets no new tokens")


async def test_an_answer_without_a_token_is_no_answer() -> None:
    class Broken(Api):
        async def create_of(self, *args: Any, **options: Any) -> Body:
            return {"status": {"token": "hunter2"}}

    with pytest.raises(KubeError) as caught:
        await minter(Broken()).get(REF)
    assert caught.value.code == 0
    assert "hunter2" not in str(caught.value)
