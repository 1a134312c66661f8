"""Sizes as people write them."""

import pytest

from examples.dirdriver.sizes import GIB, MIB
from tests.kit.testdriver import units


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("1Gi", GIB), ("1G", GIB), ("2 MiB", 2 * MIB), ("3ti", 3072 * GIB)]
)
def test_a_size_is_bytes_or_a_number_with_a_binary_unit(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1.5Gi", "-1", "1Xi", "Gi", "1GiGi"])
def test_what_is_no_size_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        units.parse_size(text)


@pytest.mark.parametrize(("size", "text"), [(GIB, "1Gi"), (1536 * MIB, "1536Mi"), (1000, "1000 bytes"), (0, "0 bytes")])
def test_a_size_is_shown_in_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert units.show_size(size) == text
