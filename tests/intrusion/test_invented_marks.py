"""A hostile node shows an invented mark of the hub's records, so that the hub takes them for lost."""

import pytest

from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.operator import by_hand, hub_state
from tests.kit.stranger import Stranger, hello


@pytest.mark.parametrize("has_ca_key", [True, False])
def test_a_node_invents_a_loss_only_of_a_hub_without_the_cas_key_and_only_until_it_is_denied(
    bridge: Bridge, authority: Authority, has_ca_key: bool
) -> None:
    hub = bridge.start_hub(*authority.hub().flags, *([f"--ca-key={authority.key_path}"] if has_ca_key else []))
    tls = authority.edge("n1").client()
    with Stranger(hub.address, tls=tls) as node:
        signature = node.greet(hello("edge", "n1")).mark.rpartition(" ")[2]
    assert bool(signature) is has_ca_key
    for boot, invented in enumerate((f"{'0' * 16} {2**33} ", f"{'0' * 16} {2**33} {signature}"), 2):
        with Stranger(hub.address, tls=tls) as node:
            node.greet(hello("edge", "n1", boot=boot, mark=invented))
            assert bool(hub_state(hub.uds)["lost"]) is not has_ca_key
    for order in (("deny", "n1"), ("trust",)):
        assert by_hand(*order, f"--hub=unix://{hub.uds}").returncode == 0
    assert not hub_state(hub.uds)["lost"]
