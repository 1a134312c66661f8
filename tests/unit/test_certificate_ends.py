"""The ends of certificates: told in time, of this process and of its peers, in words and as metrics."""

import math
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509

from cloud.peer_ends import PeerTerm, ending, show_first_ends
from cloud.trust.admission import Role
from common.net.certificate_ends import CertificateEnds, Term, terms_in
from common.observe.exposition import registry_of
from common.observe.metrics import Metrics
from tests.kit.certificates import Authority, bundle

DAY = 86_400.0


@pytest.mark.parametrize(
    ("life", "left", "soon"),
    [
        (365 * DAY, 8 * DAY, False),
        (365 * DAY, 6 * DAY, True),
        (7 * DAY, 7 * DAY / 3, False),  # renewed then
        (7 * DAY, 1.5 * DAY, False),
        (7 * DAY, 1.3 * DAY, True),
        (10.0, 1.0, True),
        (10.0, -1.0, True),
    ],
)
def test_an_end_is_told_a_week_before_or_in_the_last_fifth_of_a_short_life(
    life: float, left: float, soon: bool
) -> None:
    assert Term(1_000.0, 1_000.0 + life).ends_soon(1_000.0 + life - left) is soon


def shown(metrics: Metrics, certificate: str) -> float | None:
    name = "csi_bridge_certificate_end_timestamp_seconds"
    return registry_of(metrics).get_sample_value(name, {"certificate": certificate})


def test_a_process_tells_the_end_of_its_certificate_until_the_file_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, metrics = Authority(tmp_path), Metrics()
    pem = authority.issue("a", "b", file="own", lifetime_s=100.0)
    (term,) = terms_in(pem.cert.read_bytes())
    now = term.ends_at - 90
    monkeypatch.setattr("common.net.certificate_ends.time.time", lambda: now)
    ends = CertificateEnds(pem.cert, pem.ca, metrics)
    assert shown(metrics, "own") == term.ends_at
    (ca,) = terms_in(pem.ca.read_bytes())
    assert shown(metrics, "ca") == ca.ends_at
    assert ends.problems() == []
    now = term.ends_at - 1
    (sentence,) = ends.problems()
    assert sentence.startswith(f"the certificate in {pem.cert} ends at 20")
    assert sentence.endswith("Z; renew the file, and no restart is needed")
    now = term.ends_at
    assert " has ended at " in ends.problems()[0]
    now = term.ends_at - 1
    authority.issue("a", "b", file="own", lifetime_s=1_000.0)
    assert ends.problems() == []


def test_of_several_authorities_the_first_that_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Authority(tmp_path, name="old", lifetime_s=50.0), Authority(tmp_path, name="new")
    ca = bundle(tmp_path / "ca.pem", new, old)
    (term,) = terms_in(old.path.read_bytes())
    now, metrics = term.ends_at - 1, Metrics()
    pem = new.hub()
    monkeypatch.setattr("common.net.certificate_ends.time.time", lambda: now)
    (sentence,) = CertificateEnds(pem.cert, ca, metrics).problems()
    assert sentence.startswith(f"a CA certificate in {ca} ends at ")
    assert shown(metrics, "ca") == term.ends_at


def test_a_hub_cannot_hold_up_a_node_with_a_file_full_of_beginnings(tmp_path: Path) -> None:
    """The cryptography library takes such a file as the one certificate, so the agent has it on its disk."""
    pem = Authority(tmp_path).path.read_bytes()
    full = pem + f"{ssl.PEM_HEADER}\n".encode() * 4_000
    began_s = time.process_time()
    assert terms_in(full) == terms_in(pem)
    assert time.process_time() - began_s < 1


def test_a_file_with_its_key_is_read_and_one_that_cannot_be_is_left_to_tls(tmp_path: Path) -> None:
    pem, metrics = Authority(tmp_path).hub(), Metrics()
    both = tmp_path / "both.pem"
    both.write_bytes(pem.key.read_bytes() + pem.cert.read_bytes())
    CertificateEnds(both, None, metrics)
    assert shown(metrics, "own") == terms_in(pem.cert.read_bytes())[0].ends_at
    other = Metrics()
    ends = CertificateEnds(tmp_path / "none.pem", pem.key, other)
    assert ends.problems() == []
    assert math.isnan(shown(other, "own") or 0)
    assert math.isnan(shown(other, "ca") or 0)


def test_dates_are_those_that_the_library_reads_also_far_away_ones_and_damage_is_an_error(tmp_path: Path) -> None:
    for years in (1, 40, 400):  # from 2050 on, a date has another form
        pem = Authority(tmp_path, lifetime_s=years * 366 * DAY).path.read_bytes()
        found, (term,) = x509.load_pem_x509_certificate(pem), terms_in(pem)
        assert term.begins_at == found.not_valid_before_utc.timestamp()
        assert term.ends_at == found.not_valid_after_utc.timestamp()
        der = ssl.PEM_cert_to_DER_cert(pem.decode())
        for length in range(len(der)):
            with pytest.raises(ValueError, match=r"\w"):
                terms_in(ssl.DER_cert_to_PEM_cert(der[:length]).encode())


def test_a_process_without_tls_shows_no_end() -> None:
    metrics = Metrics()
    assert CertificateEnds(None, None, metrics).problems() == []
    assert shown(metrics, "own") is None


def test_connected_peers_whose_certificates_end_soon_are_named_by_role() -> None:
    terms = [PeerTerm(Role.EDGE, f"n{number}", Term(0.0, 100.0 + number)) for number in range(5)]
    terms += [PeerTerm(Role.EDGE, "other", Term(0.0, 10_000.0)), PeerTerm(Role.DRIVER, "d.example", Term(0.0, 90.0))]
    assert ending(terms, 50.0) == []
    edge, driver = ending(terms, 89.0)
    assert edge == (
        "certificates of connected peers (edge) end soon: n0 at 1970-01-01T00:01:40Z, n1 at 1970-01-01T00:01:41Z, n2 "
        "at 1970-01-01T00:01:42Z and 2 more; a joined node renews by itself: read in its agent's log why it does not; "
        "give any other one a new file"
    )
    assert driver == (
        "certificates of connected peers (driver) end soon: d.example at 1970-01-01T00:01:30Z; give it a new file"
    )


def test_the_first_end_of_each_role_is_a_metric() -> None:
    metrics, terms = Metrics(), list[PeerTerm]()
    show_first_ends(metrics, lambda: terms)
    assert math.isnan(shown(metrics, "edge") or 0)
    terms += [PeerTerm(Role.EDGE, "n1", Term(0.0, 7.0)), PeerTerm(Role.EDGE, "n2", Term(0.0, 5.0))]
    assert shown(metrics, "edge") == 5.0
    assert math.isnan(shown(metrics, "driver") or 0)
