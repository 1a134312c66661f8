"""What the CSI spec allows in names, ids, paths and maps."""

import grpc
import pytest

from examples.dirdriver.errors import CsiError
from tests.kit.testdriver import names


def test_an_id_is_new_each_time_and_short_enough_for_the_spec() -> None:
    ids = {names.new_id("group") for _ in range(100)}

    assert len(ids) == 100
    assert max(len(item) for item in ids) <= names.STRING_LIMIT_BYTES


@pytest.mark.parametrize("name", ["dirdriver.csi", "a", "A-b.c", "x" * 63])
def test_a_driver_name_is_letters_digits_dashes_and_dots(name: str) -> None:
    assert names.is_driver_name(name)


@pytest.mark.parametrize("name", ["", "1a", "a1", "a_b", "-a", "a.", "x" * 64, "a b"])
def test_a_driver_name_that_csi_sanity_refuses_is_refused(name: str) -> None:
    assert not names.is_driver_name(name)


@pytest.mark.parametrize("name", ["pvc-1", "Ж" * 64, "tab\tand\nnewline", "x" * 128])
def test_a_volume_name_is_any_unicode_of_128_bytes(name: str) -> None:
    assert names.require_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 129, "Ж" * 65, "bell\x07", "delete\x7f", "\x9f"])
def test_a_volume_name_that_is_empty_too_long_or_holds_a_control_character_is_an_invalid_argument(name: str) -> None:
    with pytest.raises(CsiError) as failure:
        names.require_name(name)

    assert failure.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_without_limits_a_long_name_is_taken() -> None:
    assert names.require_name("x" * 5000, limits=False)


@pytest.mark.parametrize("path", ["", "relative/path", "/a/../b"])
def test_a_path_must_be_absolute_and_must_not_climb(path: str) -> None:
    with pytest.raises(CsiError):
        names.require_path("target_path", path)


def test_a_path_loses_its_trailing_slash_so_that_two_spellings_are_one_target() -> None:
    assert names.require_path("target_path", "/a/b/") == "/a/b"
    assert names.require_path("target_path", "/") == "/"


def test_a_map_has_at_most_4_kib_of_keys_and_values() -> None:
    names.check_map("parameters", {"k": "v" * 4095})

    with pytest.raises(CsiError) as failure:
        names.check_map("parameters", {"k": "v" * 4096})

    assert failure.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "vvv" not in failure.value.message


def test_without_limits_a_large_map_is_taken() -> None:
    names.check_map("parameters", {"k": "v" * 100_000}, limits=False)
