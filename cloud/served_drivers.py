"""The served drivers of a hub: proxy drivers inside the hub's process, for sidecars of the same pod or host.

Rules:

* Each is an ordinary proxy driver (`cloud.csi_proxy_driver`). It has a local link (`common.links.local_dial`) to this
  hub, and dials each `--hub-endpoint` with the hub's certificate. So its calls go to the hub that leads, and each hub
  treats it as any other one: admission, denials, audit log and drain know it by its name.
* On the local link its identity is the user id of the hub's process, as on the hub's UNIX socket.
* The metrics of the hub that leads count its calls. Those that it counts itself are the same calls, so nobody scrapes
  them.
* It keeps nothing on the disk: the records have the driver's identity. Until a hub that leads has told it, its `Probe`
  says that it is not ready: stock sidecars wait for that, connected, before they elect a leader. Without a socket they
  would end after 30 s.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import Any

from cloud.csi_proxy_driver import Serving, serve_sidecars
from cloud.hub_settings import HubSettings
from cloud.proxy.driver_settings import MAX_CONNECTIONS, DriverSettings
from cloud.proxy.identity_cache import IdentityCache
from cloud.proxy.served_driver import ServedDriver
from cloud.standby import Standby
from common.errors import SettingsError
from common.links.dial import dial as dial_hub
from common.links.local_dial import LocalPort
from common.messages import Hello
from common.net.endpoint import Endpoint
from common.net.peer import Peer
from common.net.settings import ProcessSettings
from common.observe.metrics import Metrics
from common.observe.tasks import Tasks
from common.session.limits import Limits
from common.session.link import Link, LinkHandler, Side


@asynccontextmanager
async def serving(settings: HubSettings, standby: Standby, tasks: Tasks) -> AsyncIterator[list[Serving]]:
    """Serve the sockets of `--serve` inside this block. Raises SettingsError.

    Their links are made when the hub's listeners are open.
    """
    peer = Peer(f"this process, pid {os.getpid()} uid {os.geteuid()}", local=True, uid=os.geteuid())
    port = LocalPort(Side(standby.hello, standby, settings.limits()), peer=peer)

    async def dial(endpoint: Endpoint, hello: Hello, handler: LinkHandler, *, limits: Limits, **how: Any) -> Link:
        if endpoint.path == settings.uds:
            return await port.dial(hello, handler, limits=limits)
        return await dial_hub(endpoint, hello, handler, limits=limits, **how)

    async with AsyncExitStack() as opened:
        found = []
        for served in settings.serve:
            try:
                own = _settings_of(served, settings)
                cache = IdentityCache(None, served.name)
                found.append(await opened.enter_async_context(serve_sidecars(own, cache, Metrics(), dial=dial)))
            except SettingsError as error:
                why = error.why if str(error.value) in error.why else f"{error.value} {error.why}"
                raise SettingsError("--serve", str(served), why) from error

        def start() -> None:
            for each in found:
                each.start(tasks)

        standby.on_listen = start
        yield found


def _settings_of(served: ServedDriver, hub: HubSettings) -> DriverSettings:
    shared = {field.name: getattr(hub, field.name) for field in fields(ProcessSettings)}
    return DriverSettings(
        **shared,
        drivername=served.name,
        endpoint=served.endpoint,
        endpoint_mode=served.endpoint_mode,
        hub_endpoint=(Endpoint(f"unix://{hub.uds}", path=hub.uds), *hub.hub_endpoint),
        proxy=None,
        nodeid=served.nodeid,
        placement=served.placement,
        max_connections=MAX_CONNECTIONS,
        state_dir=hub.state_dir,
    )
