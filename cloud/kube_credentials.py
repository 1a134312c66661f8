"""Credentials: who asks an API server, as a kubeconfig or the service account of a pod gives them now.

Rules:

* They are loaded again and again. No request waits for that: it goes with those that are there.
* New ones that cannot be used leave the old ones as they are.
* The library writes what stands in a kubeconfig itself, private keys among it, to files, for OpenSSL has to read them
  from there. They are gone as soon as it has: a file that is to be there for months is removed by somebody (systemd
  clears /tmp after ten days).
* The library's own hook for renewals is not used: it is not called for a client certificate, nor for an exec plugin
  that had nothing to give at first.
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

IN_CLUSTER: Final = "in-cluster"
"""In place of a kubeconfig: the service account of the pod that the hub runs in."""

_FRESH_S: Final = 60.0
"""Credentials are loaded again when they are so old: client-go's, of a token file."""

_REFUSED_S: Final = 5.0
"""And when they are refused, but not sooner than this: a plugin that has nothing better is not run all the time."""


class Credentials:
    """The token or the client certificate that a client of an API server has now.

    Attributes:
        are_refused: whether the API server's last answer was that.
    """

    def __init__(self, kubeconfig: str, client: ApiClient, now: Callable[[], float]) -> None:
        """They have just been loaded into the client."""
        self.are_refused = False
        self._kubeconfig, self._client, self._now = kubeconfig, client, now
        self._begun_at = now()
        self._loading: asyncio.Task[None] | None = None
        self._trouble = ""
        """Why the newest ones are not in use."""

    def renew(self, *, after_s: float = _FRESH_S) -> None:
        """Begin to load them again if they are so old. Until new ones are there, the old ones are in use."""
        now = self._now()
        if now - self._begun_at < after_s:
            return
        if self._loading is not None and not self._loading.done():
            self._note("loading it has not ended yet")  # a plugin that hangs: a second one would, too
            return
        self._begun_at = now
        self._loading = asyncio.get_running_loop().create_task(self._load(), name="credentials")

    def refused(self) -> str:
        """The API server refuses them: load them again. In words, with what may be the cause."""
        self.renew(after_s=_REFUSED_S)
        why = f", and there are no newer ones: {self._trouble}" if self._trouble else ""
        return f"the credentials of --kubeconfig={self._kubeconfig} are refused{why}"

    async def close(self) -> None:
        """Load them no more. A plugin that is running comes to its own end."""
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
        """Use new ones from now on; or why not, in words.

        Raises:
            OSError: the client certificate cannot be used.
        """
        old = self._client.configuration
        if new.host != old.host:  # somebody went over to another context, and its token is not for this server's eyes
            return "it names another API server; restart the hub to use that one"
        if not (new.api_key or new.cert_file) and (old.api_key or old.cert_file):
            return "it gives none; if it has an exec plugin, the hub's log has its result"
        if new.cert_file:
            # With one that does not fit its key, the context would lose the old one: another context tries it first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self._client.rest_client.ssl_context):
                context.load_cert_chain(new.cert_file, new.key_file)
        old.api_key, old.cert_file = new.api_key, new.cert_file
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
    """What a kubeconfig says now. The files that it names are there inside the block, whoever wrote them.

    Raises:
        SettingsError: the file cannot be used, or there is no service account here.
    """
    settings = Configuration()
    try:
        try:
            if kubeconfig == IN_CLUSTER:
                config.load_incluster_config(settings, try_refresh_token=False)  # type: ignore[no-untyped-call]  # as below
            else:
                await config.load_kube_config(kubeconfig, client_configuration=settings)  # type: ignore[no-untyped-call]  # the library has no types here
        except Exception as error:  # whatever YAML, JSON, base64 and dictionaries of another shape raise
            raise unusable(kubeconfig, error) from error
        # A file that was written by hand ends with a newline, and a header may have none (client-go strips it, too).
        settings.api_key = {name: key.strip() for name, key in settings.api_key.items()}
        yield settings
    finally:
        remove = kube_config._cleanup_temp_files  # noqa: SLF001  # there is no other way
        remove()  # type: ignore[no-untyped-call]  # as above
        atexit.unregister(remove)  # else it has one more of them with each load


def unusable(kubeconfig: str, error: Exception) -> SettingsError:
    """What is wrong with a kubeconfig, without a word of what stands in it."""
    why = str(error).partition("{")[0]  # here the library begins to quote the file, with any token that stands in it
    return SettingsError("--kubeconfig", kubeconfig, f"cannot be used: {why}")
