"""One driver of this node, for the parts that mount its volumes or report it to the cloud."""

import asyncio
from collections.abc import Callable

from common.errors import DriverMissing, VendorBroken
from common.sockets import FileId, file_id
from common.status import Status
from edge.drivers import Driver
from edge.registry.registration import Registration


class NodeDriver:
    """One driver; the same object as long as the driver is known. Its properties are the latest answers."""

    def __init__(self, registration: Registration, driver: Driver, node: str) -> None:
        self.registration = registration
        self.driver = driver
        # The identity of its registration socket's file; None if it has not registered since the agent started.
        self.file: FileId = None
        self.gone_at_s: float | None = None  # the monotonic time at which its registration socket vanished, or None
        self._node = node

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def capabilities(self) -> frozenset[int]:
        """Numbers of NodeServiceCapability.RPC."""
        return self.registration.info.capabilities

    @property
    def registered(self) -> bool:
        """Whether it registered since the agent started and has not left, or an operator named it."""
        return self.gone_at_s is None and (self.file is not None or not self.registration.socket)

    async def call(
        self, method: str, request: bytes, *, timeout_s: float, may_begin: Callable[[], bool] | None = None
    ) -> tuple[Status, bytes | None]:
        """Call the driver, if `may_begin` allows it when the request is about to leave. Raises CallError."""
        if self.gone_at_s is not None and file_id(self.registration.endpoint) is None:
            raise DriverMissing(self.name, self._node)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.driver.unary(method, request, timeout_s=timeout_s, to=self.name, may_begin=may_begin)
        except TimeoutError:
            why = f"it did not answer {method} within {timeout_s:g} s"
            raise VendorBroken(self.name, self._node, why) from None
