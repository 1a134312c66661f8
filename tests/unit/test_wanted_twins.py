"""What is wanted, when two pods have one uid: a manifest that was copied with it."""

from __future__ import annotations

from edge.manager.wanted import Wanted
from tests.kit.edge_volumes import FakeStore, pod


def test_of_pods_with_one_uid_the_last_counts_and_the_others_when_it_goes() -> None:
    store = FakeStore()
    wanted = Wanted(store, node="n1")
    refs = [store.put(pod(name, uid="u")) for name in ("a", "b", "c")]
    for ref in refs:
        wanted.update([ref], 0.0)
    assert _name(wanted) == "c"

    for ref, left in ((refs[2], "b"), (refs[0], "b"), (refs[1], "")):
        store.drop(ref)
        wanted.update([ref], 0.0)
        assert _name(wanted) == left

    assert wanted._twins == wanted._by_uid == {}


def _name(wanted: Wanted) -> str:
    found = wanted.of("u")
    return found.pod.name if found is not None else ""
