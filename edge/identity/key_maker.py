"""A key maker: makes a node's keys and certificate requests, and checks the certificates that the hub gives for them.

Only `edge join` and the process of `edge.identity.keys` import it.
"""

import sys

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.net.certificate import key_fingerprint, with_certificate
from common.net.enrolment import NODE_URI, renewal_text
from edge.identity.keys import CODEC, Asked, AskForRequest, Check, Checked, Wrong

_PEM = serialization.Encoding.PEM
_DER = serialization.Encoding.DER


def answer(question: AskForRequest | Check) -> Asked | Checked:
    """Raises ValueError if the certificate does not fit, or a file is damaged."""
    return _ask(question) if isinstance(question, AskForRequest) else _check(question)


def _ask(question: AskForRequest) -> Asked:
    following = question.following
    try:
        request = x509.load_pem_x509_csr(following)
        if question.present and _public(_key(following)) == _public(_key(question.present)):
            raise ValueError("a key is not renewed with itself")  # noqa: TRY301  # as if there were none
    except ValueError:  # there is none, or it is damaged
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        following = _private(key) + request.public_bytes(_PEM)
    asked = request.public_bytes(_DER)
    if not question.signs:
        return Asked(following, asked, b"", b"")
    certificate = x509.load_pem_x509_certificate(question.present).public_bytes(_DER)
    signature = _key(question.present).sign(renewal_text(certificate, asked), ec.ECDSA(hashes.SHA256()))
    return Asked(following, asked, certificate, signature)


def _check(question: Check) -> Checked:
    key = _key(question.following)
    chain, _authorities = map(x509.load_pem_x509_certificates, (question.chain, question.ca))
    told = with_certificate("", chain[0].public_bytes(_DER))
    if told.key != _public(key):
        raise ValueError("the hub's certificate is for another key, or cannot be read")
    if f"{NODE_URI}{question.node}" not in told.uris:
        raise ValueError("the hub's certificate is for another node")
    if told.not_after <= question.now_s:
        raise ValueError("the hub's certificate has ended; compare the clocks of this node and of the hub")
    return Checked(_private(key))


def _key(content: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # a TypeError: it is encrypted
        raise ValueError(f"the key cannot be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is no elliptic curve's")  # noqa: TRY004  # what a file holds is a value
    return key


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _public(key: ec.EllipticCurvePrivateKey) -> str:
    return key_fingerprint(key.public_key())


def _main() -> None:
    (question,) = CODEC.decode(sys.stdin.buffer.read())
    assert isinstance(question, (AskForRequest, Check))
    try:
        told: Asked | Checked | Wrong = answer(question)
    except ValueError as error:
        told = Wrong(str(error))
    sys.stdout.buffer.write(CODEC.encode(told))


if __name__ == "__main__":
    _main()
