"""A quantity: what the API server takes is read, and nothing else."""

import pytest

from common.objects.quantity import format_bytes, parse_bytes


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
        ("7.999999999Ei", 9_223_372_035_701_854_304),
    ],
)
def test_a_quantity_is_read_in_bytes_and_rounded_up(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "x", "10 Gi", "1ki", "1GiB", "1e", "1e999", "0x10", None, True, [], "1" * 40,
     "-1", -1, 2**63, "8Ei", "1gi", "\u0661", "hunter2"],
)  # fmt: skip
def test_what_is_no_size_is_refused_and_not_shown(text: object) -> None:
    with pytest.raises(ValueError, match=r"^it is not a quantity such as 10Gi, from 0 to less than 8Ei$"):
        parse_bytes(text)


@pytest.mark.parametrize(("size", "text"), [(0, "0"), (1 << 30, "1Gi"), (1536 << 20, "1536Mi"), (1000, "1000")])
def test_a_size_is_written_as_short_as_it_is_exact(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert parse_bytes(text) == size
