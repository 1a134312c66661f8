"""Faults: how they are written, added up, and taken from flags and file."""

from pathlib import Path

import grpc
import pytest

from tests.kit.testdriver.faults import NO_FAULT, Fault, Faults, parse_fault, parse_faults


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("CreateVolume=delay:25s", Fault(delay_s=25)),
        ("CreateVolume=delay:300ms", Fault(delay_s=0.3)),
        ("CreateVolume=delay:1.5", Fault(delay_s=1.5)),
        ("CreateVolume=delay:2m", Fault(delay_s=120)),
        ("CreateVolume=error:INTERNAL:disk: on fire", Fault(error=(grpc.StatusCode.INTERNAL, "disk: on fire"))),
        ("CreateVolume=error:ABORTED", Fault(error=(grpc.StatusCode.ABORTED, "injected ABORTED"))),
        ("CreateVolume=hang", Fault(hang=True)),
        ("CreateVolume=crash-before", Fault(crash="before")),
        ("CreateVolume=crash-after", Fault(crash="after")),
        ("CreateSnapshot=non-idempotent", Fault(forget=True)),
        (" Probe = off ", NO_FAULT),
    ],
)
def test_each_kind_of_fault_is_read(text: str, fault: Fault) -> None:
    assert list(parse_faults([text]).values()) == [fault]


def test_several_faults_of_one_method_add_up() -> None:
    faults = parse_faults(["CreateVolume=delay:2s", "CreateVolume=crash-after", "DeleteVolume=hang"])

    assert faults == {"CreateVolume": Fault(delay_s=2, crash="after"), "DeleteVolume": Fault(hang=True)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("CreateVolume", "write METHOD=FAULT"),
        ("CreateVolumes=hang", "is no CSI method"),
        ("CreateVolume=slow", "is no fault"),
        ("CreateVolume=hang:2s", "is no fault"),
        ("CreateVolume=delay:soon", "is no delay"),
        ("CreateVolume=error:OK:fine", "is no gRPC error code"),
        ("CreateVolume=error:BROKEN:x", "is no gRPC error code"),
        ("DeleteVolume=non-idempotent", "cannot be non-idempotent"),
        ("*=non-idempotent", "cannot be non-idempotent"),
    ],
)
def test_what_is_no_fault_is_refused_with_a_hint(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_fault(text)


def test_a_methods_own_fault_goes_before_the_fault_of_all_methods(tmp_path: Path) -> None:
    faults = Faults(["*=delay:1s", "Probe=hang"], tmp_path / "faults")

    assert faults.of("Probe") == Fault(hang=True)
    assert faults.of("CreateVolume") == Fault(delay_s=1)


def test_the_file_replaces_what_the_flags_say_of_a_method_and_its_removal_brings_it_back(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    faults = Faults(["CreateVolume=hang", "Probe=hang"], file)

    file.write_text("# all well again\nCreateVolume=off\n\n")
    lifted = faults.of("CreateVolume"), faults.of("Probe")
    file.unlink()

    assert lifted == (NO_FAULT, Fault(hang=True))
    assert faults.of("CreateVolume") == Fault(hang=True)


def test_a_change_of_the_file_counts_from_the_next_call_on(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    faults = Faults([], file)
    seen = [faults.of("Probe")]

    for text in ("Probe=hang", "Probe=delay:1s", ""):
        file.write_text(text)
        seen.append(faults.of("Probe"))

    assert seen == [NO_FAULT, Fault(hang=True), Fault(delay_s=1), NO_FAULT]


def test_a_file_that_does_not_parse_leaves_the_last_faults_in_force_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "faults"
    faults = Faults([], file)
    file.write_text("Probe=hang")
    faults.of("Probe")

    file.write_text("Probe=ha")

    assert faults.of("Probe") == Fault(hang=True)
    assert "'ha' is no fault" in caplog.text
