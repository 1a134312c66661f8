"""A driver's node service behind a socket; gRPC's own client calls it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from common.errors import CallTimeout
from common.status import Status


class SocketDriver:
    """A node driver; each call has a connection of its own."""

    def __init__(self, name: str, socket: Path, *capabilities: int) -> None:
        self.name, self.node_id = name, "n1"
        self.capabilities = frozenset(capabilities)
        self._socket = socket

    async def call(
        self, method: str, request: bytes, *, timeout_s: float, may_begin: Callable[[], bool] | None = None
    ) -> tuple[Status, bytes | None]:
        def ask() -> tuple[Status, bytes | None]:
            options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(f"unix:{self._socket}", options=options) as channel:
                call: Any = channel.unary_unary(method)  # it takes bytes, which its types do not know
                try:
                    return Status(0), call(request, timeout=timeout_s)
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                        raise CallTimeout(self.name) from error
                    return Status(error.code().value[0], error.details() or ""), None

        return await asyncio.to_thread(ask)
