"""A rotation: moves an uplink to new certificate files, so that its session does not end with the old certificate.

The files come from elsewhere: cert-manager, or an operator. A process reads them again for each dial anyway; a rotation
makes it dial in time. Running calls finish on the former link (`common.links.uplink`).
"""

import asyncio
import time

from common.links.uplink import Uplink
from common.net.tls import TlsFiles

LOOK_S = 2.0  # between two looks, of three system calls each; files that changed within it may still be incomplete


async def follow(uplink: Uplink, files: TlsFiles) -> None:
    """Move the uplink whenever the files have another certificate than a link of it, until cancelled."""
    done: bytes | None = None
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            written = max(path.stat().st_ctime for path in (files.ca, files.cert, files.key))
            if time.time() - written < LOOK_S or not uplink.is_outdated:
                continue
            certificate = await asyncio.to_thread(files.cert.read_bytes)
        except OSError:  # one is being replaced
            continue
        if certificate != done:
            uplink.move()
        done = certificate
