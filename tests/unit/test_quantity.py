"""A quantity: what the API server takes is read, and nothing else."""

from __future__ import annotations

import pytest

from common.quantity import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10Gi", 10 << 30),
        ("1.5Gi", 3 << 29),
        ("100M", 100_000_000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        ("1500m", 2),
        ("1u", 1),
        ("0", 0),
        (".5Ki", 512),
        ("+1", 1),
        (7, 7),
    ],
)
def test_a_quantity_is_read_in_bytes_and_rounded_up(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "10 Gi", "1ki", "1GiB", "1e", "1e999", "0x10", None, True, [], "1" * 40])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_bytes(text)


@pytest.mark.parametrize(("size", "text"), [(0, "0"), (1 << 30, "1Gi"), (1536 << 20, "1536Mi"), (1000, "1000")])
def test_a_size_is_written_as_short_as_it_is_exact(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert parse_bytes(text) == size
