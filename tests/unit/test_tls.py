"""A process's certificate: files that cannot be used are named, and a change on disk is taken up or survived."""

import errno
import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from common.net.tls import TlsFiles, TlsIdentity
from tests.kit.certificates import Authority, Pem, handshake


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    """A hub's files, as copies that a test may spoil."""
    return copied(authority.hub(), tmp_path)


def copied(pem: Pem, directory: Path) -> TlsFiles:
    paths = [directory / name for name in ("ca.pem", "tls.crt", "tls.key")]
    for source, target in zip((pem.ca, pem.cert, pem.key), paths, strict=True):
        shutil.copy(source, target)
    return TlsFiles(*paths)


def renew(files: TlsFiles, pem: Pem) -> None:
    """Put other files in their places, as a certificate manager does: new files, renamed."""
    for source, target in ((pem.cert, files.cert), (pem.key, files.key)):
        new = target.with_suffix(".tmp")
        shutil.copy(source, new)
        new.replace(target)


@pytest.mark.parametrize("server", [True, False])
def test_a_context_demands_tls_1_3_and_the_peers_certificate(files: TlsFiles, server: bool) -> None:
    context = TlsIdentity(files, server=server).context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is not server


@pytest.mark.parametrize("strict", [True, False])
def test_certificates_with_and_without_key_identifiers_are_trusted_on_every_python(
    tmp_path: Path, strict: bool
) -> None:
    authority = Authority(tmp_path, strict=strict)
    (tmp_path / "hub").mkdir()
    (tmp_path / "n1").mkdir()
    hub = TlsIdentity(copied(authority.hub(), tmp_path / "hub"), server=True)
    agent = TlsIdentity(copied(authority.edge("n1"), tmp_path / "n1"), server=False)
    _, here = handshake(agent.context(), hub.context())
    assert here.getpeercert()


def test_a_server_sends_the_cas_above_its_certificate_and_a_chain_in_the_file_stays(tmp_path: Path) -> None:
    root = Authority(tmp_path, name="root")
    middle = Authority(tmp_path, name="middle", parent=root)
    stranger = Authority(tmp_path, name="stranger")
    hub, agent = copied(middle.hub(), tmp_path), middle.edge("n1")
    hub.ca.write_bytes(b"".join(each.path.read_bytes() for each in (stranger, root, middle)))
    leaf, above, top = (ders(path) for path in (hub.cert, middle.path, root.path))
    assert sent_by(hub, TlsFiles(hub.ca, agent.cert, agent.key)) == leaf + above + top
    hub.cert.write_bytes(hub.cert.read_bytes() + middle.path.read_bytes())
    assert sent_by(hub, TlsFiles(hub.ca, agent.cert, agent.key)) == leaf + above


def ders(path: Path) -> list[bytes]:
    return [it.public_bytes(serialization.Encoding.DER) for it in x509.load_pem_x509_certificates(path.read_bytes())]


def sent_by(hub: TlsFiles, agent: TlsFiles) -> list[bytes]:
    """The certificates that a hub sends to an agent."""
    there, _ = handshake(TlsIdentity(agent, server=False).context(), TlsIdentity(hub, server=True).context())
    inner: Any = there._sslobj  # type: ignore[attr-defined]  # public from Python 3.13 on
    return [ssl.PEM_cert_to_DER_cert(it.public_bytes()) for it in inner.get_unverified_chain()]


def test_as_long_as_no_file_changes_the_context_stays(files: TlsFiles) -> None:
    identity = TlsIdentity(files, server=True)
    assert identity.context() is identity.context()


@pytest.mark.parametrize("content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
@pytest.mark.parametrize("which", ["ca", "cert", "key"])
def test_a_file_that_is_no_pem_is_named(files: TlsFiles, which: str, content: bytes) -> None:
    path: Path = getattr(files, which)
    path.write_bytes(content)
    with pytest.raises(ssl.SSLError, match=f"{path}.*it is not a PEM file of that kind"):
        TlsIdentity(files, server=True)


def test_a_key_of_another_certificate_is_told_as_such(files: TlsFiles, authority: Authority) -> None:
    shutil.copy(authority.edge("n1").key, files.key)
    with pytest.raises(ssl.SSLError, match=f"{files.key}: the key is not that certificate's"):
        TlsIdentity(files, server=True)


def test_a_key_with_a_password_is_an_error_and_no_question_on_the_terminal(files: TlsFiles) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(OSError, match=f"{files.key}: the key is encrypted; it must have no password"):
        TlsIdentity(files, server=True)


@pytest.mark.parametrize("which", ["ca", "cert", "key"])
@pytest.mark.parametrize("content", ["half a file", None], ids=["broken", "gone"])
def test_broken_new_files_keep_the_old_ones_in_use_and_are_blamed_once(
    files: TlsFiles, which: str, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    identity = TlsIdentity(files, server=True)
    old = identity.context()
    path: Path = getattr(files, which)
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert [identity.context() for _ in range(3)] == [old] * 3
    (said,) = caplog.messages
    assert said.startswith("the TLS files changed and cannot be used, so the old ones stay in use: ")
    assert str(path) in said


def test_a_renewal_seen_in_its_middle_is_completed(files: TlsFiles, authority: Authority) -> None:
    identity = TlsIdentity(files, server=True)
    old = identity.context()
    renewed = authority.issue("csi-bridge:hub", "csi-bridge:hubs", file="halves")
    shutil.copy(renewed.cert, files.cert)
    assert identity.context() is old
    shutil.copy(renewed.key, files.key)
    os.utime(files.key, ns=(1, 1))  # a copy within the same tick of the clock still differs
    assert identity.context() is not old


def test_files_that_changed_while_no_descriptor_was_left_are_read_once_there_is_one(
    files: TlsFiles, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    identity = TlsIdentity(files, server=True)
    old = identity.context()
    renew(files, authority.issue("csi-bridge:hub", "csi-bridge:hubs", file="later"))
    with monkeypatch.context() as full:

        def no_descriptor(*_args: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        full.setattr(Path, "open", no_descriptor)
        assert [identity.context() for _ in range(3)] == [old] * 3
    assert len(caplog.messages) == 1
    assert identity.context() is not old
