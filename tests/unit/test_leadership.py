"""When a hub may take the Lease of its cluster, and until when it may act by it (in peers/test_hub_lease.py: real)."""

from dataclasses import replace

import pytest

from cloud.leadership.leadership import Leadership, LeaseRecord, Sighting, read_lease, released, taken

DURATION_S = 15
HELD = LeaseRecord("other_1_there", 20, transitions=3, version="5")
MISSING = LeaseRecord()


def test_a_lease_is_free_when_it_has_not_changed_for_its_duration_by_the_waiting_hubs_clock() -> None:
    sighting = Sighting("host_2_here", DURATION_S)
    assert sighting.free_at(HELD, 100.0) == 120.0
    assert sighting.free_at(HELD, 119.0) == 120.0
    assert sighting.free_at(replace(HELD, version="6"), 119.0) == 120.0  # somebody has labelled it, as some do for ever
    renewed = replace(HELD, version="7", renewed="t")
    assert sighting.free_at(renewed, 119.0) == 139.0
    assert sighting.free_at(renewed, 139.0) == 139.0


@pytest.mark.parametrize(
    ("record", "wait_s"),
    [
        (LeaseRecord("", 1, version="5"), 0.0),
        (LeaseRecord("host_1_here", 20, version="5"), 0.0),
        (LeaseRecord("host_1_elsewhere", 20, version="5"), 20.0),
        (MISSING, 15.0),
        (LeaseRecord("", version="5"), 15.0),
        (LeaseRecord("", 15, version="5"), 15.0),
        (LeaseRecord("host_1_elsewhere", 2, version="5"), 15.0),
        (LeaseRecord("", 1, version="5", renewed="t2", acquired="t1"), 15.0),
    ],
    ids=[
        "released",
        "own state directory",
        "another one",
        "missing",
        "made by hand",
        "holder erased",
        "shortened",
        "shortened and holder erased",
    ],
)
def test_only_a_lease_whose_holder_has_surely_ended_is_free_at_once(record: LeaseRecord, wait_s: float) -> None:
    assert Sighting("host_2_here", DURATION_S).free_at(record, 100.0) == 100.0 + wait_s


def test_a_lease_that_was_deleted_under_its_holder_is_free_only_after_a_whole_duration_of_absence() -> None:
    sighting = Sighting("host_2_here", DURATION_S)
    sighting.free_at(HELD, 100.0)
    assert sighting.free_at(MISSING, 110.0) == 125.0
    assert sighting.free_at(replace(HELD, version="9"), 120.0) == 140.0  # the holder made it anew


@pytest.mark.parametrize(
    ("record", "wait_s"),
    [
        (LeaseRecord("", 1, version="9"), 0.0),
        (LeaseRecord("", 1, version="4"), 15.0),
        (LeaseRecord("host_1_here", 15, version="4"), 15.0),
        (LeaseRecord("host_2_here", 15, version="9"), 0.0),
    ],
    ids=["released", "restored from when it was released", "restored from when a former process here led", "own try"],
)
def test_a_hub_that_has_seen_another_one_lead_takes_no_older_state_of_the_lease_for_its_end(
    record: LeaseRecord, wait_s: float
) -> None:
    sighting = Sighting("host_2_here", DURATION_S)
    sighting.free_at(HELD, 100.0)
    assert sighting.free_at(record, 110.0) == 110.0 + wait_s
    assert sighting.free_at(record, 112.0) == 110.0 + wait_s


def test_a_leadership_ends_by_its_own_clock_and_is_not_renewed_after_that() -> None:
    now = 100.0
    leadership = Leadership(110.0, lambda: now)
    now = 109.0
    leadership.renew(118.0)
    leadership.renew(117.0)  # an earlier renewal, whose answer came late
    assert (leadership.holds(), leadership.left_s) == (True, 9.0)
    now = 118.0
    leadership.renew(128.0)
    assert not leadership.holds()
    now = 100.0
    leadership.end()
    assert not leadership.holds()


def test_a_lease_is_read_as_it_was_taken_and_released() -> None:
    lease = taken(HELD, "host_2_here", duration_s=DURATION_S, time="t")
    lease["metadata"] = {"resourceVersion": "6"}
    assert read_lease(lease) == LeaseRecord("host_2_here", DURATION_S, 4, "6", "t", "t")
    lease["spec"] |= released("t")["spec"]
    assert read_lease(lease) == LeaseRecord("", 1, 4, "6", "t", "t")
    edited = taken(replace(HELD, transitions=2**31 - 1), "host_2_here", duration_s=DURATION_S, time="t")
    assert edited["spec"]["leaseTransitions"] == 0  # the API server refuses a larger number
