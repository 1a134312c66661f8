"""The signer: certificates of nodes, the requests for them, and the CA's files."""

import shutil
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from cloud.trust.signer import Signer
from common.errors import HandshakeRefused
from common.net.certificate import key_fingerprint
from common.net.enrolment import Issued, Renew
from common.net.tls import TlsFiles
from tests.kit.certificates import Authority, bundle, handshake
from tests.kit.enrolling import NodeKey

DAY_S = 86_400.0


class SigningHub:
    """A CA, a hub's files, and a signer at a time that the test sets."""

    def __init__(self, directory: Path, *, strict: bool = True, ttl_s: float = 1_000.0) -> None:
        self.now = time.time()
        self.authority = Authority(directory, lifetime_s=400 * DAY_S, strict=strict)
        self.files = self.authority.hub()
        self.tls = TlsFiles(self.files.ca, self.files.cert, self.files.key)
        self.signer = Signer(self.tls, self.authority.key_path, ttl_s=ttl_s, now=lambda: self.now)

    def node(self, name: str = "n1", generation: int = 1, key: NodeKey | None = None) -> NodeKey:
        """A node with a certificate."""
        key = key or NodeKey()
        signed = self.signer.sign(key.request, node=name, generation=generation, rights=("a.csi", "b.csi"))
        key.issued = Issued(self.signer.chain(signed.pem), b"", generation, 0, (), ())
        return key


@pytest.fixture
def signing(tmp_path: Path) -> SigningHub:
    return SigningHub(tmp_path)


@pytest.mark.parametrize("strict", [True, False])
def test_a_certificate_names_node_generation_and_drivers_and_is_for_clients(tmp_path: Path, *, strict: bool) -> None:
    signing = SigningHub(tmp_path, strict=strict)
    peer = signing.node("n1", 7).peer()
    names = ("csi-bridge:node:n1", "csi-bridge:generation:7", "csi-bridge:may-run:a.csi", "csi-bridge:may-run:b.csi")
    assert peer.uris == names
    assert (peer.common_names, peer.organizations) == (("system:node:n1",), ("system:nodes",))
    assert peer.purposes == ("1.3.6.1.5.5.7.3.2",)
    assert signing.now + 999 <= peer.not_after <= signing.now + 1_000
    signing.node().certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(signing.files.ca.read_bytes()))


def test_the_hub_chooses_the_names_whatever_the_request_says(signing: SigningHub) -> None:
    assert b"somebody-else" in NodeKey().request
    assert b"somebody-else" not in signing.node().der


def test_a_long_name_is_in_the_uri_alone(signing: SigningHub) -> None:
    name = "n" * 200
    peer = signing.node(name).peer()
    assert peer.uris[0] == f"csi-bridge:node:{name}"
    assert peer.common_names == ("csi-bridge node",)


def test_openssl_with_strict_rules_accepts_the_certificate(signing: SigningHub, tmp_path: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(signing.files.ca))
    server.load_cert_chain(signing.files.cert, signing.files.key)
    server.verify_mode, server.verify_flags = ssl.CERT_REQUIRED, ssl.VERIFY_X509_STRICT
    _, hub = handshake(signing.node().client(signing.files.ca, tmp_path), server)
    assert hub.getpeercert()


def test_a_certificate_does_not_outlive_the_ca(tmp_path: Path) -> None:
    signing = SigningHub(tmp_path, ttl_s=500 * DAY_S)
    assert signing.node().peer().not_after <= signing.now + 400 * DAY_S
    signing.now += 401 * DAY_S
    with pytest.raises(HandshakeRefused, match="CA certificate has ended"):
        signing.node()


def other_request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def broken(request: bytes) -> bytes:
    return request[:-1] + bytes([request[-1] ^ 1])


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"x" * 500,
        broken(NodeKey().request),
        other_request(ec.generate_private_key(ec.SECP384R1())),
        other_request(rsa.generate_private_key(public_exponent=65_537, key_size=2048)),
    ],
    ids=["empty", "noise", "a wrong signature", "another curve", "RSA"],
)
def test_another_request_is_refused(signing: SigningHub, request_: bytes) -> None:
    with pytest.raises(HandshakeRefused, match="certificate request"):
        signing.signer.key_in_request(request_)
    with pytest.raises(HandshakeRefused, match="certificate request"):
        signing.signer.sign(request_, node="n1", generation=1, rights=())


def test_the_pin_is_of_the_ca_that_signed_the_hubs_certificate(signing: SigningHub, tmp_path: Path) -> None:
    other = Authority(tmp_path, name="another CA")
    both = bundle(tmp_path / "both.pem", other, signing.authority)
    signer = Signer(TlsFiles(both, signing.files.cert, signing.files.key), None, ttl_s=1.0)
    ours = x509.load_pem_x509_certificate(signing.files.ca.read_bytes())
    assert signer.pin() == signing.signer.pin() == key_fingerprint(ours.public_key())
    assert signer.bundle().count(b"BEGIN CERTIFICATE") == 2
    assert not signer.can_sign


