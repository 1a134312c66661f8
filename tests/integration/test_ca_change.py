"""The CA is changed while the bridge runs, with two CAs in force: the steps of docs/trust.md."""

import ssl
from pathlib import Path

import pytest

from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority, Pem, bundle
from tests.kit.stranger import HungUp, Stranger, hello
from tests.kit.vendor import Vendor


class Files:
    """The TLS files of one process, each replaced as a whole."""

    def __init__(self, directory: Path, pem: Pem) -> None:
        directory.mkdir()
        self._directory = directory
        self.pem = Pem(directory / "ca.crt", directory / "tls.crt", directory / "tls.key")
        self.trust(pem.ca)
        self.show(pem)

    def trust(self, authorities: Path) -> None:
        self._put(authorities, self.pem.ca)

    def show(self, pem: Pem) -> None:
        self._put(pem.key, self.pem.key)
        self._put(pem.cert, self.pem.cert)

    def _put(self, source: Path, target: Path) -> None:
        new = self._directory / "new"
        new.write_bytes(source.read_bytes())
        new.replace(target)


def test_the_ca_is_changed_with_two_in_force_and_the_node_is_served_at_each_step(
    short_dir: Path, tmp_path: Path, vendor: Vendor
) -> None:
    old, new = Authority(tmp_path, name="old CA"), Authority(tmp_path, name="new CA")
    hub_files, node_files = Files(tmp_path / "hub", old.hub()), Files(tmp_path / "n1", old.edge("n1"))
    with Bridge(short_dir, tmp_path) as bridge:
        hub = bridge.start_hub(*hub_files.pem.flags)
        node = bridge.start_agent("n1", vendor.socket, flags=[f"--hub=wss://{hub.address}", *node_files.pem.flags])
        sidecar = bridge.start_proxy("vendor.test").sidecar()
        bridge.wait_routed(sidecar)

        def serves_with_a_new_link() -> None:
            """The node is served over its link, and over the next one."""
            assert sidecar.call("GetCapacity").ok
            node.kill()
            node.start()
            bridge.wait_routed(sidecar)

        both = bundle(tmp_path / "both.pem", old, new)
        hub_files.trust(both)
        serves_with_a_new_link()
        node_files.trust(both)
        serves_with_a_new_link()
        hub_files.show(new.hub())
        serves_with_a_new_link()
        node_files.show(new.edge("n1"))
        serves_with_a_new_link()
        kept = hub.logged("the link of edge n1")
        hub_files.trust(new.path)
        hub.wait_logged("taken out of")
        assert hub.logged("the link of edge n1") == kept
        node_files.trust(new.path)
        serves_with_a_new_link()

        late = old.edge("n2")
        tls = Pem(new.path, late.cert, late.key).client()
        with Stranger(hub.address, tls=tls) as peer, pytest.raises((HungUp, ssl.SSLError, AssertionError)):
            peer.greet(hello("edge", "n2"))
        hub.wait_logged("its certificate is not trusted")
