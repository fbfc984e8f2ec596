"""A throw-away authority and the certificates it issues, for servers and clients that encrypt."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.scratch import new_folder

DAY = timedelta(days=1)


class Identity(NamedTuple):
    """A certificate and its key, as PEM files that a server's account can read."""

    certificate: Path
    key: Path


class Authority:
    """`file` is what clients trust."""

    def __init__(self, name: str = "throw-away authority") -> None:
        self._folder = new_folder("authority")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        public = self._key.public_key()
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        certificate = (
            _built(self._name, self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = self._folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *hosts: str) -> Identity:
        """A certificate for these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        trusted = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        certificate = (
            _built(_named(hosts[0]), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(trusted, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        place = self._folder / f"{certificate.serial_number:x}"
        files = Identity(place.with_suffix(".pem"), place.with_suffix(".key"))
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _built(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=public,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - DAY,
        not_valid_after=now + DAY,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
