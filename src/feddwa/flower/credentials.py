"""Certificates and node keys for a federation on one machine; a deployment has its own (docs/deployment.md)."""

import datetime
import ipaddress
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 7


@dataclass(frozen=True)
class Certificates:
    """PEM files of a TLS server."""

    authority: Path  # root certificate, which clients need
    certificate: Path  # of the server, signed by the authority
    key: Path  # private key of the server


def make_certificates(folder: Path) -> Certificates:
    """Write a root certificate and a server certificate for localhost; the root's key is not kept."""
    signer, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root, name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("feddwa try", "localhost"))
    loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    authority = (
        _certificate(root, root, signer)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    certificate = (
        _certificate(name, root, key)
        .add_extension(x509.SubjectAlternativeName(loopback), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    files = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(files.key, key.private_bytes(*pem))
    return files


def make_node_key(path: Path) -> Path:
    """Write a node's private key to `path` and the public one beside it, as ssh-keygen does; returns the latter's."""
    key = ec.generate_private_key(ec.SECP384R1())
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    write_private(path, key.private_bytes(*pem))
    public = path.with_suffix(".pub")
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return public


def make_secret(path: Path) -> Path:
    """Write a secret that SuperNodes and their executor share."""
    write_private(path, secrets.token_bytes(32))
    return path


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that no other user of this machine can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
