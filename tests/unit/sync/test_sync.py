"""A teller and a learner, one behaviour at a time. What holds whatever happens is in test_sync_model.py."""

import gc
import weakref

import pytest

from common.errors import RemoteProtocolError
from common.objects.digest import BUCKETS, bucket_of, differing, digest_of
from common.objects.objects import Object, Ref, Stamp
from common.objects.sync import Compared, Confirmed, Learner, Teller, Untold
from common.objects.sync_messages import (
    Differ,
    Drop,
    Held,
    HeldAll,
    InStep,
    Put,
    Refused,
    Stored,
    SyncMessage,
    decode,
    drop,
    encode,
    put,
)
from common.objects.sync_messages import Digest as DigestSaid
from tests.kit.synced_sides import MAX_MESSAGE_BYTES, Synced

EMPTY = digest_of({})


def pod(name: str, version: int = 1, *, uid: str = "u", size: int = 100, kind: str = "Pod") -> Object:
    return Object(Ref(kind, "ns", name), Stamp(uid, str(version)), b"x" * size)


def synced(*objects: Object, budget_bytes: int = 10_000) -> Synced:
    """A world where the learner holds all that the teller knows."""
    world = Synced(budget_bytes=budget_bytes)
    for item in objects:
        world.put(item)
    world.connect()
    world.settle()
    world.sent.clear()
    world.sent_bytes = 0
    return world


def told(world: Synced) -> list[SyncMessage]:
    """What the teller says now."""
    before = len(world.down)
    while world.tell():
        pass
    return [said for message in world.down[before:] for said in decode(message)]


# ---- what is said when nothing, little or all differs ----------------------------------------------------------------


def test_objects_are_told_in_the_truths_order_and_drops_in_the_reverse_one_before_them() -> None:
    world = synced(pod("claim"), pod("pod"))
    for item in (pod("new-claim"), pod("new-pod")):
        world.put(item, tell=False)
    for name in ("claim", "pod"):
        world.drop(pod(name).ref, tell=False)
    world.changed(pod("pod").ref, whole=True)
    assert [getattr(said, "name", "in step") for said in told(world)] == [
        "pod", "claim", "new-claim", "new-pod", "in step",
    ]  # fmt: skip


def test_objects_that_change_together_are_told_in_the_truths_order_however_they_are_named() -> None:
    world = synced()
    assert world.teller is not None
    for name in ("claim", "pod"):
        world.put(pod(name), tell=False)
    world.teller.changed([pod("pod").ref, pod("claim").ref])
    assert [said.name for said in told(world) if isinstance(said, Put)] == ["claim", "pod"]


# ---- only the newest, one at a time ----------------------------------------------------------------------------------


def test_an_object_that_changes_on_its_way_is_told_again_when_it_is_stored_and_only_in_its_newest_state() -> None:
    world = synced()
    world.put(pod("a", 1))
    assert [type(said) for said in told(world)] == [Put, InStep]
    world.put(pod("a", 2))
    world.put(pod("a", 3))
    assert told(world) == []
    world.settle()
    assert world.sent["Put"] == 2
    assert world.copy.objects[pod("a").ref] == pod("a", 3)


def test_a_body_is_read_when_it_is_sent_so_a_newer_one_goes() -> None:
    world = synced()
    world.put(pod("a", 1))
    world.put(pod("a", 2), tell=False)
    assert told(world)[0] == put(2, pod("a", 2))
    world.settle()
    assert world.sent["Put"] == 1


def test_another_object_of_the_same_name_is_told_as_an_end_and_a_beginning() -> None:
    world = synced(pod("a", uid="old"))
    world.put(pod("a", 2, uid="new"))
    assert told(world) == [drop(3, pod("a").ref, "old")]
    world.settle()
    assert world.copy.objects[pod("a").ref].stamp.uid == "new"


@pytest.mark.parametrize("tell", [True, False], ids=["known to be gone", "gone when it is read"])
def test_what_came_and_went_before_it_was_told_is_not_told(tell: bool) -> None:
    world = synced()
    world.put(pod("a"))
    world.drop(pod("a").ref, tell=tell)
    assert told(world) == []


class Copied(dict[Ref, Stamp]):
    """A copy's stamps, as a hub makes them for one stream. A weak reference can follow it, unlike a dict."""


@pytest.mark.parametrize("buckets", [b"", bytes(range(BUCKETS))], ids=["nothing differs", "all differs"])
def test_a_learner_keeps_no_list_of_its_objects_once_they_are_compared(buckets: bytes) -> None:
    held = Copied({pod(name).ref: pod(name).stamp for name in "abc"})
    kept, learner = weakref.ref(held), Learner(held)
    del held
    learner.next_message()
    learner.receive(encode(Differ(buckets)))
    while learner.next_message():
        pass
    gc.collect()
    assert kept() is None


# ---- in step ---------------------------------------------------------------------------------------------------------


def test_in_step_is_said_after_the_first_comparison_and_again_after_each_burst() -> None:
    world = synced()
    assert told(world) == []
    world.put(pod("a"))
    world.put(pod("b"))
    assert [type(said) for said in told(world)] == [Put, Put, InStep]
    world.settle()
    world.drop(pod("a").ref)
    assert [type(said) for said in told(world)] == [Drop, InStep]


# ---- the budget ------------------------------------------------------------------------------------------------------


def test_the_teller_stops_at_the_budget_until_something_is_stored() -> None:
    world = synced(budget_bytes=450)
    for number in range(5):
        world.put(pod(f"p{number}"))
    assert len(told(world)) == 3
    assert told(world) == []
    while world.deliver_down():
        pass
    world.store(1)
    world.learn()
    world.deliver_up()
    assert len(told(world)) == 1


# ---- what cannot be told ---------------------------------------------------------------------------------------------


def test_a_key_that_the_wire_cannot_carry_is_named() -> None:
    world = synced()
    assert world.teller is not None
    world.put(pod("n" * 2_000))
    assert [type(said) for said in decode(world.teller.next_message() or b"")] == []
    (event,) = world.teller.events()
    assert isinstance(event, Untold)


def connected_anew(*objects: Object) -> Synced:
    """A new stream to a learner that holds nothing."""
    world = Synced(budget_bytes=10_000)
    for item in objects:
        world.put(item)
    world.connect()
    world.settle()
    return world


def test_a_pod_that_cannot_be_told_keeps_nobody_out_of_step_when_it_is_gone() -> None:
    world = connected_anew(pod("huge", size=MAX_MESSAGE_BYTES))
    assert world.sent["InStep"] == 0
    world.drop(pod("huge").ref)
    world.settle()
    assert world.sent["InStep"] == 1


def test_what_nobody_misses_may_be_untold_for_ever() -> None:
    """A node with one Secret that is too large would clean up nothing any more."""
    world = connected_anew(pod("huge", kind="Secret", size=MAX_MESSAGE_BYTES))
    assert world.said["Untold"] == 1
    assert world.sent["InStep"] == 1


# ---- what nobody knows ----------------------------------------------------------------------------------------------

TOKENS = pod("tokens", kind="ServiceAccountToken")


def test_what_is_known_again_is_told_as_far_as_it_differs() -> None:
    world = synced(TOKENS)
    world.lose(TOKENS.ref)
    world.put(TOKENS)
    assert told(world) == []
    world.lose(TOKENS.ref)
    world.put(pod("tokens", 2, kind="ServiceAccountToken"))
    assert [type(said) for said in told(world)] == [Put, InStep]
    world.settle()
    world.lose(TOKENS.ref)
    world.drop(TOKENS.ref)
    assert [type(said) for said in told(world)] == [Drop, InStep]


def test_an_end_that_waits_to_be_told_is_not_told_of_what_is_unknown_by_then() -> None:
    world = synced(TOKENS)
    world.drop(TOKENS.ref)
    world.lose(TOKENS.ref, tell=False)
    assert [type(said) for said in told(world)] == []
    assert world.copy.objects == {TOKENS.ref: TOKENS}


# ---- what its owner hears --------------------------------------------------------------------------------------------


def test_the_owner_hears_what_the_learner_had_and_what_it_has_stored() -> None:
    world = synced(pod("a"))
    teller = Teller(world.truth, max_message_bytes=9_000)
    teller.receive(encode(DigestSaid(1_000, digest_of(world.copy.stamps()))))
    (compared,) = teller.events()
    assert isinstance(compared, Compared)
    assert dict(compared.held) == {pod("a").ref: pod("a").stamp}
    world.truth.objects = {pod("b").ref: pod("b")}
    teller.changed()
    while teller.next_message():
        pass
    teller.receive(encode(Stored(2)))
    assert teller.events() == [Confirmed(pod("a").ref, None), Confirmed(pod("b").ref, pod("b").stamp)]


# ---- a peer that breaks the rules ------------------------------------------------------------------------------------


def teller_that_asks() -> Teller:
    """A teller that has asked what is in the bucket of its one object."""
    world = Synced(budget_bytes=500)
    world.put(pod("a"))
    teller = Teller(world.truth, max_message_bytes=3_000)
    teller.receive(encode(DigestSaid(500, EMPTY)))
    return teller


def teller_that_tells() -> Teller:
    teller = teller_that_asks()
    teller.receive(encode(HeldAll()))
    while teller.next_message():
        pass
    return teller


