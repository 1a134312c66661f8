"""The registrar: takes the registrations of a node's drivers, as a kubelet's plugin manager does.

Rules (kubernetes pkg/kubelet/pluginmanager; contract.md C.1):

* A socket in the registry directory is a plugin that wants to register, a re-created one wants it again, and one that
  is removed has left. Each has a task of its own, so that what one does, or does not, is nothing to the others.
* GetInfo, the checks, the registration, then Notify with the truth about it. Whatever fails is tried again after the
  kubelet's back-off; a new file at the path is tried at once, twice a second at most.
* One line in the log when a plugin's trouble becomes another one, and none for the same trouble again.
* Observing, it asks GetInfo and goes to look for sockets, and tells nobody anything: a kubelet does that. A socket of
  the agent's own relay is no driver's.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from common.sockets import FileId
from edge.registry.plugin_client import PluginClient, PluginSilent
from edge.registry.plugin_sockets import looks
from edge.registry.registration import PLUGIN_TYPE, Offer, RegistrationRefused, shorten
from edge.tries import KUBELET

log = logging.getLogger("csi_bridge.edge.registrar")

_REGISTRY = "plugins_registry"
_PLUGINS = "plugins"

_LOOK_S = 5.0
"""How often `plugins` is looked through while observing. It is not watched: volumes are mounted below it."""


class Registry(Protocol):
    """What the registrar tells (`edge.registry.driver_registry.DriverRegistry`)."""

    async def register(self, offer: Offer) -> None:
        """Register a driver, or raise `RegistrationRefused`."""

    def deregister(self, socket: str) -> None:
        """A registration socket is gone."""

    def is_registered(self, name: str, socket: str) -> bool:
        """Whether a registration still stands."""

    def found(self, finder: str, endpoint: str, *, name: str = "") -> None:
        """A driver was seen that registers elsewhere, by this name."""

    def lost(self, finder: str) -> None:
        """It is gone."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Tell of changes."""


class _Failed(Exception):
    """A registration failed; the text says why."""


class Registrar:
    """Serves the registry directory of one kubelet's root directory. `run()` it as a task."""

    def __init__(
        self,
        root: Path,
        registry: Registry,
        *,
        own: bool = True,
        is_relay: Callable[[str], bool] = lambda _endpoint: False,
    ) -> None:
        """A registrar that has seen nothing yet.

        Args:
            root: the kubelet's directory, e.g. `/var/lib/kubelet`.
            registry: what it tells.
            own: whether it registers plugins; else it observes those of a kubelet.
            is_relay: whether a socket is the agent's own, which it serves for drivers.
        """
        self.directory = root / _REGISTRY
        self._plugins = root / _PLUGINS
        self._registry = registry
        self._own = own
        self._is_relay = is_relay
        self._served: dict[Path, _Plugin] = {}
        self._tried: dict[Path, float] = {}
        self._others: Mapping[Path, str] = {}
        registry.subscribe(self._changed)

    @property
    def observed(self) -> list[Offer]:
        """The drivers that register with a kubelet, each with the socket that the kubelet is told of."""
        return [plugin.observed for _, plugin in sorted(self._served.items()) if plugin.observed is not None]

    async def run(self) -> None:
        """Serve until cancelled; what is registered stays so."""
        log.info("%s plugins in %s", "taking registrations of" if self._own else "observing", self.directory)
        async with asyncio.TaskGroup() as tasks:
            if not self._own:
                tasks.create_task(self._look_for_drivers(), name=f"look through {self._plugins}")
            async with contextlib.aclosing(looks(self.directory)) as found:
                async for seen in found:
                    self._name_others({**seen.others, **seen.unread})
                    await self._compare(tasks, seen.sockets)

    async def _compare(self, tasks: asyncio.TaskGroup, sockets: Mapping[Path, FileId]) -> None:
        """Deregistrations first, as in the kubelet's reconciler."""
        for path, plugin in list(self._served.items()):
            if sockets.get(path) != plugin.file:
                await self._end(path)
        for path, file in sorted(sockets.items()):
            if path not in self._served:
                plugin = self._served[path] = self._plugin(path, file)
                wait_s = self._tried.pop(path, -KUBELET.first_s) + KUBELET.first_s - time.monotonic()
                plugin.task = tasks.create_task(plugin.serve(wait_s), name=f"plugin at {path}")

    def _plugin(self, path: Path, file: FileId) -> "_Plugin":
        return _Plugin(path, file, self._registry, own=self._own, is_relay=self._is_relay)

    async def _end(self, path: Path) -> None:
        plugin = self._served.pop(path)
        assert plugin.task is not None
        plugin.task.cancel()
        await asyncio.wait([plugin.task])
        if self._own:
            self._registry.deregister(str(path))
        else:
            self._registry.lost(str(path))
        now = time.monotonic()
        self._tried = {other: at for other, at in self._tried.items() if now - at < KUBELET.first_s}
        self._tried[path] = plugin.tried_at_s

    def _name_others(self, others: Mapping[Path, str]) -> None:
        for path, what in others.items():
            if self._others.get(path) != what:
                log.warning("%s %s", path, what)
        self._others = others

    def _changed(self) -> None:
        for plugin in self._served.values():
            plugin.check()

    async def _look_for_drivers(self) -> None:
        """Drivers that registered before anybody observed, or whose registration is none of ours to ask about."""
        seen: set[Path] = set()
        trouble = ""
        while True:
            try:
                found = await asyncio.to_thread(lambda: list(self._plugins.glob("*/csi.sock")))
            except OSError as error:  # a directory went away while it was read, or may not be read
                if str(error) != trouble:
                    log.warning("cannot look for drivers in %s: %s; those that were seen stay", self._plugins, error)
                trouble, now = str(error), seen
            else:
                trouble, now = "", {path for path in found if not self._is_relay(str(path))}
            for path in now - seen:
                self._registry.found(str(path), str(path))
            for path in seen - now:
                self._registry.lost(str(path))
            seen = now
            await asyncio.sleep(_LOOK_S)


