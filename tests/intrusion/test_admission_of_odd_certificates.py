"""Certificates that the bridge's CA has signed, and that make their holder no node and no driver."""

import ssl
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from common.messages import Reason
from tests.kit.bridge import Hub
from tests.kit.certificates import CLIENT_AUTH, SERVER_AUTH, Authority
from tests.kit.intruder import gets_in, outcome
from tests.kit.stranger import hello


def issued(authority: Authority, name: str, *, role: str = "edge", **how: Any) -> ssl.SSLContext:
    subject = {"edge": ("system:node:", "system:nodes"), "driver": ("csi-bridge:driver:", "csi-bridge:drivers")}[role]
    how = {"common_name": subject[0] + name, "organization": subject[1], "purposes": [CLIENT_AUTH]} | how
    return authority.issue(file="odd", **how).client()


ODD_NAMES = ["../../etc", "n1/..", "N1", "n_1", "-n1", "n1-", "n1.", ".n1", "n 1", "n\N{LATIN SMALL LETTER DOTLESS I}"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_node_name_that_is_no_dns_subdomain_is_refused_whatever_the_certificate_and_without_tls_too(
    hub: Hub, insecure: Hub, authority: Authority, name: str
) -> None:
    assert outcome(hub, hello("edge", name), issued(authority, name)) == Reason.NAME
    assert outcome(insecure, hello("edge", name)) == Reason.NAME


@pytest.mark.parametrize("role", ["edge", "driver"])
@pytest.mark.parametrize("purposes", [None, [ExtendedKeyUsageOID.CODE_SIGNING], [SERVER_AUTH]])
def test_a_certificate_that_is_not_for_clients_is_refused(
    hub: Hub, authority: Authority, role: str, purposes: list[Any] | None
) -> None:
    assert not gets_in(hub, "x", issued(authority, "x", role=role, purposes=purposes), role=role)


@pytest.mark.parametrize(
    "names",
    [
        {"common_name": ["system:node:n1", "system:node:n2"]},
        {"uris": ["csi-bridge:node:n1", "csi-bridge:node:n2"]},
    ],
    ids=["common names", "URIs"],
)
def test_a_certificate_with_two_names_is_refused_for_either(
    hub: Hub, authority: Authority, names: dict[str, list[str]]
) -> None:
    tls = issued(authority, "n1", **names)
    assert [outcome(hub, hello("edge", name), tls) for name in ("n1", "n2")] == [Reason.CERTIFICATE] * 2


def test_the_uri_decides_and_not_the_common_name(hub: Hub, authority: Authority) -> None:
    tls = issued(authority, "n1", uris=["csi-bridge:node:n2"])
    assert outcome(hub, hello("edge", "n1"), tls) == Reason.CERTIFICATE
    assert outcome(hub, hello("edge", "n2"), tls) == "welcome"


def test_a_drivers_uri_makes_no_node_of_the_same_name(hub: Hub, authority: Authority) -> None:
    tls = issued(authority, "x", uris=["csi-bridge:driver:x"])
    assert outcome(hub, hello("edge", "x"), tls) == Reason.CERTIFICATE
