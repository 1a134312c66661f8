"""The value of `--serve`: a driver, its socket, and options of its proxy driver."""

from pathlib import Path

import pytest

from cloud.proxy.served_driver import ServedDriver, served_driver
from common.parsers import FileMode

SOCKET = Path("/run/csi.sock")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("d.example=unix:///run/csi.sock", ServedDriver("d.example", SOCKET, FileMode(0o660), "auto", None)),
        ("d.example=/run/csi.sock,placement=local", ServedDriver("d.example", SOCKET, FileMode(0o660), "local", None)),
        (
            "d.example=unix:///run/csi.sock,nodeid=n1,endpoint-mode=0600,placement=pinned",
            ServedDriver("d.example", SOCKET, FileMode(0o600), "pinned", "n1"),
        ),
    ],
)
def test_a_text_is_read_and_written_so_that_it_is_read_again(text: str, wanted: ServedDriver) -> None:
    assert served_driver(text) == wanted
    assert served_driver(str(wanted)) == wanted
