"""A certificate: checks its dates, its names and its CA's signature."""

from collections.abc import Sequence
from itertools import zip_longest

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cli.doctor.finding import Finding, ok, warning, wrong
from cloud.trust.admission import Role, admit
from common.errors import HandshakeRefused, timestamp
from common.net.certificate import is_signed, with_certificate
from common.net.certificate_ends import terms_in
from common.net.tls import TlsFiles, TlsIdentity
from common.observe.version import introduce


def check_certificate(files: TlsFiles, *, now: float, name: str = "", role: Role | None = None) -> Finding:
    # a peer's has the name and the role that the hub expects; the hub's is a server's, and has no role
    try:
        TlsIdentity(files, server=role is None)
        chain = x509.load_pem_x509_certificates(files.cert.read_bytes())
        authorities = x509.load_pem_x509_certificates(files.ca.read_bytes())
    except (OSError, ValueError) as error:
        return wrong(f"the TLS files cannot be used: {error}", "give the process files that fit together")
    valid = [each for each in authorities if _check_time(each, "", now) is None]
    return (
        _check_time(chain[0], str(files.cert), now)
        or _check_signature(chain, valid, files)
        or _check_names(chain[0], name, role)
        or _check_end(chain[0], files, now)
    )


def _check_time(certificate: x509.Certificate, file: str, now: float) -> Finding | None:
    begins = certificate.not_valid_before_utc.timestamp()
    ends = certificate.not_valid_after_utc.timestamp()
    if now >= ends:
        do = "replace the file; the process uses it from the next connection on, without a restart"
        return wrong(f"{file} has expired at {timestamp(ends)}", do)
    if now < begins:
        do = "compare this machine's clock with the clock of the machine that signed it"
        return wrong(f"{file} is not valid before {timestamp(begins)}", do)
    return None


def _check_end(certificate: x509.Certificate, files: TlsFiles, now: float) -> Finding:
    (term,) = terms_in(certificate.public_bytes(Encoding.PEM))
    text = f"{files.cert} is valid until {timestamp(term.ends_at)} for {certificate.subject.rfc4514_string()}"
    return warning(text, "renew it; the process uses the new file by itself") if term.ends_soon(now) else ok(text)


def _check_signature(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate], files: TlsFiles
) -> Finding | None:
    for below, above in zip_longest(chain, chain[1:]):
        if below in authorities or any(is_signed(below, by=it) for it in authorities):
            return None
        if above is None or not is_signed(below, by=above):
            break
    do = "make a new certificate, or give both sides the CA that signed this one; peers with this CA refuse it"
    return wrong(f"{files.cert} is not signed by a CA in {files.ca} that is valid now", do)


def _check_names(certificate: x509.Certificate, name: str, role: Role | None) -> Finding | None:
    if role is not None:
        shown = with_certificate("here", certificate.public_bytes(Encoding.DER))
        try:
            admit(introduce(role, name, instance="doctor"), shown, insecure=False)
        except HandshakeRefused as refusal:
            return wrong(f"the hub refuses the certificate in use here: {refusal.why}", "make one as the message says")
    elif not any(isinstance(one.value, x509.SubjectAlternativeName) for one in certificate.extensions):
        do = "make a new one with the hub's host name or address as subjectAltName"
        return wrong("the hub's certificate has no subjectAltName, so no agent accepts it", do)
    return None
