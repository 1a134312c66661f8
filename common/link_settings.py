"""A link's settings: the limits, times and TLS files that every process with a link takes."""

from dataclasses import dataclass
from pathlib import Path

from common.endpoint import Endpoint, is_loopback
from common.limits import Limits
from common.parsers import bounded, count, duration, path, size, switch
from common.settings import ProcessSettings, setting
from common.sockets import UnixListener, listen_unix
from common.tls import TlsFiles, TlsIdentity


@dataclass(frozen=True, kw_only=True)
class LinkSettings(ProcessSettings):
    """What the hub, a proxy driver and an agent all take. The defaults and their reasons are those of `Limits`."""

    max_message_bytes: int = setting(
        "4MiB",
        parse=bounded(size, low="64KiB", high="64MiB"),
        group="tuning",
        help="Largest CSI message that is carried. The stock sidecars take no answer above 4 MiB.",
    )
    chunk_bytes: int = setting(
        "16KiB",
        parse=bounded(size, low="1KiB", high="256KiB"),
        group="tuning",
        help="Size of the pieces that messages travel in. Small pieces keep a large message from delaying the others.",
    )
    session_window_bytes: int = setting(
        "64MiB",
        parse=bounded(size, low="1MiB", high="1GiB"),
        group="tuning",
        help="Bytes that a peer may send on a link before they are passed on. Limits the memory of a link.",
    )
    stream_window_bytes: int = setting(
        "256KiB",
        parse=bounded(size, low="16KiB", high="64MiB"),
        group="tuning",
        help="The same limit for one call on a link.",
    )
    max_calls: int = setting(
        "1024",
        parse=bounded(count, low="1", high="100000"),
        unit="calls",
        group="tuning",
        help="Calls that a peer may have under way on a link at one time.",
    )
    keepalive_s: float = setting(
        "10s",
        parse=bounded(duration, low="100ms", high="10m"),
        group="tuning",
        help="A link that is silent for this time is probed. After twice this time it is closed.",
    )
    hello_timeout_s: float = setting(
        "10s",
        parse=bounded(duration, low="100ms", high="10m"),
        group="tuning",
        help="Time limit for connecting, TLS and the first hello together.",
    )
    drain_timeout_s: float = setting(
        "25s",
        parse=duration,
        group="tuning",
        help="Time for calls under way to finish after SIGTERM. Kubernetes kills a pod after 30 s by default.",
    )
    tls_ca: Path | None = setting(
        None, parse=path, group="tls", help="PEM file of the CA that signs the peers' certificates."
    )
    tls_cert: Path | None = setting(None, parse=path, group="tls", help="PEM file of this process's certificate.")
    tls_key: Path | None = setting(None, parse=path, group="tls", help="PEM file of that certificate's private key.")
    insecure: bool = setting(
        "false", parse=switch, group="tls", help="Allow plain ws:// on a loopback address, for tests and the demo."
    )

    def __post_init__(self) -> None:
        """Check what concerns several settings together."""
        try:
            self.limits()
        except ValueError:  # the rest is bounded so that it fits
            raise self.wrong("session_window_bytes", "must be at least one and a half times --max-message") from None
        given = [name for name in ("tls_ca", "tls_cert", "tls_key") if getattr(self, name) is not None]
        if given and len(given) < 3:
            missing = next(name for name in ("tls_ca", "tls_cert", "tls_key") if name not in given)
            raise self.wrong(missing, "CA, certificate and key are needed together")

    def check_dial(self, name: str, endpoint: Endpoint) -> None:
        """Refuse to dial a network without TLS, unless it is this machine's own and `--insecure` says so.

        Raises:
            SettingsError: field `name` holds an endpoint that may not be dialled so.
        """
        if endpoint.path is not None:
            return
        if endpoint.tls and self.tls_cert is None:
            raise self.wrong(name, "wss:// needs --tls-ca, --tls-cert and --tls-key")
        if not endpoint.tls and not (self.insecure and is_loopback(endpoint.host)):
            raise self.wrong(name, "plain ws:// is for loopback addresses with --insecure; use wss://")

    def listen_unix(
        self, name: str, *, mode: int, gid: int | None = None, make_directory: bool = False
    ) -> UnixListener:
        """A listening socket at the path in field `name`; the rest as for `common.sockets.listen_unix`.

        Raises:
            SettingsError: nothing can listen there.
        """
        try:
            return listen_unix(getattr(self, name), mode=mode, gid=gid, make_directory=make_directory)
        except (OSError, ValueError) as error:
            raise self.wrong(
                name, error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            ) from error

    def limits(self) -> Limits:
        """The session's limits."""
        return Limits(
            chunk_bytes=self.chunk_bytes,
            max_message_bytes=self.max_message_bytes,
            stream_window_bytes=self.stream_window_bytes,
            session_window_bytes=self.session_window_bytes,
            max_streams=self.max_calls,
            keepalive_s=self.keepalive_s,
            hello_timeout_s=self.hello_timeout_s,
        )

    def tls(self, *, server: bool) -> TlsIdentity | None:
        """The TLS identity, or None if no files are given.

        Raises:
            SettingsError: a file cannot be used.
        """
        if self.tls_ca is None or self.tls_cert is None or self.tls_key is None:
            return None
        try:
            return TlsIdentity(TlsFiles(self.tls_ca, self.tls_cert, self.tls_key), server=server)
        except OSError as error:
            raise self.wrong(self._blamed(error), f"the TLS files cannot be used: {error}") from error

    def _blamed(self, error: OSError) -> str:
        """The field of the file that an error of `TlsIdentity` names; of two files the first one."""
        fields = ("tls_ca", "tls_cert", "tls_key")
        return next((field for field in fields if str(getattr(self, field)) in str(error)), "tls_cert")
