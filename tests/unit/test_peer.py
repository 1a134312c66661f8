"""A peer's certificate, as the hub reads it."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from common.net.certificate import with_certificate
from common.net.peer import CLIENT_AUTH, Peer
from tests.kit.certificates import CLIENT_AUTH as FOR_CLIENTS
from tests.kit.certificates import SERVER_AUTH, Authority


def read(certificate: x509.Certificate) -> Peer:
    return with_certificate("10.0.0.1:7", certificate.public_bytes(Encoding.DER))


def test_names_key_serial_and_end_are_those_of_the_certificate(tmp_path: Path) -> None:
    pem = Authority(tmp_path).issue(
        ["system:node:n1", "n2"], "system:nodes", file="x", uris=["csi-bridge:node:n1", "spiffe://x"]
    )
    found = read(pem.certificate)
    assert found.common_names == ("system:node:n1", "n2")
    assert found.organizations == ("system:nodes",)
    assert found.uris == ("csi-bridge:node:n1", "spiffe://x")
    assert set(found.purposes or ()) == {CLIENT_AUTH, SERVER_AUTH.dotted_string}
    assert (found.serial, found.key) == (pem.serial, pem.fingerprint)
    assert found.issuer == pem.certificate.issuer.public_bytes()
    assert found.not_after == pem.certificate.not_valid_after_utc.timestamp()
    assert (found.local, found.uid, found.host) == (False, None, "10.0.0.1")


def test_the_key_is_the_same_in_each_certificate_of_it_and_another_in_others(tmp_path: Path) -> None:
    authority, key = Authority(tmp_path), ec.generate_private_key(ec.SECP256R1())
    one, two = (authority.issue("a", "o", file=file, key=key).certificate for file in ("one", "two"))
    assert (read(one).key == read(two).key, read(one).serial == read(two).serial) == (True, False)
    assert read(authority.edge("n1").certificate).key != read(one).key


def test_a_certificate_without_extended_key_usage_has_no_purposes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert read(authority.issue("a", "o", file="x", purposes=None).certificate).purposes is None
    assert read(authority.issue("a", "o", file="x", purposes=[FOR_CLIENTS]).certificate).purposes == (CLIENT_AUTH,)


@pytest.mark.parametrize("part", [b"system:node:n1", b"csi-bridge:node:n1"])
def test_a_certificate_with_an_unreadable_subject_or_uri_counts_as_none(tmp_path: Path, part: bytes) -> None:
    found = Authority(tmp_path).issue("system:node:n1", "o", file="x", uris=["csi-bridge:node:n1"]).certificate
    der = found.public_bytes(Encoding.DER)
    assert with_certificate("10.0.0.1:7", der).uris == ("csi-bridge:node:n1",)
    assert with_certificate("10.0.0.1:7", der.replace(part, b"\xff" + part[1:])) == Peer("10.0.0.1:7", local=False)


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x82\xff\xff" + bytes(40)])
def test_a_certificate_that_cannot_be_read_gives_no_names(der: bytes) -> None:
    assert with_certificate("10.0.0.1:7", der) == Peer("10.0.0.1:7", local=False)


def test_the_host_of_an_ipv6_address_and_of_a_socket_is_its_own() -> None:
    assert Peer("::1:7", local=False).host == "::1"
    assert Peer("pid 7 uid 0", local=True).host == "pid 7 uid 0"
