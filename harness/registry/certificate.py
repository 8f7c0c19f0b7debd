"""The TLS certificate of a test's registry; the test's registry replaces a registry such as Microsoft's."""

from __future__ import annotations

import shutil
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.lease import make_private_folder
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.provisioning.command import Runner

_OPENSSL_S = 60.0
#: How many days a certificate is valid, which is longer than any run.
_DAYS = 2


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A self-signed certificate and its key.

    Trusting the certificate means trusting only the server with this key.
    """

    certificate: Path
    key: Path

    @classmethod
    def generate(
        cls, folder: Path, names: Sequence[str], runner: Runner | None = None
    ) -> Certificate:
        """Generate a certificate for `names` in the private `folder`.

        Raises RequirementError if openssl is not installed, and CommandError if openssl fails.
        """
        if shutil.which("openssl") is None:
            raise RequirementError(
                "The program 'openssl', which makes the certificate of a test's registry, was not "
                "found on this host; install the program with `apt-get install openssl`."
            )
        make_private_folder(folder)
        made = cls(certificate=folder / "certificate.pem", key=folder / "key.pem")
        (runner or LocalRunner()).run(
            [
                *("openssl", "req", "-x509", "-sha256", "-noenc"),
                *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
                *("-subj", "/CN=gpu-node-harness", "-days", str(_DAYS)),
                *("-addext", f"subjectAltName={','.join(f'DNS:{name}' for name in names)}"),
                *("-keyout", str(made.key), "-out", str(made.certificate)),
            ],
            timeout_s=_OPENSSL_S,
        ).check("Making the certificate of a test's registry")
        return made

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context

    @property
    def pem(self) -> bytes:
        """Return, in PEM format, the certificate that a client has to trust."""
        return self.certificate.read_bytes()