other = next(name for name in map(str, range(99)) if bucket_of(pod(name).ref) != bucket_of(pod("a").ref))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Stored(1), "Stored is not allowed now"),
        (Put(1, "Pod", "ns", "a", "u", "1", b""), "Put is not allowed now, or not from this side"),
        (DigestSaid(1, EMPTY), "Digest is not allowed now"),
        (Held("Pod", "ns", other, "u", "1"), "a bucket that was not asked for"),
    ],
)
def test_a_learner_that_speaks_out_of_turn_is_refused(said: SyncMessage, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        teller_that_asks().receive(encode(said))


def test_a_digest_of_another_size_is_refused() -> None:
    teller = Teller(Synced(budget_bytes=0).truth, max_message_bytes=9_000)
    with pytest.raises(RemoteProtocolError, match=r"a digest of 7 bytes, not 2048"):
        teller.receive(encode(DigestSaid(500, b"1234567")))


@pytest.mark.parametrize("said", [Stored(3), Refused(7, "no"), HeldAll(), Held("Pod", "ns", "a", "u", "1")])
def test_a_learner_that_stores_what_it_was_not_told_is_refused(said: SyncMessage) -> None:
    with pytest.raises(RemoteProtocolError):
        teller_that_tells().receive(encode(said))


def test_what_was_stored_stays_stored() -> None:
    teller = teller_that_tells()
    teller.receive(encode(Stored(2)))
    with pytest.raises(RemoteProtocolError, match="Stored: 1 after 2"):
        teller.receive(encode(Stored(1)))


def test_a_learner_that_lists_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.objects.sync._MOST_HELD_BYTES", 50 * 109)
    teller = Teller(Synced(budget_bytes=0).truth, max_message_bytes=9_000)
    teller.receive(encode(DigestSaid(500, b"\xff" * 8 * BUCKETS)))
    for number in range(50):
        teller.receive(encode(Held("Pod", "ns", str(10 + number), "u", "1")))
    with pytest.raises(RemoteProtocolError, match="more than 5450 bytes of names"):
        teller.receive(encode(Held("Pod", "ns", "60", "u", "1")))


def test_a_learner_cannot_fill_the_tellers_memory_with_long_names() -> None:
    teller = Teller(Synced(budget_bytes=0).truth, max_message_bytes=9_000)
    teller.receive(encode(DigestSaid(500, b"\xff" * 8 * BUCKETS)))
    long = "x" * 1_000
    with pytest.raises(RemoteProtocolError, match="bytes of names"):  # noqa: PT012  # one of them is too much
        for number in range(100_000):
            teller.receive(encode(Held("Pod", "ns", f"{number}{long}", long, long)))
    assert len(teller._told) < 6_000


def learner() -> Learner:
    found = Learner({}, budget_bytes=500)
    assert found.next_message()
    return found


def test_a_teller_that_tells_before_it_has_compared_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="Put is not allowed now"):
        learner().receive(encode(put(1, pod("a"))))
    asked = learner()
    asked.receive(encode(Differ(b"\x07")))
    with pytest.raises(RemoteProtocolError, match="Put is not allowed now"):
        asked.receive(encode(put(1, pod("a"))))


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([put(2, pod("a"))], "Put: seq 2, not 1"),
        ([put(1, pod("a")), put(1, pod("b"))], "Put: seq 1, not 2"),
        ([put(1, pod("a", size=450)), drop(2, pod("b" * 200).ref, "u")], "Drop: .* 500 were agreed"),
        ([InStep(1), InStep(2)], "InStep: twice"),
        ([Differ(b"")], "Differ is not allowed now"),
        ([Stored(1)], "not from this side"),
        ([Put(1, "Pod", "ns", "", "u", "1", b"")], "without a kind or a name"),
    ],
)
def test_a_teller_that_breaks_the_rules_is_refused(told: list[SyncMessage], why: str) -> None:
    asked = learner()
    asked.receive(encode(Differ(b"")))
    with pytest.raises(RemoteProtocolError, match=why):
        asked.receive(b"".join(map(encode, told)))


def test_a_learner_cannot_store_what_did_not_come() -> None:
    asked = learner()
    asked.receive(encode(Differ(b"")))
    with pytest.raises(RuntimeError, match="stored 1, but 0 was received last"):
        asked.stored(1)


# ---- the digest ------------------------------------------------------------------------------------------------------


def test_a_digest_does_not_depend_on_the_order() -> None:
    one, two = (digest_of({pod(name).ref: Stamp("u", "1") for name in names}) for names in ("ab", "ba"))
    assert one == two
    assert differing(one, two) == b""


@pytest.mark.parametrize("changed", [Stamp("u", "2"), Stamp("v", "1"), Stamp("u1", "")])
def test_another_uid_or_version_makes_another_digest(changed: Stamp) -> None:
    ref = pod("a").ref
    assert differing(digest_of({ref: changed}), digest_of({ref: Stamp("u", "1")})) == bytes([bucket_of(ref)])
