"""Tables that must agree: a kind, a placement, a flag or an order that stands in one of them stands in the others."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from cli.doctor.permissions import HUB, NEEDED
from cli.options import Options
from cli.process_options import DRIVER_OPTIONS, EDGE_OPTIONS, HUB_OPTIONS
from cloud.kinds.table import KINDS
from cloud.kube.client import RESOURCES, Resource
from cloud.proxy.driver_settings import NOT_WITH_NODEID, Mode
from cloud.sources.cluster.cluster import WATCHED
from cloud.sources.manifests.manifest_objects import NOT_NEEDED
from common import operator_orders

ROOT = Path(__file__).parents[2]
STORAGE_PAGE = ROOT / "docs" / "storage.md"
ORDERS = [name for name, found in vars(operator_orders).items() if isinstance(getattr(found, "order", None), str)]


def permission_of(resource: Resource) -> str:
    """A resource as a role names it: `pods`, or `csidrivers.storage.k8s.io`."""
    group = resource.group.removeprefix("api/").removeprefix("apis/").rpartition("/")[0]
    return f"{resource.plural}.{group}".rstrip(".")


def test_an_object_of_a_kind_that_a_node_gets_is_not_dropped_from_a_manifest() -> None:
    assert not NOT_NEEDED & {*KINDS}


def test_the_rules_of_a_kind_agree_with_its_resource() -> None:
    for kind in (*WATCHED, "Secret"):
        assert kind in RESOURCES, f"cloud/kube/client.py has no row for {kind}"
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


@pytest.mark.parametrize("options", [HUB_OPTIONS, DRIVER_OPTIONS, EDGE_OPTIONS])
def test_each_flag_of_a_process_has_its_field_in_the_settings(options: Options[Any]) -> None:
    assert {it.name for it in options.all} == {it.name for it in dataclasses.fields(options.settings)}


def test_a_flag_has_no_unit_in_its_name() -> None:
    flags = [it.opts[0] for options in (HUB_OPTIONS, DRIVER_OPTIONS, EDGE_OPTIONS) for it in options.all]
    assert [flag for flag in flags if flag.endswith(("-s", "-bytes"))] == []


@pytest.mark.parametrize("order", ORDERS)
def test_each_order_is_given_by_a_command_and_served_by_the_hub(order: str) -> None:
    sources = {top: "".join(it.read_text() for it in (ROOT / top).rglob("*.py")) for top in ("cli", "cloud")}
    assert re.search(rf"\.add\({order}, ", sources["cloud"]), "no part of the hub adds it to the orders"
    assert re.search(rf"\b{order}\(", sources["cli"]), "no command makes it"
