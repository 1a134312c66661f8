"""Certificates come to their end, and nobody looks at them: the bridge itself must say so before."""

import json
from pathlib import Path
from urllib.request import urlopen

from common.net.certificate_ends import terms_in
from tests.kit.bridge import Bridge
from tests.kit.certificates import SERVER_AUTH, Authority, Pem
from tests.kit.operator import by_hand
from tests.kit.ports import free_ports
from tests.kit.stranger import Stranger, hello

SHORT_S = 60.0


def end_of(pem: Pem) -> float:
    (term,) = terms_in(pem.cert.read_bytes())
    return term.ends_at


def test_the_end_of_a_certificate_is_told_by_status_doctor_metric_and_log_before_it_comes(
    short_dir: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("hub", "hubs", file="hub", purposes=[SERVER_AUTH], lifetime_s=SHORT_S)
    theirs = authority.edge("n1", lifetime_s=SHORT_S)
    (port,) = free_ports(1)
    with Bridge(short_dir, tmp_path) as bridge:
        hub = bridge.start_hub(*mine.flags, f"--http=127.0.0.1:{port}", "--keepalive=1m")  # the node answers no ping
        with Stranger(hub.address, tls=theirs.client()) as node:
            node.greet(hello("edge", "n1"))
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                metrics = answer.read().decode()
            lines = [line for line in metrics.splitlines() if line.startswith("csi_bridge_certificate_end_")]
            told = {line.split('"')[1]: float(line.split()[-1]) for line in lines}
            assert (told["own"], told["edge"]) == (end_of(mine), end_of(theirs))
            shown = by_hand("status", f"--hub=unix://{hub.uds}").stdout
            assert f"EXPIRES: the certificate in {mine.cert} ends at " in shown
            assert "EXPIRES: certificates of connected peers (edge) end soon: n1 at " in shown
            found = json.loads(by_hand("doctor", "-o", "json", f"--hub=unix://{hub.uds}").stdout)["findings"]
            assert [one["level"] for one in found if one["what"].startswith("EXPIRES: ")] == ["warning", "warning"]
            assert hub.logged(f"the certificate in {mine.cert} ends at ")
