"""The state directory: one hub at a time uses it, and no records in it are passed over."""

import shutil
from pathlib import Path

import pytest

from cloud.records.directory import StateDirectory
from common.errors import SettingsError


def test_a_second_hub_in_one_directory_is_refused_as_long_as_the_first_one_runs(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path)
    with pytest.raises(SettingsError, match="another hub is using it"):
        StateDirectory(tmp_path)
    first.close()
    StateDirectory(tmp_path).close()


def test_a_directory_has_the_same_place_after_a_restart_and_its_copy_has_another_one(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied = StateDirectory(tmp_path / "b")
    places = [first.place, copied.place]
    first.close()
    copied.close()
    again = StateDirectory(tmp_path / "a")
    assert places[0] == again.place != places[1]
    again.close()


def test_records_that_a_hub_of_a_cluster_does_not_read_stop_it(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    directory = StateDirectory(tmp_path)
    with pytest.raises(SettingsError, match=r"records of a hub without --kubeconfig \(state.db\)"):
        directory.refuse_records()
    StateDirectory(tmp_path).close()
