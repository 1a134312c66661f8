"""Settings: the values with which an operator starts the hub, a proxy driver or an agent.

Rules:
* A process has one frozen dataclass, a subclass of `ProcessSettings`. The command line declares the flag, the variable,
  the default and the help of each field (cli/process_options.py), and makes the instance.
* A value with a unit carries it in the field's name (`operation_limit_s`, `max_message_bytes`), not in the flag's
  (`--operation-limit`): there the operator writes the unit with the value.
* The dataclass checks in `__post_init__` that its values fit each other. Its errors name the flag, and the command line
  adds the variable.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path

from common.errors import SettingsError
from common.net.endpoint import Endpoint, is_loopback
from common.net.sockets import UnixListener, listen_unix
from common.net.tls import TlsFiles, TlsIdentity
from common.parsers import HostPort
from common.session.limits import Limits

INSECURE = (
    "--insecure: links without TLS prove no name, and everybody on this host can read them; remove the flag and give "
    "--tls-ca, --tls-cert and --tls-key, except in a test"
)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """The settings that the hub, a proxy driver and an agent share."""

    log_format: str
    log_level: str
    verbosity: int
    http: HostPort | None
    max_message_bytes: int
    session_window_bytes: int
    max_calls: int
    keepalive_s: float
    hello_timeout_s: float
    drain_timeout_s: float
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    insecure: bool

    def __post_init__(self) -> None:
        try:
            self.limits()
        except ValueError:  # the bounds of the flags exclude every other reason
            why = "must be at least one and a half times --max-message"
            raise SettingsError("--session-window", self.session_window_bytes, why) from None
        missing = [flag for flag, file in self._tls_flags().items() if file is None]
        if len(missing) in {1, 2}:
            raise SettingsError(missing[0], "unset", "CA, certificate and key are needed together")

    def check_dial(self, flag: str, endpoint: Endpoint) -> None:
        """Refuse to dial a network without TLS (SettingsError). A loopback address needs `--insecure` for that."""
        if endpoint.path is not None:
            return
        if endpoint.tls and self.tls_cert is None:
            raise SettingsError(flag, endpoint, "wss:// needs --tls-ca, --tls-cert and --tls-key")
        if not endpoint.tls and not (self.insecure and is_loopback(endpoint.host)):
            raise SettingsError(flag, endpoint, "plain ws:// is for loopback addresses with --insecure; use wss://")

    def listen_unix(
        self, name: str, *, mode: int, gid: int | None = None, make_directory: bool = False
    ) -> UnixListener:
        """A listening socket at the path in field `name`; the rest as for `common.net.sockets.listen_unix`."""
        path = getattr(self, name)
        try:
            return listen_unix(path, mode=mode, gid=gid, make_directory=make_directory)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise SettingsError(f"--{name}", path, why) from error

    def limits(self) -> Limits:
        return Limits(
            max_message_bytes=self.max_message_bytes,
            session_window_bytes=self.session_window_bytes,
            max_streams=self.max_calls,
            keepalive_s=self.keepalive_s,
            hello_timeout_s=self.hello_timeout_s,
        )

    def tls_files(self) -> TlsFiles | None:
        if self.tls_ca is None or self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_ca, self.tls_cert, self.tls_key)

    def _tls_flags(self) -> dict[str, Path | None]:
        return {"--tls-ca": self.tls_ca, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}

    def tls(self, *, server: bool) -> TlsIdentity | None:
        tls_files = self.tls_files()
        if tls_files is None:
            return None
        try:
            return TlsIdentity(tls_files, server=server)
        except OSError as error:
            files = self._tls_flags()
            blamed = next((flag for flag, file in files.items() if str(file) in str(error)), "--tls-cert")
            raise SettingsError(blamed, files[blamed], f"the TLS files cannot be used: {error}") from error


def as_texts(settings: ProcessSettings) -> dict[str, list[str]]:
    """The texts by field name, from which the command line makes these settings again. Unset fields are left out.

    A repeatable setting has any number of texts, any other one has one.
    """
    found = {field.name: _texts(getattr(settings, field.name)) for field in fields(settings)}
    return {name: texts for name, texts in found.items() if texts}


def describe(settings: ProcessSettings) -> str:
    """The settings in one line, for the log at start: `http=127.0.0.1:10350 operation_limit_s=600`."""
    texts = as_texts(settings)
    return " ".join(f"{it.name}={','.join(map(_quoted, texts.get(it.name, ['unset'])))}" for it in fields(settings))


def _texts(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, tuple) and not isinstance(value, HostPort):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, float):
        return [f"{value:.12g}"]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def _quoted(text: str) -> str:
    return text if text.isprintable() and " " not in text else json.dumps(text)
