"""Credentials for an API server, from a kubeconfig or from the service account of a pod.

Rules:

* They are loaded again from time to time. No request waits for that: it uses the present ones.
* If new ones are unusable, the old ones stay.
* The library writes certificates and private keys of a kubeconfig to files, because OpenSSL reads only files. These
  files are removed as soon as OpenSSL has read them: systemd clears /tmp after ten days, so they would not last anyway.
* The library's own hook for renewals is not used: it is not called for a client certificate, nor for an exec plugin
  that returned nothing at first.
"""

import asyncio
import atexit
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import kube_config

from common.errors import SettingsError

log = logging.getLogger("csi_bridge.hub.kube")

IN_CLUSTER: Final = "in-cluster"  # stands for a kubeconfig: the service account of the hub's pod
_FRESH_S: Final = 60.0  # credentials of this age are loaded again: client-go's interval for a token file

# Refused credentials of this age are loaded again: no sooner, or a plugin without new ones would run all the time.
_REFUSED_S: Final = 5.0


class ApiCredentials:
    """The token or client certificate of a client of an API server."""

    def __init__(self, kubeconfig: str, client: ApiClient, now: Callable[[], float]) -> None:
        self.are_refused = False
        self._kubeconfig = kubeconfig
        self._client = client
        self._now = now
        self._begun_at = now()
        self._loading: asyncio.Task[None] | None = None
        self._trouble = ""  # the reason why the newest ones are not in use; empty if they are

    def renew(self, *, after_s: float = _FRESH_S) -> None:
        """Start to load new ones if the present ones are that old. They are in use until then."""
        now = self._now()
        if now - self._begun_at < after_s:
            return
        if self._loading is not None and not self._loading.done():
            self._note("loading it has not ended yet")  # a plugin hangs, and a second run would hang as well
            return
        self._begun_at = now
        self._loading = asyncio.get_running_loop().create_task(self._load(), name="credentials")

    def refused(self) -> str:
        """Load them again, because the API server refuses them. Returns a sentence with the possible cause."""
        self.renew(after_s=_REFUSED_S)
        why = f", and there are no newer ones: {self._trouble}" if self._trouble else ""
        return f"the credentials of --kubeconfig={self._kubeconfig} are refused{why}"

    async def close(self) -> None:
        # A plugin that is running goes on to its end.
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    async def _load(self) -> None:
        try:
            async with loaded(self._kubeconfig) as new:
                self._note(self._take(new))
        except SettingsError as error:
            self._note(error.why)
        except OSError as error:  # of ssl's
            self._note(f"its client certificate cannot be used: {error}")

    def _take(self, new: Configuration) -> str:
        old = self._client.configuration
        if new.host != old.host:  # another context is selected now, and this server must not see its token
            return "it names another API server; restart the hub to use that one"
        if not (new.api_key or new.cert_file) and (old.api_key or old.cert_file):
            return "it gives none; if it has an exec plugin, the hub's log has its result"
        if new.cert_file:
            # A certificate that does not fit its key would replace the old one, so another context tries it first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self._client.rest_client.ssl_context):
                context.load_cert_chain(new.cert_file, new.key_file)
        old.api_key = new.api_key
        old.cert_file = new.cert_file
        return ""

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning(
                "the credentials of --kubeconfig=%s are not renewed, and the old ones are kept: %s",
                self._kubeconfig,
                trouble,
            )
        elif self._trouble and not trouble:
            log.info("the credentials of --kubeconfig=%s are renewed again", self._kubeconfig)
        self._trouble = trouble


@asynccontextmanager
async def loaded(kubeconfig: str) -> AsyncIterator[Configuration]:
    """Load a kubeconfig. The files that it names exist inside the block. Raises SettingsError."""
    settings = Configuration()
    try:
        try:
            if kubeconfig == IN_CLUSTER:
                config.load_incluster_config(settings, try_refresh_token=False)  # type: ignore[no-untyped-call]  # as below
            else:
                await config.load_kube_config(kubeconfig, client_configuration=settings)  # type: ignore[no-untyped-call]  # the library has no types here
        except Exception as error:  # YAML, JSON, base64 and dictionaries of another shape raise many kinds
            raise unusable(kubeconfig, error) from error
        # A file that was written by hand ends with a newline, and a header may have none (client-go strips it, too).
        settings.api_key = {name: key.strip() for name, key in settings.api_key.items()}
        yield settings
    finally:
        remove = kube_config._cleanup_temp_files  # noqa: SLF001  # there is no other way
        remove()  # type: ignore[no-untyped-call]  # as above
        atexit.unregister(remove)  # else it has one more of them with each load


def unusable(kubeconfig: str, error: Exception) -> SettingsError:
    why = str(error).partition("{")[0]  # behind the brace the library quotes the file, with its tokens
    return SettingsError("--kubeconfig", kubeconfig, f"cannot be used: {why}")
