"""A certificate: checks its dates, its names, its key and its CA's signature."""

import datetime as dt
import stat
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from cli.doctor.finding import Finding, Level, ok, warning, wrong
from cloud.admission import Role, admit
from common.certificate_ends import term_of
from common.errors import HandshakeRefused, timestamp
from common.peer import with_certificate
from common.tls import TlsFiles, TlsIdentity
from common.version import introduce

_LONGEST_CHAIN = 8


def check_certificate(
    files: TlsFiles, *, server: bool, now: float, name: str = "", role: Role | None = None
) -> Finding:
    """Whether a process can use its certificate.

    Args:
        files: its TLS files.
        server: whether it is the hub's.
        now: seconds since the epoch.
        name: the node's or driver's name, which the certificate must have.
        role: the peer's role; None for a hub.
    """
    try:
        TlsIdentity(files, server=server)
        chain = x509.load_pem_x509_certificates(files.cert.read_bytes())
        authorities = x509.load_pem_x509_certificates(files.ca.read_bytes())
        mode = stat.S_IMODE(files.key.stat().st_mode)
    except (OSError, ValueError) as error:
        return wrong(f"the TLS files cannot be used: {error}", "give the process files that fit together")
    return (
        _check_time(chain[0], str(files.cert), now)
        or _check_authorities(chain, authorities, files, now)
        or _check_names(chain[0], name, role)
        or _check_key(files, mode)
        or ok(
            f"{files.cert} is valid until {timestamp(chain[0].not_valid_after_utc.timestamp())} for {_said(chain[0])}"
        )
    )


def is_refused(files: TlsFiles, *, now: float) -> bool:
    """Whether a peer with this CA refuses the certificate: by its dates, or because the CA has not signed it.

    False for files that cannot be read, because their process does not use them.
    """
    try:
        chain = x509.load_pem_x509_certificates(files.cert.read_bytes())
        authorities = x509.load_pem_x509_certificates(files.ca.read_bytes())
    except (OSError, ValueError):
        return False
    found = (_check_time(chain[0], "", now), _check_authorities(chain, authorities, files, now))
    return any(it is not None and it.level is Level.WRONG for it in found)


def _check_time(certificate: x509.Certificate, file: str, now: float) -> Finding | None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    at = dt.datetime.fromtimestamp(now, dt.UTC)
    if at >= end:
        do = "replace the file; the process uses it from the next connection on, without a restart"
        return wrong(f"{file} has expired at {timestamp(end.timestamp())}", do)
    if at < begin:
        do = "compare this machine's clock with the clock of the machine that signed it"
        return wrong(f"{file} is not valid before {timestamp(begin.timestamp())}", do)
    if term_of(certificate).ends_soon(now):
        return warning(
            f"{file} expires at {timestamp(end.timestamp())}", "renew it; the process uses the new file by itself"
        )
    return None


def _check_authorities(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate], files: TlsFiles, now: float
) -> Finding | None:
    """Check that a CA that is valid now has signed the chain, and whether any CA of the file ends soon."""
    found = [_check_time(each, f"a CA in {files.ca}", now) for each in authorities]
    faults = [it for it in found if it is not None and it.level is Level.WRONG]
    valid = [each for each, it in zip(authorities, found, strict=True) if it is None or it.level is not Level.WRONG]
    unsigned = _check_signature(chain, valid, files)
    if unsigned is not None:
        return next(iter(faults), unsigned)
    if faults:
        return warning(faults[0].what, f"remove it from {files.ca}, or renew it")
    return next((it for it in found if it is not None), None)


def _check_signature(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate], files: TlsFiles
) -> Finding | None:
    found = chain[0]
    for _ in range(_LONGEST_CHAIN):
        if found in authorities or any(_signed(found, by) for by in authorities):
            return None
        above = next((by for by in chain[1:] if by != found and _signed(found, by)), None)
        if above is None:
            break
        found = above
    do = "make a new certificate, or give both sides the CA that signed this one; peers with this CA refuse it"
    return wrong(f"{files.cert} is not signed by a CA in {files.ca}", do)


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _check_names(certificate: x509.Certificate, name: str, role: Role | None) -> Finding | None:
    if role is None:
        try:
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            do = "make a new one with the hub's host name or address as subjectAltName"
            return wrong("the hub's certificate has no subjectAltName, so no agent accepts it", do)
        return None
    shown = with_certificate("here", certificate.public_bytes(Encoding.DER))
    try:
        admit(introduce(role, name, instance="doctor"), shown, insecure=False)
    except HandshakeRefused as refusal:
        return wrong(f"the hub refuses the certificate in use here: {refusal.why}", "make one as the message says")
    return None


def _check_key(files: TlsFiles, mode: int) -> Finding | None:
    if mode & stat.S_IRWXO:
        return warning(
            f"every user of this host may read the key {files.key} (mode {mode:04o})", f"chmod o-rwx {files.key}"
        )
    return None


def _said(certificate: x509.Certificate) -> str:
    """The certificate's subject, with the host names and addresses of a server's certificate."""
    subject = f"CN={','.join(_values(certificate, NameOID.COMMON_NAME))}"
    if organizations := _values(certificate, NameOID.ORGANIZATION_NAME):
        subject += f" O={','.join(organizations)}"
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return subject
    names = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    return f"{subject} ({', '.join(names)})" if names else subject


def _values(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)]
