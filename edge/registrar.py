"""Takes the registrations of a node's drivers, as a kubelet's plugin manager does.

Rules (kubernetes pkg/kubelet/pluginmanager; docs/csi-contract.md#how-a-driver-registers-with-a-node):

* A socket in the registry directory is a plugin that wants to register. A re-created socket registers again; a removed
  one is deregistered. Each has its own task, so no plugin delays another.
* The steps are GetInfo, the checks, the registration, then NotifyRegistrationStatus with the result. A failure is
  retried with the kubelet's back-off. A new file at the path is tried at once.
* A plugin's trouble is logged once, until it changes.
* As an observer beside a kubelet, it only calls GetInfo and looks for drivers' sockets; the kubelet notifies the
  plugins. It ignores the sockets of the agent's own relay.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from common.net.sockets import FileId
from edge.registry.driver_registry import DriverRegistry
from edge.registry.plugin_client import PluginClient
from edge.registry.plugin_sockets import looks
from edge.registry.registration import PLUGIN_TYPE, NotRegistered, PluginOffer, shorten
from edge.wanted.tries import KUBELET

log = logging.getLogger("csi_bridge.edge.registrar")

_REGISTRY = "plugins_registry"
_PLUGINS = "plugins"

LOOK_S = 5.0  # The interval at which an observer searches `plugins`. That is not watched: volumes are mounted below it.


class Registrar:
    """Serves the registry directory of one kubelet's root directory. `run()` it as a task."""

    def __init__(
        self,
        root: Path,
        registry: DriverRegistry,
        *,
        is_relay: Callable[[str], bool] = lambda _endpoint: False,
    ) -> None:
        self.directory = root / _REGISTRY
        self._plugins = root / _PLUGINS
        self.registry = registry
        self.is_relay = is_relay
        self._served: dict[Path, _Plugin] = {}
        self._unread: Mapping[Path, str] = {}
        registry.subscribe(self._changed)

    @property
    def observed(self) -> list[PluginOffer]:
        return [plugin.observed for _, plugin in sorted(self._served.items()) if plugin.observed is not None]

    async def run(self) -> None:
        # registrations stay when it is cancelled
        log.info("%s plugins in %s", "taking registrations of" if self.registry.own else "observing", self.directory)
        async with asyncio.TaskGroup() as tasks:
            if not self.registry.own:
                tasks.create_task(self._look_for_drivers(), name=f"look through {self._plugins}")
            async with contextlib.aclosing(looks(self.directory)) as found:
                async for seen in found:
                    self._name_unread(seen.unread)
                    await self._compare_plugins(tasks, seen.sockets)

    async def _compare_plugins(self, tasks: asyncio.TaskGroup, sockets: Mapping[Path, FileId]) -> None:
        # deregistrations come first, as in the kubelet's reconciler
        for path, plugin in list(self._served.items()):
            if sockets.get(path) != plugin.file:
                await self._end_plugin(path)
        for path, file in sorted(sockets.items()):
            if path not in self._served:
                plugin = self._served[path] = _Plugin(path, file, self)
                plugin.task = tasks.create_task(plugin.serve(), name=f"plugin at {path}")

    async def _end_plugin(self, path: Path) -> None:
        plugin = self._served.pop(path)
        assert plugin.task is not None
        plugin.task.cancel()
        await asyncio.wait([plugin.task])
        if self.registry.own:
            self.registry.deregister(str(path))
        else:
            self.registry.lost(str(path))

    def _name_unread(self, unread: Mapping[Path, str]) -> None:
        for path, why in unread.items():
            if self._unread.get(path) != why:
                log.warning("%s %s", path, why)
        self._unread = unread

    def _changed(self) -> None:
        for plugin in self._served.values():
            plugin.check()

    async def _look_for_drivers(self) -> None:
        # those that registered before the observer started, or that a kubelet does not know
        seen: set[Path] = set()
        trouble = ""
        while True:
            try:
                found = await asyncio.to_thread(lambda: list(self._plugins.glob("*/csi.sock")))
            except OSError as error:  # a directory vanished meanwhile, or may not be read
                if str(error) != trouble:
                    log.warning("cannot look for drivers in %s: %s; those that were seen stay", self._plugins, error)
                trouble = str(error)
                now = seen
            else:
                trouble = ""
                now = {path for path in found if not self.is_relay(str(path))}
            for path in now - seen:
                self.registry.found(str(path), str(path))
            for path in seen - now:
                self.registry.lost(str(path))
            seen = now
            await asyncio.sleep(LOOK_S)


class _Plugin:
    def __init__(self, path: Path, file: FileId, registrar: Registrar) -> None:
        self.file = file
        self.task: asyncio.Task[None] | None = None
        self.observed: PluginOffer | None = None  # its offer to a kubelet, if it is a CSI driver's
        self._path = path
        self._registrar = registrar
        self._registry = registrar.registry
        self._own = registrar.registry.own
        self._name = ""
        self._trouble = ""
        self._again = asyncio.Event()

    def check(self) -> None:
        if self._name and not self._registry.is_registered(self._name, str(self._path)):
            self._again.set()

    async def serve(self) -> None:
        failures = 0
        while True:
            self._again.clear()
            self._name = ""
            try:
                self._name = await self._try()
            except NotRegistered as failure:
                self._log(str(failure))
                failures += 1
                await asyncio.sleep(KUBELET.wait_s(failures))
            else:
                self._trouble = ""
                failures = 0
                # While the plugin was tried, `check` had no name to look up: another socket may have taken it since.
                self.check()
                await self._again.wait()

    def _log(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("the plugin at %s is not %s: %s", self._path, "registered" if self._own else "known", trouble)
        self._trouble = trouble

    async def _try(self) -> str:
        client = PluginClient(str(self._path), self.file)
        try:
            kind, offer = await client.get_info()
            if not self._own:
                self._observe(kind, offer)
                return ""
            await self._register(client, kind, offer)
        finally:
            await client.close()
        log.info("driver %s is registered: %s says that it is at %s", offer.name, self._path, offer.endpoint or "there")
        return offer.name

    def _observe(self, kind: str, offer: PluginOffer) -> None:
        if kind != PLUGIN_TYPE:
            return
        endpoint = offer.endpoint.removeprefix("unix://") or str(self._path)
        self.observed = replace(offer, endpoint=endpoint)
        if not self._registrar.is_relay(endpoint):
            self._registry.found(str(self._path), endpoint, name=offer.name)

    async def _register(self, client: PluginClient, kind: str, offer: PluginOffer) -> None:
        refusal = await self._refusal(kind, offer)
        if refusal:
            with contextlib.suppress(NotRegistered):  # the stock registrar exits as soon as it gets this
                await client.notify(registered=False, error=refusal)
            raise NotRegistered(refusal)
        try:
            await client.notify(registered=True)
        except NotRegistered:
            self._registry.deregister(str(self._path))
            raise

    async def _refusal(self, kind: str, offer: PluginOffer) -> str:
        if kind != PLUGIN_TYPE:
            return f"plugins of type {shorten(kind)!r} are not taken, only {PLUGIN_TYPE}"
        try:
            await self._registry.register(offer)
        except NotRegistered as refusal:
            return str(refusal)
        return ""
