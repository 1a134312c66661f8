"""Join tokens: whom they let join, for how long and how often."""

import pytest

from cloud.trust.tokens import KEPT_S, Tokens
from cloud.trust.trust_store import Token, TrustStore
from common.errors import CallError, HandshakeRefused
from common.operator_orders import CreateToken
from tests.kit.memory_records import MemoryRecords


class MintedTokens:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.store = TrustStore(MemoryRecords())
        self.tokens = Tokens(self.store, now=lambda: self.now)

    async def make(self, nodes: str = "n1", uses: int = 1, *, replace: bool = False) -> tuple[Token, bytes]:
        return await self.tokens.create(
            CreateToken(node=nodes, drivers=["a.csi"], ttl_s=60, uses=uses, replace=replace)
        )


@pytest.fixture
def minted() -> MintedTokens:
    return MintedTokens()


async def test_a_wrong_secret_and_an_unknown_token_are_refused_with_the_same_words(minted: MintedTokens) -> None:
    token, secret = await minted.make()
    said = set()
    for name, given in ((token.id, bytes(32)), ("nosuch", secret), (token.id, b""), (token.id, secret[:-1])):
        with pytest.raises(HandshakeRefused) as refused:
            minted.tokens.check(name, given, "n1")
        said.add(str(refused.value))
    assert said == {"the hub has no such token"}


@pytest.mark.parametrize(
    ("nodes", "node", "lets"),
    [("n1", "n1", True), ("n1", "n2", False), ("edge-*", "edge-7", True), ("edge-*", "hub", False), ("*", "n1", True)],
)
async def test_a_token_is_for_the_nodes_of_its_pattern(
    minted: MintedTokens, nodes: str, node: str, *, lets: bool
) -> None:
    token, secret = await minted.make(nodes)
    if lets:
        minted.tokens.check(token.id, secret, node)
    else:
        with pytest.raises(HandshakeRefused, match="is for"):
            minted.tokens.check(token.id, secret, node)


async def test_a_token_that_replaces_a_node_names_one_node(minted: MintedTokens) -> None:
    token, _ = await minted.make(replace=True)
    assert token.replace
    for pattern in ("*", "edge-?"):
        with pytest.raises(CallError, match="--node=NAME"):
            await minted.make(pattern, replace=True)


async def test_a_token_ends(minted: MintedTokens) -> None:
    token, _ = await minted.make()
    minted.now = 1_060.0
    with pytest.raises(HandshakeRefused, match="has ended"):
        minted.tokens.check_use(token)
    assert [one.state for one in await minted.tokens.describe()] == ["ended"]


async def test_a_revoked_token_lets_nobody_join(minted: MintedTokens) -> None:
    token, secret = await minted.make()
    await minted.tokens.revoke(token.id)
    await minted.tokens.revoke(token.id)
    with pytest.raises(HandshakeRefused, match="revoked"):
        minted.tokens.check(token.id, secret, "n1")
    assert [one.state for one in await minted.tokens.describe()] == ["revoked"]
    with pytest.raises(CallError, match="no such token"):
        await minted.tokens.revoke("nosuch")


@pytest.mark.parametrize("nodes", ["", "N1", "a/b", "n1\n", "../x", "a b", "n" * 254])
async def test_a_pattern_that_matches_no_name_is_refused(minted: MintedTokens, nodes: str) -> None:
    with pytest.raises(CallError, match="--node must be"):
        await minted.make(nodes)


async def test_a_token_is_removed_long_after_its_end(minted: MintedTokens) -> None:
    old, _ = await minted.make()
    minted.now += 60 + KEPT_S + 1
    new, _ = await minted.make()
    assert list(minted.store.tokens) == [new.id]
    assert old.id != new.id


async def test_beyond_the_limit_no_token_is_made(minted: MintedTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.trust.tokens.MOST_TOKENS", 1)
    await minted.make()
    with pytest.raises(CallError, match="there are 1 tokens; one with --uses serves many nodes"):
        await minted.make()
