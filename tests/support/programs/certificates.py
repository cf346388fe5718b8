"""Certificates that programs of a test show each other."""

import subprocess
from collections.abc import Iterable
from pathlib import Path


def certified(folder: Path, addresses: Iterable[str], name: str = "tls") -> dict[str, str]:
    """Ray's variables for a new certificate of these addresses, which is its own authority."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    names = ",".join(["DNS:localhost", "IP:127.0.0.1", *(f"IP:{one}" for one in addresses)])
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=drlpp", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }
