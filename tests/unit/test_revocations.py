"""The revocation list: which certificates it names, a list that changes, and lists that cannot be used."""

from __future__ import annotations

import datetime as dt
import errno
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from cloud.trust.revocations import Revocations
from common.errors import SettingsError
from tests.kit.certificates import Authority, Pem, bundle

HOUR_S = 3600.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def is_revoked(found: Revocations, pem: Pem) -> bool:
    return found.is_revoked(pem.serial, pem.certificate.issuer.public_bytes())


def test_a_listed_certificate_of_that_ca_is_revoked_and_no_other(authority: Authority, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "other").mkdir()
    other = Authority(elsewhere, name="another CA")
    one, two = authority.edge("n1"), authority.edge("n2")
    found = Revocations(authority.revoke([one.serial]), authority.path)
    assert (is_revoked(found, one), is_revoked(found, two)) == (True, False)
    assert not found.is_revoked(one.serial, other.edge("n1").certificate.issuer.public_bytes())
    assert found.is_revoked(one.serial, b"")


def test_without_a_file_nothing_is_revoked_and_nothing_changes() -> None:
    found = Revocations(None, None)
    assert (found.is_revoked(1, b""), found.has_changed(), list(found.problems())) == (False, False, [])


def test_one_file_has_the_lists_of_several_cas(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, name="another CA")
    one, two = authority.edge("n1"), other.edge("n2")
    lists = tmp_path / "all.crl"
    lists.write_bytes(authority.revoke([one.serial]).read_bytes() + other.revoke([two.serial], file="b").read_bytes())
    found = Revocations(lists, bundle(tmp_path / "both.pem", authority, other))
    assert (is_revoked(found, one), is_revoked(found, two)) == (True, True)


def test_a_changed_list_is_read_again(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = authority.edge("n1")
    found = Revocations(path := authority.revoke([]), authority.path)
    assert not found.has_changed()
    authority.revoke([one.serial, 5])
    assert found.has_changed()
    found.reload()
    assert f"the revocation list {path} changed; certificates that it newly revokes: 2" in caplog.messages
    assert (is_revoked(found, one), found.has_changed()) == (True, False)
    authority.revoke([])
    found.reload()
    assert not is_revoked(found, one)
    assert list(found.problems()) == []


def broken(authority: Authority, path: Path, how: str) -> bytes:
    if how == "missing":
        path.unlink()
        return b""
    if how == "of another CA with that name":
        return Authority(path.parent, name="csi-bridge test CA").revoke([1], file="forged").read_bytes()
    return {"empty": b"", "no list": authority.edge("n9").cert.read_bytes(), "cut": path.read_bytes()[:200]}[how]


@pytest.mark.parametrize("how", ["missing", "empty", "no list", "cut", "of another CA with that name"])
def test_a_list_that_cannot_be_used_leaves_the_last_good_one_in_force_and_is_a_problem(
    authority: Authority, tmp_path: Path, how: str
) -> None:
    one = authority.edge("n1")
    ca = tmp_path / "kept.pem"
    ca.write_bytes(authority.path.read_bytes())
    found = Revocations(path := authority.revoke([one.serial]), ca)
    good = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(broken(authority, path, how))
    assert found.has_changed()
    found.reload()
    assert is_revoked(found, one)
    (problem,) = found.problems()
    assert problem.startswith(f"the revocation list {path} cannot be used, so the last good one counts: ")
    path.write_bytes(good)
    found.reload()
    assert list(found.problems()) == []


def test_a_list_that_changed_while_no_descriptor_was_left_counts_once_it_can_be_read(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = authority.edge("n1")
    found = Revocations(authority.revoke([]), authority.path)
    authority.revoke([one.serial])
    with monkeypatch.context() as full:

        def no_descriptor(*_args: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        full.setattr(Path, "read_bytes", no_descriptor)
        for _ in range(3):
            assert found.has_changed()
            assert found.reload() is None
    assert len(caplog.messages) == 1
    assert found.has_changed()
    assert found.reload() == 1
    assert (is_revoked(found, one), list(found.problems())) == (True, [])


@pytest.mark.parametrize("how", ["missing", "empty", "no list", "cut"])
def test_a_hub_does_not_start_with_a_list_that_cannot_be_used(authority: Authority, how: str) -> None:
    path = authority.revoke([])
    content = broken(authority, path, how)
    if how != "missing":
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="--tls-crl="):
        Revocations(path, authority.path)


def test_a_list_past_its_time_still_counts_and_is_a_problem(authority: Authority) -> None:
    one = authority.edge("n1")
    now = [0.0]
    found = Revocations(authority.revoke([one.serial]), authority.path, now=lambda: now[0])
    assert list(found.problems()) == []
    now[0] = dt.datetime.now(dt.UTC).timestamp() + 2 * HOUR_S
    assert is_revoked(found, one)
    (problem,) = found.problems()
    assert "should have been replaced at" in problem


def with_extension(authority: Authority, extension: Any, path: Path) -> Path:
    """A list of the authority with a critical extension."""
    now = dt.datetime.now(dt.UTC)
    key: Any = load_pem_private_key(authority.key_path.read_bytes(), None)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.load_pem_x509_certificate(authority.path.read_bytes()).subject)
        .last_update(now)
        .next_update(now + dt.timedelta(hours=1))
        .add_extension(extension, critical=True)
    )
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


def distribution(*, indirect: bool) -> x509.IssuingDistributionPoint:
    return x509.IssuingDistributionPoint(
        full_name=None,
        relative_name=None,
        only_contains_user_certs=not indirect,
        only_contains_ca_certs=False,
        only_some_reasons=None,
        indirect_crl=indirect,
        only_contains_attribute_certs=False,
    )


@pytest.mark.parametrize("odd", [x509.DeltaCRLIndicator(1), distribution(indirect=True)], ids=["delta", "indirect"])
def test_a_list_that_is_no_whole_list_of_its_ca_is_refused(authority: Authority, tmp_path: Path, odd: Any) -> None:
    with pytest.raises(SettingsError, match="is no whole list of its CA"):
        Revocations(with_extension(authority, odd, tmp_path / "odd.crl"), authority.path)


def test_a_list_of_user_certificates_alone_counts(authority: Authority, tmp_path: Path) -> None:
    Revocations(with_extension(authority, distribution(indirect=False), tmp_path / "users.crl"), authority.path)
