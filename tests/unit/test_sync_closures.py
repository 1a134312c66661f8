"""The closures: each node holds what its pods need, in a usable order, and nothing of anybody else's."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.kinds.tokens import TokenRequest
from cloud.nodes.node_rights import NodeRights
from cloud.sources.source import Item, Source
from cloud.sync import closures as module
from cloud.sync.closures import Closures
from common.objects.objects import Ref
from common.objects.offline_policy import PARAMETER
from tests.kit.cluster_objects import (
    DRIVER,
    attachment,
    claim,
    driver,
    entries,
    node,
    pod,
    secret,
    storage_class,
    volume,
)
from tests.kit.trusting import TRUSTING, SaidNodes
from tests.kit.waiting import settle


def source(*objects: Any) -> Source:
    """A source that holds these and is ready."""
    found = Source()
    found.update(items(*objects), ready=True)
    return found


def items(*objects: Any) -> dict[Ref, Item]:
    return {ref: entry.item for ref, entry in entries(*objects).items()}


class Reluctant(Source):
    """A source that has Secrets and tokens on demand only, and is ready."""

    def __init__(self, *objects: Any) -> None:
        super().__init__()
        self.used: list[str] = []
        self.asked: set[Ref] = set()
        self.update(items(*objects), ready=True)

    def knows(self, ref: Ref) -> bool:
        return ref in self.asked if ref.kind == "Secret" else self.is_ready

    def use(self, ref: Ref, request: TokenRequest | None = None) -> None:
        if ref.kind == "Secret":
            self.used.append(f"use {ref.name}")
        if request is not None:
            self.used.append(f"use {request.pod} {request.account} {dict(request.audiences)}")

    def release(self, ref: Ref) -> None:
        if ref.kind in {"Secret", "ServiceAccountToken"}:
            self.used.append(f"release {ref.name}")
            self.asked.discard(ref)


def watched(source: Source, *nodes: str) -> Closures:
    """Closures of which those of these nodes (n1, if none is named) are kept."""
    closures = Closures(source, TRUSTING)
    for name in nodes or ("n1",):
        closures.watch(name, lambda: None)
    return closures


def held(closures: Closures, name: str) -> list[str]:
    return [str(ref) for ref in closures.stamps(name)]


def put(into: Source, *objects: Any) -> None:
    into.update(items(*objects))


def remove(from_: Source, *refs: Ref) -> None:
    from_.update(dict.fromkeys(refs))


STAGE = {"nodeStageSecretRef": "vault/stage"}
WEB = (
    pod("web", claims=("data",)),
    claim("data", volume="v"),
    volume("v", claim="default/data", secrets=STAGE),
    secret("stage", namespace="vault", key="x"),
    driver(),
    attachment("a-v", volume="v"),
    node(),
)
WITHOUT_SECRET = tuple(it for it in WEB if it["kind"] != "Secret")


def test_a_node_holds_what_its_pods_need_each_thing_before_what_needs_it() -> None:
    assert held(Closures(source(*WEB), TRUSTING), "n1") == [
        "Node n1",
        "CSIDriver d.example",
        "Secret vault/stage",
        "PersistentVolume v",
        "VolumeAttachment a-v",
        "PersistentVolumeClaim default/data",
        "Pod default/web",
    ]


def test_an_agent_beside_a_kubelet_gets_no_credentials_and_the_source_is_not_asked_for_any() -> None:
    tokens = driver(tokenRequests=[{"audience": "vault"}])
    objects = Reluctant(*(it for it in WEB if it["kind"] != "CSIDriver"), tokens)
    closures = Closures(objects, TRUSTING)
    without = [it for it in held(closures, "n1") if it.split()[0] not in
               {"Secret", "ServiceAccountToken", "VolumeAttachment"}]  # fmt: skip
    end = closures.watch("n1", lambda: None, with_credentials=False)
    assert held(closures, "n1") == without
    assert objects.used == []
    closures.watch("n1", lambda: None)
    end()
    assert "VolumeAttachment a-v" in held(closures, "n1")
    assert "use stage" in objects.used


def test_a_node_holds_the_class_of_its_volume_with_the_bridges_own_parameter_alone() -> None:
    objects = source(
        pod("web", claims=("data",)),
        claim("data", volume="v"),
        volume("v", claim="default/data", storageClassName="fast"),
    )
    closures = watched(objects)
    ref = Ref("StorageClass", "", "fast")
    assert not closures.holds("n1", ref)
    put(objects, storage_class("fast", "fence"))
    found = closures.read(ref)
    assert closures.holds("n1", ref)
    assert found.read()["parameters"] == {PARAMETER: "fence"}
    assert "provisioner" not in found.read()
    remove(objects, ref)
    assert not closures.holds("n1", ref)


def test_pods_come_in_the_order_of_their_names_and_shared_things_once() -> None:
    closures = Closures(
        source(pod("b", claims=("c",)), pod("a", claims=("c",)), pod("z", namespace="a"), claim("c")), TRUSTING
    )
    assert held(closures, "n1") == [
        "Pod a/z",
        "PersistentVolumeClaim default/c",
        "Pod default/a",
        "Pod default/b",
    ]


def test_nothing_of_anybody_else_is_held() -> None:
    others = (
        pod("other", node="n2", claims=("theirs",)),
        claim("theirs", volume="w"),
        volume("w", claim="default/theirs", driver="e.example", secrets={"nodePublishSecretRef": "vault/other"}),
        secret("other", namespace="vault"),
        secret("nobodys"),
        driver("e.example"),
        attachment("a-w", volume="w", node="n2"),
        attachment("b-v", volume="v", node="n2"),
        attachment("a-x", volume="unused"),
        volume("unused"),
        claim("unused"),
        node("n2"),
    )
    closures = Closures(source(*WEB, *others), TRUSTING)
    assert held(closures, "n1") == held(Closures(source(*WEB), TRUSTING), "n1")
    assert "Secret vault/stage" not in held(closures, "n2")
    assert held(closures, "n3") == []


def test_a_claim_gets_nobody_a_volume_that_does_not_name_it() -> None:
    """Anybody may write a claim that names any volume, and would get its secrets."""
    for stranger in (
        volume("v", claim="default/other", secrets=STAGE),
        volume("v", claim="other/data", secrets=STAGE),
        volume("v", secrets=STAGE),
        volume("v", secrets=STAGE, claimRef={"namespace": "default", "name": "data", "uid": "another"}),
    ):
        closures = Closures(source(*WEB[:2], stranger, *WEB[3:]), TRUSTING)
        assert held(closures, "n1") == ["Node n1", "PersistentVolumeClaim default/data", "Pod default/web"]


def test_two_claims_of_one_pod_may_name_one_volume_and_only_its_own_gets_it() -> None:
    thief = claim("aaa", volume="v")
    closures = Closures(source(pod("web", claims=("aaa", "data")), thief, *WEB[1:]), TRUSTING)
    assert "PersistentVolume v" in held(closures, "n1")


def test_only_nodes_that_look_an_object_up_hear_of_it_and_once() -> None:
    objects = source(*WEB, pod("other", node="n2"))
    closures = Closures(objects, TRUSTING)
    told: list[str] = []
    for name in ("n1", "n2"):
        closures.watch(name, partial(told.append, name))
    put(objects, secret("stage", namespace="vault", key="y"), driver(podInfoOnMount=True), secret("nobodys"))
    assert told == ["n1"]
    put(objects, secret("nobodys", key="x"))
    assert told == ["n1"]


def test_stamps_stay_the_same_mapping_until_something_changes() -> None:
    objects = source(*WEB)
    closures = watched(objects)
    before = closures.stamps("n1")
    put(objects, pod("other", node="n2"))
    assert closures.stamps("n1") is before
    put(objects, driver(podInfoOnMount=True))
    after = closures.stamps("n1")
    assert after is not before
    assert [ref.kind for ref in before if before[ref] != after[ref]] == ["CSIDriver"]


def test_who_stops_watching_hears_no_more_and_nothing_is_kept_for_it() -> None:
    objects = source(*WEB)
    closures = Closures(objects, TRUSTING)
    told: list[str] = []
    first = closures.watch("n1", lambda: told.append("first"))
    second = closures.watch("n1", lambda: told.append("second"))
    first()
    first()
    put(objects, driver(podInfoOnMount=True))
    assert told == ["second"]
    second()
    put(objects, driver())
    assert told == ["second"]
    assert (closures._closures, closures._users) == ({}, {})


def test_who_asks_for_a_closure_that_nobody_watches_gets_it_and_nothing_is_kept_or_asked_for() -> None:
    found = Reluctant(*WITHOUT_SECRET)
    closures = Closures(found, TRUSTING)
    assert closures.holds("n1", Ref("Pod", "default", "web"))
    assert not closures.holds("n2", Ref("Pod", "default", "web"))
    assert (found.used, closures._closures, closures._users) == ([], {}, {})


async def test_a_change_that_concerns_every_node_is_looked_at_a_few_nodes_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [f"n{number}" for number in range(5)]
    volumes = [{"name": "v", "csi": {"driver": DRIVER}}]
    found = source(driver(), *(pod(name, node=name, volumes=volumes) for name in nodes))
    monkeypatch.setattr(module, "NODES_A_TURN", 2)
    closures = Closures(found, TRUSTING)
    heard: list[str] = []
    leaves = {name: closures.watch(name, partial(heard.append, name)) for name in nodes}
    shared = Ref("CSIDriver", "", DRIVER)
    before = {name: closures.stamps(name)[shared] for name in nodes}
    put(found, driver(attachRequired=False))
    assert len(heard) == 2
    assert not any(closures.stamps(name)[shared] == before[name] for name in nodes)  # who asks is told what is so now
    remove(found, shared)
    assert len(heard) == 2
    leaves.pop(next(name for name in nodes if name not in heard))()
    await settle()
    assert set(heard) == set(leaves)
    assert not any(shared in closures.stamps(name) for name in leaves)


def test_one_watcher_that_fails_keeps_no_other_from_hearing() -> None:
    objects = source(*WEB, pod("other", node="n2", claims=("x",)), claim("x", volume="y"))
    closures = Closures(objects, TRUSTING)
    told: list[str] = []

    def fail() -> None:
        raise RuntimeError("a stream with a fault")

    closures.watch("n1", fail)
    closures.watch("n1", lambda: told.append("n1"))
    put(objects, driver(podInfoOnMount=True))
    assert told == ["n1"]


def test_everybody_hears_when_the_source_becomes_ready() -> None:
    objects = Source()
    closures = Closures(objects, TRUSTING)
    told: list[bool] = []
    closures.watch("n1", lambda: told.append(closures.is_ready))
    objects.update(items(*WEB), ready=False)
    objects.update(items(*WEB), ready=True)
    objects.update(items(*WEB), ready=True)
    assert told == [False, True]


# -------------------- what a node may tell of --------------------

WEB_POD, DATA = Ref("Pod", "default", "web"), Ref("PersistentVolumeClaim", "default", "data")


def test_a_node_may_tell_of_what_it_has_or_had_and_of_nothing_else() -> None:
    objects = source(*WEB, pod("other", node="n2", claims=("theirs",)), claim("theirs"))
    closures = watched(objects, "n1", "n2")
    strange = Ref("PersistentVolumeClaim", "default", "theirs")
    assert closures.may_concern("n1", WEB_POD)
    assert closures.may_concern("n1", DATA)
    assert not closures.may_concern("n1", strange)
    assert not closures.may_concern("n1", Ref("Pod", "default", "never"))
    remove(objects, WEB_POD)
    assert closures.may_concern("n1", WEB_POD)
    assert closures.may_concern("n1", DATA)
    assert not closures.may_concern("n2", DATA)
    closures.forget("n1")
    assert not closures.may_concern("n1", DATA)


def test_a_node_may_tell_of_what_left_it_while_it_was_away() -> None:
    objects = source(*WEB)
    closures = Closures(objects, TRUSTING)
    closures.watch("n1", lambda: None)()
    remove(objects, WEB_POD)
    assert closures.may_concern("n1", WEB_POD)
    assert closures.may_concern("n1", DATA)


def test_a_node_may_tell_of_anything_until_the_source_is_ready() -> None:
    objects = Source()
    closures = watched(objects)
    assert closures.may_concern("n1", DATA)
    objects.update(items(node()), ready=True)
    assert not closures.may_concern("n1", DATA)


def test_of_the_objects_that_left_a_node_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PAST", 2)
    names = ["a", "b", "c"]
    objects = source(*(pod(name) for name in names))
    closures = watched(objects)
    for name in names:
        remove(objects, Ref("Pod", "default", name))
    assert [closures.may_concern("n1", Ref("Pod", "default", name)) for name in names] == [False, True, True]


def test_an_object_is_read_as_it_is_now() -> None:
    objects = source(*WEB)
    closures = Closures(objects, TRUSTING)
    ref = Ref("CSIDriver", "", "d.example")
    found = closures.read(ref)
    assert (found.stamp, found.read()["kind"]) == (closures.stamps("n1")[ref], "CSIDriver")
    remove(objects, ref)
    assert closures.read(ref) is None
    assert not closures.holds("n1", ref)


# -------------------- any changes in any order --------------------

NODES, NAMES = ("n1", "n2"), ("a", "b", "c")


@st.composite
def changes(draw: st.DrawFn) -> tuple[Ref, Any]:
    """One object of a small world in any state, or gone."""
    name, other = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
    on, flag = draw(st.sampled_from(NODES)), draw(st.booleans())
    claims = tuple(sorted(draw(st.sets(st.sampled_from(NAMES)))))
    secrets = {"nodeStageSecretRef": f"default/{other}"}
    kinds = (
        pod(name, node=on, claims=claims),
        claim(name, volume=other),
        volume(name, claim=f"default/{other}", driver=draw(st.sampled_from(NAMES)), secrets=secrets),
        attachment(name, volume=other, node=on),
        secret(name, key=other),
        driver(name, podInfoOnMount=flag),
        node(on, zone=other),
    )
    made = draw(st.sampled_from(kinds))
    ((ref, entry),) = entries(made).items()
    return ref, entry.item if draw(st.integers(0, 3)) else None


@given(st.lists(st.lists(changes(), min_size=1, max_size=4).map(dict), max_size=25), st.data())
def test_whatever_changes_a_closure_is_what_it_would_be_if_made_anew(
    batches: list[dict[Ref, Any]], data: st.DataObject
) -> None:
    objects = source()
    closures = Closures(objects, TRUSTING)
    seen = {name: dict(closures.stamps(name)) for name in NODES}
    told: set[str] = set()
    for name in NODES:
        closures.watch(name, partial(told.add, name))
    for batch in batches:
        told.clear()
        objects.update(batch)
        for name in NODES:
            now = list(closures.stamps(name).items())
            assert now == list(Closures(objects, TRUSTING).stamps(name).items())
            assert name in told or now == list(seen[name].items()), "nobody was told"
            seen[name] = dict(now)


# -------------------- size --------------------


class CountingSource(Source):
    """A source that counts how often it is asked for a stamp."""

    asked = 0

    def stamp(self, ref: Ref) -> Any:
        self.asked += 1
        return super().stamp(ref)


def test_another_state_of_one_object_costs_no_look_at_all_the_others() -> None:
    counting = CountingSource()
    counting.update(items(*WEB, *(pod(f"p{number}") for number in range(500))), ready=True)
    closures = watched(counting)
    before = closures.stamps("n1")
    counting.asked = 0

    put(counting, pod("p7", securityContext={"fsGroup": 7}), secret("stage", namespace="vault", key="y"))

    after = closures.stamps("n1")
    assert counting.asked < 10
    assert list(after) == list(before)
    assert {ref for ref in after if after[ref] != before[ref]} == {
        Ref("Pod", "default", "p7"),
        Ref("Secret", "vault", "stage"),
    }


def test_an_attachment_that_changes_or_goes_to_another_node_is_seen() -> None:
    there = source(*WEB)
    closures = watched(there)
    before = closures.stamps("n1")
    put(there, attachment("a-v", volume="v", attached=False))
    after = closures.stamps("n1")
    assert {ref for ref in after if after[ref] != before[ref]} == {Ref("VolumeAttachment", "", "a-v")}
    put(there, attachment("a-v", volume="v", node="n2"))
    assert "VolumeAttachment a-v" not in held(closures, "n1")


class Forgetful(Reluctant):
    """One that has only what is asked for: what is given back is gone at once, and it says so."""

    def release(self, ref: Ref) -> None:
        super().release(ref)
        self.update({ref: None})


def with_a_secret(name: str, which: str, *, on: str = "n1") -> Any:
    """A pod with a volume in it."""
    csi = {"driver": DRIVER, "nodePublishSecretRef": {"name": which}}
    return pod(name, node=on, volumes=[{"name": "v", "csi": csi}])


def with_own_secrets(*nodes: str) -> list[Any]:
    """On each node a pod with a volume in it whose Secret no other one needs."""
    made: list[Any] = [driver(volumeLifecycleModes=["Ephemeral"])]
    for name in nodes:
        made += [with_a_secret(name, f"of-{name}", on=name), secret(f"of-{name}", key="x")]
    return made


async def test_what_nodes_give_back_together_is_heard_of_a_few_nodes_in_a_turn_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [f"n{number}" for number in range(5)]
    found = Forgetful(*with_own_secrets(*nodes))
    monkeypatch.setattr(module, "NODES_A_TURN", 2)
    closures, heard = Closures(found, TRUSTING), []
    for name in nodes:
        closures.watch(name, partial(heard.append, name))
    remove(found, *(Ref("Pod", "default", name) for name in nodes))
    assert len(heard) == 2
    await settle()
    assert set(heard) == set(nodes)
    assert not any("Secret" in it for name in nodes for it in held(closures, name))


def test_a_pod_that_cannot_be_looked_at_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = source(*WEB)
    closures, told = Closures(objects, TRUSTING), list[str]()
    closures.watch("n1", lambda: told.append("n1"))
    before = held(closures, "n1")
    with monkeypatch.context() as patched:
        patched.setattr("cloud.sync.closures._Closure._walk", None)
        put(objects, driver(podInfoOnMount=True))
        assert told == []
        with pytest.raises(TypeError):
            held(closures, "n1")
    assert held(closures, "n1") == before


async def test_a_node_whose_objects_cannot_be_looked_at_keeps_no_other_from_hearing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = ["n1", "n2", "n3"]
    found = Reluctant(*with_own_secrets(*nodes))
    monkeypatch.setattr(module, "NODES_A_TURN", 1)
    closures, heard = Closures(found, TRUSTING), []
    for name in nodes:
        closures.watch(name, partial(heard.append, name))

    def fail(ref: Ref) -> None:
        if ref.name == "of-n2":
            raise RuntimeError("a source with a fault")

    monkeypatch.setattr(found, "release", fail)
    remove(found, *(Ref("Pod", "default", name) for name in nodes))
    await settle()
    assert sorted(heard) == ["n1", "n3"]
    heard.clear()
    put(found, node("n3", zone="a"))
    assert heard == ["n3"]


def test_what_a_look_that_failed_half_way_found_is_asked_for_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Reluctant(driver(volumeLifecycleModes=["Ephemeral"]))
    closures, walked = watched(found), list[Ref]()

    def fail(closure: Any, ref: Ref) -> Any:
        if walked:
            raise RuntimeError("an object with a fault")
        walked.append(ref)
        return walk(closure, ref)

    walk = module._Closure._walk
    with monkeypatch.context() as patched:
        patched.setattr(module._Closure, "_walk", fail)
        put(found, with_a_secret("p1", "s1"), with_a_secret("p2", "s2"))
    put(found, node(zone="a"))
    assert {"Pod default/p1", "Pod default/p2"} <= set(held(closures, "n1"))
    assert sorted(found.used) == ["use s1", "use s2"]


def test_what_a_source_failed_to_take_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Reluctant(driver(volumeLifecycleModes=["Ephemeral"]))
    closures = watched(found)
    with monkeypatch.context() as patched:
        patched.setattr(found, "use", None)
        put(found, with_a_secret("p1", "s1"))
    assert found.used == []
    put(found, node(zone="a"))
    assert found.used == ["use s1"]
    remove(found, Ref("Pod", "default", "p1"))
    assert found.used == ["use s1", "release s1"]
    assert held(closures, "n1") == ["Node n1"]


def test_what_a_source_has_on_demand_is_asked_for_while_a_closure_needs_it() -> None:
    found = Reluctant(*WITHOUT_SECRET)
    closures = Closures(found, TRUSTING)
    unwatch = [closures.watch(name, lambda: None) for name in ("n1", "n2")]
    assert found.used == ["use stage"]
    put(found, pod("more", claims=("data",)))
    assert found.used == ["use stage"]
    remove(found, Ref("Pod", "default", "more"))
    unwatch[1]()
    assert found.used == ["use stage"]
    unwatch[0]()
    assert found.used == ["use stage", "release stage"]


def test_a_node_may_tell_of_anything_until_all_that_it_needs_was_asked_for() -> None:
    found, ref = Reluctant(*WITHOUT_SECRET), Ref("Secret", "vault", "stage")
    closures, told = Closures(found, TRUSTING), []
    strange = Ref("Pod", "default", "strange")
    closures.watch("n1", lambda: told.append(closures.may_concern("n1", strange)))
    assert closures.may_concern("n1", strange)
    assert not closures.may_concern("n2", strange)
    found.asked.add(ref)
    found.tell(frozenset({ref}))  # there is none
    assert told == [False]
    assert str(ref) not in held(closures, "n1")


def test_unknown_is_what_a_closure_needs_and_the_source_cannot_say() -> None:
    found, ref = Reluctant(*WITHOUT_SECRET), Ref("Secret", "vault", "stage")
    closures = watched(found)
    assert closures.is_unknown("n1", ref)
    assert not closures.is_unknown("n2", ref)  # it is certain that this node needs none
    assert not closures.is_unknown("n1", Ref("Secret", "vault", "of-a-pod-that-is-gone"))
    found.asked.add(ref)
    assert not closures.is_unknown("n1", ref)


# ---- tokens ----------------------------------------------------------------------------------------------------------

VAULT: dict[str, Any] = {"tokenRequests": [{"audience": "vault", "expirationSeconds": 600}]}


def uid_of(objects: Source, name: str) -> str:
    stamp = objects.stamp(Ref("Pod", "default", name))
    return stamp.uid


def asked(objects: Reluctant) -> list[str]:
    """What was asked for, and given back, since the last time."""
    used, objects.used = objects.used, []
    return used


def test_a_pod_has_tokens_while_a_driver_of_its_volumes_asks_for_them() -> None:
    found = Reluctant(pod("web", claims=("data",)), *WEB[1:3], node())
    watched(found)
    uid = uid_of(found, "web")
    asked(found)
    put(found, driver(**VAULT))
    assert asked(found) == ["use Pod default/web default {'vault': 600}"]
    put(found, driver(tokenRequests=[*VAULT["tokenRequests"], {"audience": ""}]))
    assert asked(found) == ["use Pod default/web default {'': 3600, 'vault': 600}"]
    put(found, driver(podInfoOnMount=True))
    assert asked(found) == [f"release {uid}"]


def test_tokens_are_told_before_their_pod_and_go_with_it() -> None:
    found = Reluctant(pod("web", claims=("data",)), *WEB[1:3], driver(**VAULT))
    closures = watched(found)
    uid = uid_of(found, "web")
    made = {"apiVersion": "csi-bridge.io/v1", "kind": "ServiceAccountToken", "metadata": {"name": uid}, "tokens": {}}
    assert not any("ServiceAccountToken" in it for it in held(closures, "n1"))
    put(found, made)
    assert held(closures, "n1")[-2:] == [f"ServiceAccountToken default/{uid}", "Pod default/web"]
    asked(found)
    remove(found, Ref("Pod", "default", "web"))
    assert f"release {uid}" in asked(found)
    assert held(closures, "n1") == []


def test_a_pod_that_is_over_and_a_block_volume_get_no_tokens() -> None:
    block = volume("v", claim="default/data", secrets=STAGE, volumeMode="Block")
    found = Reluctant(pod("web", claims=("data",)), claim("data", volume="v"), block, driver(**VAULT))
    Closures(found, TRUSTING).watch("n1", lambda: None)
    assert [it for it in asked(found) if "default/web" in it] == []
    over = {**pod("web", claims=("data",)), "status": {"phase": "Succeeded"}}
    found = Reluctant(over, *WEB[1:3], driver(**VAULT))
    Closures(found, TRUSTING).watch("n1", lambda: None)
    assert [it for it in asked(found) if "default/web" in it] == []


def test_of_two_drivers_that_ask_for_one_audience_the_shorter_life_counts() -> None:
    inline = {"name": "i", "csi": {"driver": "e.example"}}
    web = pod("web", claims=("data",), serviceAccountName="robot")
    web["spec"]["volumes"].append(inline)
    longer = driver("e.example", tokenRequests=[{"audience": "vault"}])
    found = Reluctant(web, *WEB[1:3], driver(**VAULT), longer)
    Closures(found, TRUSTING).watch("n1", lambda: None)
    assert "use Pod default/web robot {'vault': 600}" in asked(found)


def test_what_a_node_may_not_have_is_left_out_and_narrower_rights_count_from_the_next_watch_on() -> None:
    named: list[str] = []
    inline = {"name": "i", "csi": {"driver": "d.example", "nodePublishSecretRef": {"name": "stage"}}}
    found = source(*WEB, pod("inline", volumes=[inline]), secret("stage", key="x"))
    closures = Closures(found, NodeRights(SaidNodes(named=named)))
    closures.watch("n1", lambda: None)
    assert {"Secret default/stage", "PersistentVolume v"} <= set(held(closures, "n1"))
    assert closures.problems() == []
    named.append("other.example")
    closures.watch("n1", lambda: None)
    assert held(closures, "n1") == [
        "Node n1", "Pod default/inline", "PersistentVolumeClaim default/data", "Pod default/web"
    ]  # fmt: skip
    why = "the node's certificate is for other.example, and not for d.example"
    assert closures.problems() == [
        f"node n1 gets nothing that {what} needs: {why}" for what in ("Pod default/inline", "PersistentVolume v")
    ]
