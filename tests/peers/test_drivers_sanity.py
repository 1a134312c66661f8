"""csi-sanity on the example driver and on the test driver: every spec that is not skipped passes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.processes import listens_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.peers.sanity import SanityReport
    from tests.kit.peers.testdriver import RunningDriver
    from tests.kit.processes import Supervisor

pytestmark = pytest.mark.slow  # what goes through the bridge is in make test

_SNAPSHOT_TOPOLOGY = (
    "CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements"
)
"""csi-sanity 5.6.0 compares the topology that it sent with the one that came back as Go structs, private fields too;
the sent one has its cached size, the received one has none, so no driver that reports a topology passes."""

_ALL_ON = ("--mutable-parameter=iops", "--max-volumes-per-node=4")


@pytest.mark.parametrize("access", ["mount", "block"])
def test_the_example_driver_passes_every_spec_of_what_it_can(
    short_dir: Path, supervisor: Supervisor, sanity: Callable[..., SanityReport], access: str
) -> None:
    socket = short_dir / "vendor.sock"
    flags = (f"--endpoint=unix://{socket}", f"--state-dir={short_dir / 'state'}", "--node-id=n1")
    program = Path(sys.executable).with_name("dirdriver")
    supervisor.start("dirdriver", [program, *flags], ready=lambda: listens_on(socket))

    report = sanity(endpoint=socket, flags=(f"--csi.testvolumeaccesstype={access}",))

    assert report.failed == {}
    assert report.counts["passed"] >= 60


@pytest.fixture
def run(
    short_dir: Path, testdriver: Callable[..., RunningDriver], sanity: Callable[..., SanityReport]
) -> Callable[..., SanityReport]:
    """Runs csi-sanity on a test driver with these flags."""
    mutable = short_dir / "mutable.yaml"
    mutable.write_text("iops: high\n")
    sanity_flags = (f"--csi.testvolumemutableparameters={mutable}", "--csi.testnodevolumeattachlimit")

    def report(*driver_flags: str, more: tuple[str, ...] = ()) -> SanityReport:
        driver = testdriver(flags=driver_flags)
        return sanity(endpoint=driver.socket, flags=(*sanity_flags, *more))

    return report


@pytest.mark.parametrize("filesystem", ["directory", "image"])
@pytest.mark.parametrize("access", ["mount", "block"])
def test_with_every_switch_on_all_specs_but_one_run_and_pass(
    run: Callable[..., SanityReport], filesystem: str, access: str
) -> None:
    report = run(
        *_ALL_ON,
        f"--fs={filesystem}",
        "--no-snapshot-topology",
        more=(f"--csi.testvolumeaccesstype={access}",),
    )

    assert report.failed == {}
    assert report.counts == {"passed": 101, "skipped": 1, "pending": 1}
    assert report.skipped == {_SNAPSHOT_TOPOLOGY}


def test_a_topology_of_snapshots_fails_the_one_spec_that_compares_cached_sizes(
    run: Callable[..., SanityReport],
) -> None:
    report = run(*_ALL_ON)

    assert report.counts == {"passed": 101, "failed": 1, "pending": 1}
    assert "sizeCache: 0" in report.failed[_SNAPSHOT_TOPOLOGY]


@pytest.mark.parametrize(
    "flags",
    [
        ("--no-attach",),
        ("--no-stage",),
        ("--no-topology",),
        ("--no-attach", "--no-stage", "--no-topology"),
    ],
    ids=["no-attach", "no-stage", "no-topology", "none"],
)
def test_with_switches_off_their_specs_are_skipped_and_the_others_pass(
    run: Callable[..., SanityReport], flags: tuple[str, ...]
) -> None:
    report = run(*flags, "--no-snapshot-topology")

    assert report.failed == {}
    assert len(report.skipped) > 1
