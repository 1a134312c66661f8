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
        help="The largest CSI message carried. Above 4 MiB the stock sidecars do not take an answer.",
    )
    chunk_bytes: int = setting(
        "16KiB",
        parse=bounded(size, low="1KiB", high="256KiB"),
        help="Messages travel in pieces of this size, so that a large one does not hold up the others.",
    )
    session_window_bytes: int = setting(
        "64MiB",
        parse=bounded(size, low="1MiB", high="1GiB"),
        help="What a link's peer may send before any of it was passed on; bounds the memory of a link.",
    )
    stream_window_bytes: int = setting(
        "256KiB",
        parse=bounded(size, low="16KiB", high="64MiB"),
        help="The same for one call of it.",
    )
    max_calls: int = setting(
        "1024",
        parse=bounded(count, low="1", high="100000"),
        unit="calls",
        help="Calls that a link's peer may have under way at once.",
    )
    keepalive_s: float = setting(
        "10s",
        parse=bounded(duration, low="100ms", high="10m"),
        help="A silent link is asked for life after this time, and given up after twice as much.",
    )
    hello_timeout_s: float = setting(
        "10s",
        parse=bounded(duration, low="100ms", high="10m"),
        help="How long connecting, TLS and the first hello may take together.",
    )
    drain_timeout_s: float = setting(
        "25s",
        parse=duration,
        help="On SIGTERM, calls under way may finish for so long. Kubernetes kills a pod after 30 s by default.",
    )
    tls_ca: Path | None = setting(None, parse=path, help="PEM file of the CA that signs the peers' certificates.")
    tls_cert: Path | None = setting(None, parse=path, help="PEM file of this process's certificate.")
    tls_key: Path | None = setting(None, parse=path, help="PEM file of its private key.")
    insecure: bool = setting(
        "false", parse=switch, help="Allow plain ws:// on a loopback address. For tests and the demo."
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
            raise self.wrong("tls_cert", f"the TLS files cannot be used: {error}") from error
