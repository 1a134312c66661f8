"""Refusals without a name: one for each address, counted, and forgotten an hour after the last one."""

from cloud.calls.refusals import FORGOTTEN_AFTER_S, MOST, Refusals
from common.messages import Reason


def test_an_address_has_one_refusal_whatever_its_port() -> None:
    refusals = Refusals()
    refusals.add_nameless("10.0.0.7:51000", Reason.CERTIFICATE, "expired")
    refusals.add_nameless("10.0.0.8:51000", Reason.FULL, "too many")
    refusals.add_nameless("10.0.0.7:51001", Reason.CERTIFICATE, "unknown CA")
    second, first = refusals.all()
    assert (first.address, first.why, first.times) == ("10.0.0.7:51001", "unknown CA", 2)
    assert (second.address, second.times) == ("10.0.0.8:51000", 1)
    assert (first.role, first.name) == ("", "")


def test_processes_of_one_user_have_one_refusal_on_a_unix_socket() -> None:
    refusals = Refusals()
    refusals.add_nameless("pid 7 uid 12", Reason.PROTOCOL_ERROR, "not listed")
    refusals.add_nameless("pid 8 uid 12", Reason.PROTOCOL_ERROR, "not listed")
    (only,) = refusals.all()
    assert (only.address, only.times) == ("pid 8 uid 12", 2)


def test_an_hour_after_the_last_one_it_is_forgotten() -> None:
    now = 1_000_000.0
    refusals = Refusals(lambda: now)
    refusals.add_nameless("10.0.0.7:1", Reason.CERTIFICATE, "expired")
    now += FORGOTTEN_AFTER_S - 1
    assert len(refusals.all()) == 1
    now += 2
    assert refusals.all() == []


def test_invented_addresses_push_out_the_oldest_ones() -> None:
    refusals = Refusals()
    for number in range(MOST + 5):
        refusals.add_nameless(f"10.0.{number // 250}.{number % 250}:1", Reason.CERTIFICATE, "expired")
    found = refusals.all()
    assert len(found) == MOST
    assert found[0].address == "10.0.0.5:1"
