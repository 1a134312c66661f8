"""The seal: a key file is read in both forms, made once, and a wrong one is named."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from cloud.manifests_part import _sealer
from common.errors import SettingsError
from common.sealing import KEY_BYTES, Sealer, make_key, read_key

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(KEY_BYTES))


@pytest.mark.parametrize(
    "content", [KEY, base64.b64encode(KEY), base64.b64encode(KEY) + b"\n", b" \n" + b"A" * 43 + b"=\n"]
)
def test_a_key_is_raw_or_base64(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    assert len(read_key(tmp_path / "key")) == KEY_BYTES


@pytest.mark.parametrize("content", [b"", b"short", b"A" * 44, b"A" * 64, base64.b64encode(b"x" * 31), b"\xff" * 33])
def test_another_content_is_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ValueError, match="holds no key: 32 bytes, as they are or as base64"):
        read_key(tmp_path / "key")


def test_a_made_key_is_the_owners_alone(tmp_path: Path) -> None:
    assert make_key(tmp_path / "key") == read_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_body_is_sealed_for_one_thing_and_with_one_key() -> None:
    sealed = Sealer(KEY).seal(b"body", bound=b"a")
    assert b"body" not in sealed
    assert sealed != Sealer(KEY).seal(b"body", bound=b"a")
    assert Sealer(KEY).unseal(sealed, bound=b"a") == b"body"
    for sealer, data, bound in (
        (Sealer(KEY), sealed, b"b"),
        (Sealer(KEY[::-1]), sealed, b"a"),
        (Sealer(KEY), sealed[:-1], b"a"),
        (Sealer(KEY), b"", b"a"),
    ):
        with pytest.raises(ValueError, match="another key, or is damaged"):
            sealer.unseal(data, bound=bound)


def test_a_key_that_the_operator_names_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--seal-key=.*there is no such file.*openssl rand -base64 32"):
        _sealer(tmp_path, tmp_path / "key")
    (tmp_path / "key").write_bytes(b"x")
    with pytest.raises(SettingsError, match=r"--seal-key=.*holds no key.*openssl rand -base64 32"):
        _sealer(tmp_path, tmp_path / "key")
    (tmp_path / "key").unlink()
    (tmp_path / "key").mkdir()
    with pytest.raises(SettingsError, match=r"--seal-key=.*cannot be read or made: Is a directory"):
        _sealer(tmp_path, tmp_path / "key")


def test_a_key_that_others_may_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o644)
    _sealer(tmp_path, tmp_path / "key")
    assert "may be read by every user" in caplog.text


def test_the_operators_key_replaces_the_one_in_the_state_directory(tmp_path: Path) -> None:
    own, key = tmp_path / "seal.key", tmp_path / "key"
    sealed = _sealer(tmp_path, None).seal(b"body", bound=b"a")
    assert own.stat().st_mode & 0o777 == 0o600
    assert _sealer(tmp_path, None).unseal(sealed, bound=b"a") == b"body"
    make_key(key)
    with pytest.raises(ValueError, match="another key"):
        _sealer(tmp_path, key).unseal(sealed, bound=b"a")
    assert not own.exists()
