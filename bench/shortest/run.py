"""The start of each program. TLS is mutual, with the files of CA, certificate and key.

python bench/shortest/run.py hub UDS PORT [CA CERTIFICATE KEY]
python bench/shortest/run.py agent DRIVER-SOCKET PORT NODE [CA CERTIFICATE KEY]
python bench/shortest/run.py proxy ENDPOINT UDS DRIVER NODE
"""

import asyncio
import gc
import ssl
import sys
from pathlib import Path

import uvloop

sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench.floor import tls_context  # noqa: E402  # a script outside the packages


def _context(side: int, files: tuple[str, ...]) -> ssl.SSLContext | None:
    return tls_context(side, files) if files else None


async def hub(uds: str, port: str, *files: str) -> None:
    from bench.shortest.hub import FromAgent, FromProxy  # noqa: PLC0415  # each program loads its own modules only

    loop = asyncio.get_running_loop()
    await loop.create_unix_server(FromProxy, uds)
    await loop.create_server(FromAgent, "127.0.0.1", int(port), ssl=_context(ssl.PROTOCOL_TLS_SERVER, files))


async def agent(driver: str, port: str, node: str, *files: str) -> None:
    from bench.shortest.agent import ToDriver, ToHub  # noqa: PLC0415  # as above

    loop = asyncio.get_running_loop()
    _, to_driver = await loop.create_unix_connection(ToDriver, driver)
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    await loop.create_connection(lambda: ToHub(node, to_driver), "127.0.0.1", int(port), ssl=context)


async def proxy(endpoint: str, uds: str, driver: str, node: str) -> None:
    from bench.shortest.proxy import Caller, ToHub  # noqa: PLC0415  # as above

    loop = asyncio.get_running_loop()
    _, to_hub = await loop.create_unix_connection(lambda: ToHub(driver, node), uds)
    await loop.create_unix_server(lambda: Caller(to_hub), endpoint)


async def main(program: str, *words: str) -> None:
    """Run a program until its process is ended."""
    await {"hub": hub, "agent": agent, "proxy": proxy}[program](*words)
    gc.freeze()  # as the bridge does
    gc.set_threshold(20_000)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
