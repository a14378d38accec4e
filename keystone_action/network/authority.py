"""A certificate authority of one cell: a certificate for the names under which its mocks stand in for other hosts.

Keys are made here and stay in this process: that of the authority is forgotten once it has signed, that of the
certificate goes to the TLS library by a file in memory. Sandboxes get the authority's certificate and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath

from keystone_action.errors import HarnessError

_BUNDLE, _OWN, _JAVA = "bundle.pem", "authority.pem", "truststore.p12"
_PASSWORD = "changeit"  # noqa: S105 - the one of every JVM's own: the store holds no secret
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
_NAMES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE")
"""Read by OpenSSL (Python's ssl, Ruby), Go and rustls; Python's requests and pip; curl; git; Amazon's clients."""
_BEFORE, _AFTER = timedelta(days=2), timedelta(days=366)
"""How much longer a certificate is valid than from the first time of its clients to the last."""


@dataclass(frozen=True, slots=True)
class Authority:
    """What a cell's servers and its sandboxes need."""

    certificate: bytes
    """The authority's own, as PEM: what clients have to trust."""

    context: ssl.SSLContext
    """For servers under all of the names."""


def make_authority(names: Sequence[str], times: Sequence[datetime] = ()) -> Authority:
    """An authority whose certificate is valid for these names, now and at these times. Takes some milliseconds."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    moments = [datetime.now(UTC), *times]
    valid = (min(moments) - _BEFORE, max(moments) + _AFTER)
    own, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Keystone, for one cell")])
    own_id = x509.SubjectKeyIdentifier.from_public_key(own.public_key())

    def begin(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number(), *valid)
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id), critical=False
        )

    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False,
    )  # fmt: skip
    authority = (
        begin(issuer, own.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(own, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Keystone's mocks")])
    certificate = (
        begin(subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usage), critical=True
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(own, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    with _in_memory(private + certificate.public_bytes(pem)) as file:
        context.load_cert_chain(file)
    return Authority(authority.public_bytes(pem), context)


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A file that no other process finds; off Linux, one that only our user may read, for this moment."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("keystone-key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name


def _java_trust_store(bundle: bytes, password: bytes) -> bytes:
    """The certificates of a PEM file as the JVM reads them, PKCS #12. Those that can't be read are left out."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    found = []
    for part in bundle.split(b"-----BEGIN CERTIFICATE-----")[1:]:
        with contextlib.suppress(ValueError), warnings.catch_warnings(action="ignore"):
            found.append(x509.load_pem_x509_certificate(b"-----BEGIN CERTIFICATE-----" + part))
    certificates = [pkcs12.PKCS12Certificate(one, f"keystone-{n}".encode()) for n, one in enumerate(found)]
    return pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(password))


def trust_files(authority: bytes, others: bytes) -> Mapping[str, bytes]:
    """The files of a folder for containers to read, which is part of no image: the authority's certificate, alone and
    beside those that an image trusts. authority, others: as PEM; without others, those that we use ourselves."""
    bundle = (others or _ours()).rstrip() + b"\n" + authority
    return {_BUNDLE: bundle, _OWN: authority, _JAVA: _java_trust_store(bundle, _PASSWORD.encode())}


def trust_variables(folder: PurePath, java_options: str) -> Mapping[str, str]:
    """The variables by which programs find these files in a folder. java_options: of the image."""
    java = [java_options, f"-Djavax.net.ssl.trustStore={folder / _JAVA}"]
    java += [f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}", "-Djavax.net.ssl.trustStoreType=PKCS12"]
    return {
        **dict.fromkeys(_NAMES, str(folder / _BUNDLE)),
        # Node adds it to what it has.
        "NODE_EXTRA_CA_CERTS": str(folder / _OWN),
        JAVA_OPTIONS: " ".join(one for one in java if one),
    }


def lay_out_trust(authority: bytes, others: bytes, folder: Path, java_options: str) -> Mapping[str, str]:
    """Make this folder with these files, and return the variables. Blocking. Raises HarnessError."""
    try:
        folder.mkdir()
        for name, content in trust_files(authority, others).items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise HarnessError(f"network.dns_overrides: certificates can't be written: {error.strerror}") from error
    return trust_variables(folder, java_options)


def _ours() -> bytes:
    import certifi

    return Path(certifi.where()).read_bytes()
