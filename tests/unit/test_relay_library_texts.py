"""Whose word a status is, by its code and text."""

import pytest

from common.relay.library_texts import LIBRARY_TEXTS, made_by_library
from common.status import Code


@pytest.mark.parametrize(("code", "text"), LIBRARY_TEXTS)
def test_a_librarys_text_under_its_own_code_is_not_the_vendors(code: int, text: str) -> None:
    assert made_by_library(code, f"{text} (5242880 vs. 4194304)")
    assert not made_by_library(Code.NOT_FOUND, text)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code.UNKNOWN, "Exception calling application: disk is gone"),
        (Code.UNKNOWN, "Unexpected error in RPC handling"),
        (Code.UNIMPLEMENTED, "unknown method Imagined for service csi.v1.Controller"),
        (Code.INTERNAL, "the array answered: grpc: received message larger than max"),
        (Code.INTERNAL, ""),
        (Code.RESOURCE_EXHAUSTED, "pool is full"),
        (Code.OK, ""),
        (99, "grpc: anything"),
    ],
)
def test_what_a_driver_says_is_the_vendors(code: int, text: str) -> None:
    assert not made_by_library(code, text)
