"""New certificate files reach the hub on a second link, before the old certificate ends and with no call lost."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.links import rotation
from common.links.listener import Listener
from common.links.rotation import follow
from common.links.uplink import Dialling, Uplink
from common.messages import Reason
from common.net.endpoint import hub_endpoint
from common.net.tls import TlsFiles, TlsIdentity
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, Side
from common.status import Origin
from tests.kit.certificates import Authority, Pem
from tests.kit.linked import Peer
from tests.kit.waiting import settle, until

LIMITS = Limits(hello_timeout_s=30.0)


class End(Peer):
    """An end of links. A hub accepts; it notes the keys of its peers."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin
        self.links: list[Link] = []
        self.keys: list[str] = []

    def greeted(self, link: Link) -> None:
        former = self.links[-1] if self.links else None
        self.links.append(link)
        if self.origin is Origin.HUB:
            self.keys.append(link.peer_identity.key)
            link.accept(1)
            if former is not None:
                former.drain("it has a newer link")


class CertifiedUplink:
    """A hub, and an uplink whose certificate is in files."""

    def __init__(self, hub: End, files: TlsFiles, authority: Authority) -> None:
        self.hub, self.files, self.authority = hub, files, authority

    def put(self, pem: Pem, *parts: str) -> None:
        for part in parts or ("cert", "key"):
            shutil.copy(getattr(pem, part), getattr(self.files, part))


async def some_looks() -> None:
    await asyncio.sleep(5 * rotation.LOOK_S)


@pytest.fixture
async def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CertifiedUplink]:
    monkeypatch.setattr(rotation, "LOOK_S", 0.02)
    authority = Authority(tmp_path)
    theirs, mine = authority.hub(), authority.edge("n1")
    files = TlsFiles(authority.path, tmp_path / "tls.crt", tmp_path / "tls.key")
    hub = End(Origin.HUB)
    tls = TlsIdentity(TlsFiles(theirs.ca, theirs.cert, theirs.key), server=True)
    greeting = introduce("hub", "hub", instance="h")
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, Side(greeting, hub, LIMITS), tls=tls.context)
    await listener.start()
    for source, target in ((mine.cert, files.cert), (mine.key, files.key)):
        shutil.copy(source, target)
    uplink = Uplink(
        [hub_endpoint(f"wss://{listener.address}")],
        End(Origin.EDGE),
        Dialling(
            hello=lambda: introduce("edge", "n1", instance="i", boot=1),
            limits=LIMITS,
            tls=TlsIdentity(files, server=False),
        ),
    )
    found = CertifiedUplink(hub, files, authority)
    tasks = [asyncio.create_task(uplink.run()), asyncio.create_task(follow(uplink, files))]
    try:
        await until(lambda: uplink.link is not None)
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.close()
        await settle()


async def test_new_files_are_used_on_a_second_link_also_with_the_same_key(certified: CertifiedUplink) -> None:
    new = certified.authority.edge("n1")
    certified.put(new)
    await until(lambda: len(certified.hub.links) == 2)
    assert certified.hub.keys[1] == new.fingerprint != certified.hub.keys[0]
    assert certified.hub.links[1].peer.beside
    assert await certified.hub.links[0].wait_closed() == (
        Reason.DRAINED,
        "it has a newer link, and every call is finished",
    )
    certified.put(certified.authority.reissue(new, "n1"))
    await until(lambda: len(certified.hub.links) == 3)
    assert certified.hub.keys[2] == certified.hub.keys[1]


async def test_files_that_do_not_fit_together_yet_or_are_only_written_again_change_nothing(
    certified: CertifiedUplink,
) -> None:
    certified.files.cert.write_bytes(certified.files.cert.read_bytes())
    await some_looks()
    new = certified.authority.edge("n1")
    certified.put(new, "cert")
    await some_looks()
    assert len(certified.hub.links) == 1
    certified.put(new, "key")
    await until(lambda: len(certified.hub.links) == 2)
