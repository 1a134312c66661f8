"""Join tokens: whom they let join, for how long and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cloud.trust.tokens import KEPT_S, TokenRefused, Tokens, names_one_node
from cloud.trust.trust_store import Token, TrustStore
from common.errors import OperatorRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class World:
    def __init__(self, directory: Path) -> None:
        self.now = 1_000.0
        self.store = TrustStore(directory)
        self.tokens = Tokens(self.store, now=lambda: self.now)

    async def make(self, nodes: str = "n1", uses: int = 1) -> tuple[Token, bytes]:
        return await self.tokens.create(nodes=nodes, drivers=("a.csi",), ttl_s=60.0, uses=uses)


def contents(directory: Path) -> list[tuple[str, bytes]]:
    """The files of a directory."""
    return [(file.name, file.read_bytes()) for file in directory.iterdir()]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.store.close()


async def test_a_token_lets_its_node_join(world: World) -> None:
    token, secret = await world.make()
    assert world.tokens.check(token.id, secret, "n1") == token
    world.tokens.check_use(token)
    assert (token.drivers, token.ends_at, len(secret)) == (("a.csi",), 1_060.0, 32)


async def test_the_secret_is_on_no_disk(world: World, tmp_path: Path) -> None:
    _, secret = await world.make()
    await world.store.close()
    assert [name for name, content in contents(tmp_path) if secret in content or secret.hex().encode() in content] == []
    world.store = TrustStore(tmp_path)


async def test_a_wrong_secret_and_an_unknown_token_are_refused_with_the_same_words(world: World) -> None:
    token, secret = await world.make()
    said = set()
    for name, given in ((token.id, bytes(32)), ("nosuch", secret), (token.id, b""), (token.id, secret[:-1])):
        with pytest.raises(TokenRefused) as refused:
            world.tokens.check(name, given, "n1")
        said.add(str(refused.value))
    assert said == {"the hub has no such token"}


@pytest.mark.parametrize(
    ("nodes", "node", "lets"),
    [("n1", "n1", True), ("n1", "n2", False), ("edge-*", "edge-7", True), ("edge-*", "hub", False), ("*", "n1", True)],
)
async def test_a_token_is_for_the_nodes_of_its_pattern(world: World, nodes: str, node: str, *, lets: bool) -> None:
    token, secret = await world.make(nodes)
    if lets:
        world.tokens.check(token.id, secret, node)
    else:
        with pytest.raises(TokenRefused, match="is for"):
            world.tokens.check(token.id, secret, node)
    assert names_one_node(token) is (nodes == "n1")


async def test_a_token_ends(world: World) -> None:
    token, _ = await world.make()
    world.now = 1_060.0
    with pytest.raises(TokenRefused, match="has ended"):
        world.tokens.check_use(token)
    assert [one.state for one in await world.tokens.describe()] == ["ended"]


async def test_a_revoked_token_lets_nobody_join(world: World) -> None:
    token, secret = await world.make()
    await world.tokens.revoke(token.id)
    await world.tokens.revoke(token.id)
    with pytest.raises(TokenRefused, match="revoked"):
        world.tokens.check(token.id, secret, "n1")
    assert [one.state for one in await world.tokens.describe()] == ["revoked"]
    with pytest.raises(OperatorRefused, match="no such token"):
        await world.tokens.revoke("nosuch")


@pytest.mark.parametrize("nodes", ["", "N1", "a/b", "n1\n", "../x", "a b", "n" * 254])
async def test_a_pattern_that_matches_no_name_is_refused(world: World, nodes: str) -> None:
    with pytest.raises(OperatorRefused, match="--node must be"):
        await world.make(nodes)


async def test_a_token_is_removed_long_after_its_end(world: World) -> None:
    old, _ = await world.make()
    world.now += 60 + KEPT_S + 1
    new, _ = await world.make()
    assert list(world.store.tokens) == [new.id]
    assert old.id != new.id


async def test_beyond_the_limit_no_token_is_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.trust.tokens.MOST_TOKENS", 1)
    await world.make()
    with pytest.raises(OperatorRefused, match="there are 1 tokens; one with --uses serves many nodes"):
        await world.make()