class _Plugin:
    """One registration socket.

    Attributes:
        file: which file it is.
        task: what serves it.
        tried_at_s: when it was tried last.
        observed: what it offers a kubelet, if it is a CSI driver's.
    """

    def __init__(
        self, path: Path, file: FileId, registry: Registry, *, own: bool, is_relay: Callable[[str], bool]
    ) -> None:
        self.file = file
        self.task: asyncio.Task[None] | None = None
        self.tried_at_s = 0.0
        self.observed: Offer | None = None
        self._is_relay = is_relay
        self._path = path
        self._registry = registry
        self._own = own
        self._name = ""
        self._trouble = ""
        self._again = asyncio.Event()

    def check(self) -> None:
        """See whether the registration still stands; if not, it is tried again, and the plugin hears why."""
        if self._name and not self._registry.is_registered(self._name, str(self._path)):
            self._again.set()

    async def serve(self, wait_s: float) -> None:
        """Register it, again whenever that failed or the registration was lost. Cancelled when the socket is gone."""
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        failures = 0
        while True:
            self._again.clear()
            self._name = ""
            self.tried_at_s = time.monotonic()
            try:
                self._name = await self._try()
            except _Failed as failure:
                self._log(str(failure))
                failures += 1
                await asyncio.sleep(KUBELET.wait_s(failures))
            else:
                self._trouble = ""
                failures = 0
                self.check()
                await self._again.wait()

    def _log(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("the plugin at %s is not %s: %s", self._path, "registered" if self._own else "known", trouble)
        self._trouble = trouble

    async def _try(self) -> str:
        """One registration. Returns the name of what was registered, or nothing when observing."""
        client = PluginClient(str(self._path), self.file)
        try:
            kind, offer = await client.get_info()
            if not self._own:
                self._observe(kind, offer)
                return ""
            await self._register(client, kind, offer)
        except PluginSilent as error:
            raise _Failed(str(error)) from error
        finally:
            await client.close()
        log.info("driver %s is registered: %s says that it is at %s", offer.name, self._path, offer.endpoint or "there")
        return offer.name

    def _observe(self, kind: str, offer: Offer) -> None:
        if kind != PLUGIN_TYPE:
            return
        endpoint = offer.endpoint.removeprefix("unix://") or str(self._path)
        self.observed = replace(offer, endpoint=endpoint)
        if not self._is_relay(endpoint):
            self._registry.found(str(self._path), endpoint, name=offer.name)

    async def _register(self, client: PluginClient, kind: str, offer: Offer) -> None:
        refusal = await self._refusal(kind, offer)
        if refusal:
            with contextlib.suppress(PluginSilent):  # the stock registrar ends the moment it hears this
                await client.notify(registered=False, error=refusal)
            raise _Failed(refusal)
        try:
            await client.notify(registered=True)
        except PluginSilent:
            self._registry.deregister(str(self._path))
            raise

    async def _refusal(self, kind: str, offer: Offer) -> str:
        if kind != PLUGIN_TYPE:
            return f"plugins of type {shorten(kind)!r} are not taken, only {PLUGIN_TYPE}"
        try:
            await self._registry.register(offer)
        except RegistrationRefused as refusal:
            return str(refusal)
        return ""