def test_the_pin_is_of_the_root_if_the_hub_has_its_certificate_from_an_intermediate_ca(
    signing: SigningHub, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    sub = Authority(tmp_path / "sub", name="intermediate", parent=signing.authority)
    hub, both = sub.hub(), bundle(tmp_path / "both.pem", sub, signing.authority)
    assert Signer(TlsFiles(both, hub.cert, hub.key), None, ttl_s=1.0).pin() == signing.signer.pin()


def test_the_key_belongs_to_any_certificate_of_the_bundle(signing: SigningHub, tmp_path: Path) -> None:
    other = Authority(tmp_path, name="another CA")
    both = bundle(tmp_path / "both.pem", signing.authority, other)
    signer = Signer(TlsFiles(both, signing.files.cert, signing.files.key), other.key_path, ttl_s=1_000.0)
    signed = signer.sign(NodeKey().request, node="n1", generation=1, rights=())
    x509.load_pem_x509_certificate(signer.chain(signed.pem)).verify_directly_issued_by(
        x509.load_pem_x509_certificate(other.path.read_bytes())
    )


def test_an_intermediate_ca_is_in_the_chain(signing: SigningHub, tmp_path: Path) -> None:
    sub = Authority(tmp_path, name="intermediate", parent=signing.authority)
    both = bundle(tmp_path / "both.pem", signing.authority, sub)
    signer = Signer(TlsFiles(both, signing.files.cert, signing.files.key), sub.key_path, ttl_s=1_000.0)
    signed = signer.sign(NodeKey().request, node="n1", generation=1, rights=())
    assert signer.chain(signed.pem) == signed.pem.encode() + sub.path.read_bytes()


def test_the_hubs_names_are_those_of_its_certificate_that_nodes_outside_the_cluster_know(signing: SigningHub) -> None:
    signing.authority.hub("10.0.0.5", names=["csi-bridge-hub-0.csi-bridge.svc", "hub-0.example", "hub-1.example"])
    assert signing.signer.hub_names() == ["localhost", "hub-0.example", "hub-1.example", "127.0.0.1", "10.0.0.5"]


def test_a_ca_key_of_no_certificate_is_refused(signing: SigningHub, tmp_path: Path) -> None:
    other = Authority(tmp_path, name="another CA")
    with pytest.raises(ValueError, match="is not the key of a certificate in"):
        Signer(signing.tls, other.key_path, ttl_s=1.0)
    with pytest.raises(ValueError, match="holds no private key"):
        Signer(signing.tls, signing.files.ca, ttl_s=1.0)


def test_new_files_of_the_ca_count_from_the_next_certificate_on(signing: SigningHub, tmp_path: Path) -> None:
    other = Authority(tmp_path, name="another CA")
    signing.files.ca.write_bytes(b"no PEM")
    signing.node()  # the old ones stay in use
    shutil.copy(other.path, signing.files.ca)
    shutil.copy(other.key_path, signing.authority.key_path)
    signing.node().certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(other.path.read_bytes()))


def test_an_expired_certificate_is_renewed_within_the_grace(signing: SigningHub) -> None:
    node = signing.node(generation=3)
    signing.now += 1_000 + 10 * DAY_S
    peer = signing.signer.check_renewal(node.late_renewal(NodeKey()), "10.0.0.7:1", grace_s=11 * DAY_S)
    assert (peer.uris[:2], peer.key) == (("csi-bridge:node:n1", "csi-bridge:generation:3"), node.fingerprint)
    with pytest.raises(HandshakeRefused, match="longer than --renew-grace"):
        signing.signer.check_renewal(node.late_renewal(NodeKey()), "10.0.0.7:1", grace_s=9 * DAY_S)


def test_a_renewal_needs_the_present_key(signing: SigningHub) -> None:
    node, thief = signing.node(), NodeKey()
    renewal = node.late_renewal(thief, signer=thief)
    with pytest.raises(HandshakeRefused, match="not of the present"):
        signing.signer.check_renewal(renewal, "10.0.0.7:1", grace_s=0.0)
    seen = node.late_renewal(NodeKey())
    with pytest.raises(HandshakeRefused, match="not of the present"):  # a signature for another request
        signing.signer.check_renewal(Renew(thief.request, seen.certificate, seen.signature), "10.0.0.7:1", grace_s=0.0)


def test_a_certificate_of_another_ca_is_not_renewed(signing: SigningHub, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = SigningHub(tmp_path / "other").node()
    with pytest.raises(HandshakeRefused, match="not signed by a CA of this hub"):
        signing.signer.check_renewal(stranger.late_renewal(NodeKey()), "10.0.0.7:1", grace_s=0.0)


@pytest.mark.parametrize("role", ["hub", "driver"])
def test_a_certificate_of_another_role_is_not_renewed(signing: SigningHub, role: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    uses = {"hub": ("csi-bridge:hub", "csi-bridge:hubs"), "driver": ("csi-bridge:driver:a", "csi-bridge:drivers")}
    pem = signing.authority.issue(*uses[role], file="x", key=key)
    node = NodeKey(key, Issued(pem.cert.read_bytes(), b"", 1, 0, (), ()))
    with pytest.raises(HandshakeRefused, match="not one of a node"):
        signing.signer.check_renewal(node.late_renewal(NodeKey()), "10.0.0.7:1", grace_s=0.0)


@pytest.mark.parametrize("certificate", [b"", b"noise" * 50])
def test_noise_in_place_of_the_present_certificate_is_refused(signing: SigningHub, certificate: bytes) -> None:
    with pytest.raises(HandshakeRefused, match="cannot be read"):
        signing.signer.check_renewal(Renew(NodeKey().request, certificate, b"x"), "10.0.0.7:1", grace_s=0.0)
