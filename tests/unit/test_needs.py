"""The end of a run: how many tests were skipped, and what would bring them back."""

from __future__ import annotations

import pytest

from tests.kit import needs

INSTALLABLE = [needs.peer("etcd"), needs.GO, "needs setsid: apt-get install util-linux"]
NOT_INSTALLABLE = [needs.ROOT, needs.XFS, needs.PODMAN, needs.on_path("hostpathplugin"), "needs IPv6 (none)", ""]


def test_the_reasons_are_counted_the_most_frequent_first_and_all_peers_together() -> None:
    skipped = [needs.peer("etcd"), needs.ROOT, needs.peer("kubelet"), needs.on_path("hostpathplugin")]
    assert needs.summary(skipped) == [
        "    2 needs peers that are not built: make peers",
        "    1 needs hostpathplugin on PATH: install it by hand, no Go module proxy serves it",
        "    1 needs root: sudo make test",
    ]


@pytest.mark.parametrize("reason", INSTALLABLE)
def test_a_required_run_insists_on_what_can_be_installed(reason: str) -> None:
    assert needs.is_installable(reason)


@pytest.mark.parametrize("reason", NOT_INSTALLABLE)
def test_a_required_run_lists_what_it_cannot_insist_on(reason: str) -> None:
    assert not needs.is_installable(reason)
