"""Tables that must agree: a kind or a placement that stands in one of them stands in the others."""

import re
from pathlib import Path

from cli.doctor.permissions import HUB, NEEDED
from cli.process_options import DRIVER_OPTIONS
from cloud.kinds.table import KINDS
from cloud.kube.client import RESOURCES, Resource
from cloud.proxy.driver_settings import NOT_WITH_NODEID, Mode
from cloud.sources.cluster.cluster import WATCHED
from cloud.sources.manifests.manifest_objects import NOT_NEEDED

STORAGE_PAGE = Path(__file__).parents[2] / "docs" / "storage.md"


def permission_of(resource: Resource) -> str:
    """A resource as a role names it: `pods`, or `csidrivers.storage.k8s.io`."""
    group = resource.group.removeprefix("api/").removeprefix("apis/").rpartition("/")[0]
    return f"{resource.plural}.{group}".rstrip(".")


def test_an_object_of_a_kind_that_a_node_gets_is_not_dropped_from_a_manifest() -> None:
    assert not NOT_NEEDED & {*KINDS}


def test_the_rules_of_a_kind_agree_with_its_resource() -> None:
    for kind in (*WATCHED, "Secret"):
        rules, resource = KINDS[kind], RESOURCES[kind]
        assert (resource.group.partition("/")[2], resource.namespaced) == (rules.api_version, rules.namespaced), kind


def test_the_hub_needs_the_permission_to_list_and_watch_each_kind_that_it_watches() -> None:
    every_volumes = [rule for rule in NEEDED[HUB] if {"list", "watch"} <= {*rule.verbs.split()} and not rule.only_for]
    permitted = {name for rule in every_volumes for name in rule.resources.split()}
    assert {permission_of(RESOURCES[kind]) for kind in WATCHED} <= permitted


def test_the_help_names_each_placement_and_those_that_exclude_a_node() -> None:
    help_of = {option.opts[0]: option.help or "" for option in DRIVER_OPTIONS.all}
    placement, node = (set(re.findall(r"\w+", help_of[flag])) for flag in ("--placement", "--nodeid"))
    assert {*Mode} <= placement
    assert node & {*Mode} == NOT_WITH_NODEID


def test_the_page_about_storage_names_each_placement() -> None:
    page = STORAGE_PAGE.read_text()
    assert [it for it in Mode if f"`{it}`" not in page] == []
