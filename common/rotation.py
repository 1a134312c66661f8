"""A rotation: moves an uplink to new certificate files, so that its session does not end with the old certificate.

The files come from elsewhere: cert-manager, or an operator. A process reads them again for each dial anyway; a rotation
makes it dial in time. Running calls finish on the former link (`common.uplink`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from common.errors import DialError, HandshakeRefused, NotCarried
from common.link import Link
from common.tls import TlsFiles
from common.uplink import Uplink

log = logging.getLogger("csi_bridge.rotation")

LOOK_S = 2.0
"""The interval between two looks, of three system calls each. Files that changed within it may still be incomplete."""

_ASK_AGAIN_S = 30.0
"""The wait after the hub did not take an announcement."""


async def follow(
    uplink: Uplink, files: TlsFiles, announce: Callable[[Link, TlsFiles], Awaitable[None]] | None = None
) -> None:
    """Move the uplink whenever the files have another certificate than its link, until cancelled.

    Args:
        uplink: the uplink of this process.
        files: its TLS files.
        announce: tells the hub of the next certificate. With NotCarried the link stays: an older hub takes no second
            link of a node, and ends no session with its certificate.
    """
    done: bytes | None = None
    while True:
        await asyncio.sleep(LOOK_S)
        link = uplink.link
        if link is None or _are_fresh(files) or not uplink.is_outdated:
            continue
        try:
            certificate = await asyncio.to_thread(files.cert.read_bytes)
            if certificate == done:
                continue
            if announce is not None:
                await announce(link, files)
        except NotCarried as error:
            log.info("the link stays on its former certificate: %s", error)
        except (DialError, HandshakeRefused, OSError, ValueError) as error:
            log.warning("the hub has not heard of the new certificate in %s: %s", files.cert, error)
            await asyncio.sleep(_ASK_AGAIN_S)
            continue
        else:
            uplink.move()
        done = certificate


def _are_fresh(files: TlsFiles) -> bool:
    """Whether a file was written a moment ago, or is missing: others may follow."""
    try:
        return time.time() - max(path.stat().st_ctime for path in (files.ca, files.cert, files.key)) < LOOK_S
    except OSError:
        return True
