"""Stands in for kube-proxy and the cluster's DNS: each Service has an address of this host, and a name.

    python -m tests.e2e.installed.services KUBECONFIG DNS-ADDRESS API-PORT [NAME=SERVICE.NAMESPACE]...

Connections to a port of a Service, or to its node port, go to one of its ready pods. Each further NAME has the address
of a Service, as if somebody had written it into the DNS of the company. The API server's own Service leads to API-PORT
of 127.0.0.1.
"""

import asyncio
import contextlib
import functools
import json
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

from tests.e2e.installed.network import add_address

_PERIOD_S = 0.5
_TRIES = 10  # a connection waits so often for a target: a pod may be ready before this program knows it
_ZONE = "cluster.local"
_API_SERVER = ("default", "kubernetes")

Object = dict[str, Any]
Place = tuple[str, int]


class Services:
    def __init__(self, kubectl: list[str], api_port: int, names: dict[str, str]) -> None:
        self._kubectl = kubectl
        self._api_port = api_port
        self._names = names
        self.addresses: dict[str, str] = {}  # name in DNS → address
        self._targets: dict[Place, Place | None] = {}
        self._listening: dict[Place, asyncio.Server] = {}

    async def follow(self) -> None:
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):
                await self._look()
            await asyncio.sleep(_PERIOD_S)

    async def _look(self) -> None:
        command = [*self._kubectl, "get", "services,endpointslices", "--all-namespaces", "--output=json"]
        found = json.loads(await asyncio.to_thread(subprocess.check_output, command))["items"]
        slices = [it for it in found if it["kind"] == "EndpointSlice"]
        addresses, targets = {}, {}
        for service in (it for it in found if it["kind"] == "Service"):
            meta, address = service["metadata"], service["spec"].get("clusterIP", "None")
            if address == "None":
                continue
            name = f"{meta['name']}.{meta['namespace']}"
            addresses[f"{name}.svc.{_ZONE}"] = address
            addresses |= {other: address for other, it in self._names.items() if it == name}
            for port in service["spec"]["ports"]:
                target = self._target(service, port, slices)
                targets |= {(address, number): target for number in (port["port"], port.get("nodePort")) if number}
        self.addresses, self._targets = addresses, targets
        for place in self._targets.keys() - self._listening.keys():
            add_address(place[0])
            forward = functools.partial(self._forward, place)
            self._listening[place] = await asyncio.start_server(forward, *place)
        for place in self._listening.keys() - self._targets.keys():
            self._listening.pop(place).close()

    def _target(self, service: Object, port: Object, slices: list[Object]) -> Place | None:
        meta = service["metadata"]
        if (meta["namespace"], meta["name"]) == _API_SERVER:
            return "127.0.0.1", self._api_port
        return random.choice([*_ready(meta, port, slices)] or [None])

    async def _forward(self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(_TRIES):
            if (target := self._targets.get(place)) is not None:
                break
            await asyncio.sleep(_PERIOD_S)
        try:
            if target is None:
                return
            there = await asyncio.open_connection(*target)
        except OSError:
            return
        finally:
            if target is None:
                writer.close()
        await asyncio.gather(_pour(reader, there[1]), _pour(there[0], writer))


def _ready(meta: Object, port: Object, slices: list[Object]) -> Iterator[Place]:
    """Where the ready pods of a Service take connections to one of its ports."""
    for each in slices:
        label = each["metadata"].get("labels", {}).get("kubernetes.io/service-name")
        if (each["metadata"]["namespace"], label) != (meta["namespace"], meta["name"]):
            continue
        numbers = [it["port"] for it in each["ports"] or () if it.get("name", "") == port.get("name", "")]
        for endpoint in each["endpoints"] or ():
            if endpoint["conditions"].get("ready"):
                yield from ((endpoint["addresses"][0], number) for number in numbers)


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry what comes to the other side, and its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class Names(asyncio.DatagramProtocol):
    """Answers questions for the IPv4 address of a name: RFC 1035, one question, one answer."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        labels, at = [], 12
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode())
            at += 1 + length
        question = data[12 : at + 5]
        (kind,) = struct.unpack("!H", data[at + 1 : at + 3])
        address = self._services.addresses.get(".".join(labels).lower())
        answer = b""
        if address and kind == 1:
            answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address)
        flags = 0x8580 | (0 if address else 3)
        head = data[:2] + struct.pack("!HHHHH", flags, 1, 1 if answer else 0, 0, 0)
        self._transport.sendto(head + question + answer, addr)


async def _main(kubeconfig: str, kubectl: str, dns: str, api_port: str, *names: str) -> None:
    told = dict(it.split("=", 1) for it in names)
    services = Services([kubectl, f"--kubeconfig={kubeconfig}"], int(api_port), told)
    add_address(dns)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: Names(services), local_addr=(dns, 53))
    await services.follow()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
