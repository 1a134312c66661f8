"""csi-sanity on the example driver: every spec that is not skipped passes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.peers.sanity import SanityReport
from tests.kit.processes import Supervisor, listens_on

pytestmark = pytest.mark.slow  # what goes through the bridge is in make test


@pytest.mark.parametrize("access", ["mount", "block"])
def test_the_example_driver_passes_every_spec_of_what_it_can(
    short_dir: Path, supervisor: Supervisor, sanity: Callable[..., SanityReport], access: str
) -> None:
    socket = short_dir / "vendor.sock"
    flags = (f"--endpoint=unix://{socket}", f"--state-dir={short_dir / 'state'}", "--node-id=n1")
    program = Path(sys.executable).with_name("dirdriver")
    supervisor.start("dirdriver", [program, *flags], ready=lambda: listens_on(socket))

    report = sanity(endpoint=socket, flags=(f"--csi.testvolumeaccesstype={access}",))

    assert not report.failed, "\n\n".join(report.failed.values())
    assert report.counts["passed"] >= 60
