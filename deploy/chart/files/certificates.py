"""Makes the CA, and certificates for the hub and the proxy drivers, as Secrets where there are none.

    python certificates.py NAMESPACE "NAME NAME..." DRIVER=SECRET...

The names are those of the hub, as deploy/certificates.sh takes them, and its certificates have the same form.
"""

import base64
import datetime as dt
import ipaddress
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

PEM = serialization.Encoding.PEM
USES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip


def named(*names):
    kinds = {"O": NameOID.ORGANIZATION_NAME, "CN": NameOID.COMMON_NAME}
    return x509.Name([x509.NameAttribute(kinds[kind], value) for kind, value in names])


def alternative(name):
    if name.startswith("csi-bridge:"):
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def certify(subject, days, purposes=(), names=(), ca=None):
    """Returns certificate and key. Without `ca`, a pair of certificate and key, they are a CA's."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = (ca[0].subject, ca[1]) if ca else (subject, key)
    now = dt.datetime.now(dt.UTC)
    used = ("digital_signature",) if ca else ("key_cert_sign", "crl_sign")
    made = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not ca, path_length=None if ca else 0), critical=True)
        .add_extension(x509.KeyUsage(**{use: use in used for use in USES}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if ca:
        made = made.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        made = made.add_extension(x509.SubjectAlternativeName([alternative(it) for it in names]), critical=False)
    return made.sign(signer, hashes.SHA256()), key


def pem(certificate, key):
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(PEM), private


def main(namespace, hub_names, *drivers):
    config.load_incluster_config()
    api = client.CoreV1Api()

    def secret(name, make):
        """Returns the files of a Secret, made if there is none."""
        try:
            found = api.read_namespaced_secret(name, namespace).data
        except ApiException as error:
            if error.status != 404:
                raise
            data = {file: base64.b64encode(content).decode() for file, content in make().items()}
            body = {"metadata": {"name": name}, "data": data}
            found = api.create_namespaced_secret(namespace, body).data
            sys.stdout.write(f"made the Secret {name}\n")
        return {file: base64.b64decode(content) for file, content in found.items()}

    # Where no node joins, only this Job reads the key.
    def authority():
        certificate, key = pem(*certify(named(("CN", "csi-bridge CA")), 3650))
        return {"ca.crt": certificate, "ca.key": key}

    files = secret("csi-bridge-hub-ca", authority)
    if "ca.crt" not in files:
        sys.exit("the Secret csi-bridge-hub-ca has no ca.crt: it is not from here; set certificates.make=false")
    ca = x509.load_pem_x509_certificate(files["ca.crt"]), serialization.load_pem_private_key(files["ca.key"], None)

    def leaf(role, name, purposes, names):
        subject = named(("O", f"csi-bridge:{role}"), ("CN", name if len(name) <= 64 else "csi-bridge driver"))
        certificate, key = pem(*certify(subject, 365, purposes, names, ca))
        return {"ca.crt": files["ca.crt"], "tls.crt": certificate, "tls.key": key}

    server, caller = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    names = hub_names.split()
    served = [caller] if any(it.startswith("csi-bridge:") for it in names) else []
    secret("csi-bridge-hub-tls", lambda: leaf("hubs", "csi-bridge:hub", [server, *served], names))
    for driver, _, name in (it.partition("=") for it in drivers):
        uri = f"csi-bridge:driver:{driver}"
        secret(name, lambda uri=uri: leaf("drivers", uri, [caller], [uri]))


if __name__ == "__main__":
    main(*sys.argv[1:])
