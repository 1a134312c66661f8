"""The content of deploy/: the chart's objects, their containers, and the arguments that Kubernetes would give each.

`trial` reads deploy/trial.yaml, a rendering of the chart, and needs nothing. `charted` renders other values with helm,
one of the peers.
"""

import functools
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.kit import needs
from tests.peers import build

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
CRDS = CHART / "templates/crds.yaml"  # plain YAML, without a template's directives

OURS = "registry.example/csi-bridge/"  # the registry of the project's own images in the manifests

NAMESPACE: Final = "csi-bridge"

SIDECARS: Final[Object] = {name: {} for name in ("provisioner", "attacher", "resizer", "snapshotter")}
DRIVER: Final[Object] = {"name": "dirdriver.csi", "sidecars": SIDECARS}
WITH_FILES: Final[Object] = {
    "createNamespace": True,
    "hub": {"join": False},
    "agent": {"join": False, "hub": "wss://hub.example:10350"},
    "drivers": [DRIVER],
}
"""Values: every certificate comes from a file, and the example driver has all sidecars."""

_ROLES = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def objects(path: Path) -> list[Object]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def manifests() -> list[Path]:
    """Return every file of objects."""
    return [DEPLOY / "trial.yaml", *sorted((DEPLOY / "examples").rglob("*.yaml"))]


@functools.cache
def trial() -> tuple[Object, ...]:
    """Return the objects of the trial on one cluster."""
    return tuple(objects(DEPLOY / "trial.yaml"))


def charted(values: Object = WITH_FILES, *flags: str) -> list[Object]:
    """Return the objects of the chart with these values. Skips the test if helm is not built."""
    done = template(values, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def template(values: Object, *flags: str) -> subprocess.CompletedProcess[str]:
    """Render the chart with these values."""
    return _template(json.dumps(values), *flags)


@functools.cache
def _template(values: str, *flags: str) -> subprocess.CompletedProcess[str]:
    if (helm := build.find("helm")) is None:
        pytest.skip(needs.peer("helm"))
    command = [str(helm), "template", "csi-bridge", str(CHART), f"--namespace={NAMESPACE}", *flags, "--values=-"]
    return subprocess.run(command, input=values, capture_output=True, text=True, check=False)


def of_kinds(made: Iterable[Object], *kinds: str, of: str = "") -> list[Object]:
    """Return the objects of these kinds whose names begin so."""
    return [it for it in made if it["kind"] in kinds and it["metadata"]["name"].startswith(of)]


def hub_roles() -> list[Object]:
    """Return what the hub's pod needs to be there: its namespace, its ServiceAccount and its permissions."""
    return of_kinds(trial(), "Namespace", of="csi-bridge") + of_kinds(trial(), *_ROLES[1:], of="csi-bridge-hub")


def driver_roles(values: Object = WITH_FILES) -> list[Object]:
    """Return the ServiceAccount and the permissions of a driver's sidecars."""
    return of_kinds(charted(values), *_ROLES, of="csi-bridge-driver")


def driver_objects(**of_driver: object) -> list[Object]:
    """Return all objects of a driver's cloud part, with these values."""
    values = with_driver(**of_driver)
    names = ("csi-bridge-driver", values["drivers"][0]["name"])
    return [it for it in charted(values) if it["metadata"]["name"].startswith(names)]


def grants(**names: str) -> list[Object]:
    """Return the permissions for one name each in the namespace default: `secrets`, `serviceAccountTokens`."""
    made = charted(with_driver(**{key: [{"namespace": "default", "names": [name]}] for key, name in names.items()}))
    return [it for it in made if it["metadata"].get("namespace") == "default"]


def with_driver(**of_driver: object) -> Object:
    """Return the values with these of the example driver."""
    return {**WITH_FILES, "drivers": [{**DRIVER, **of_driver}]}


def policies(values: Object = WITH_FILES) -> list[Object]:
    """Return the admission policies and their bindings."""
    return [it for it in charted(values) if it["kind"].startswith("ValidatingAdmissionPolicy")]


def granted(manifests: Iterable[Object]) -> set[tuple[str, str, str]]:
    """Return what the roles among them allow: verb, API group, resource."""
    return {
        (verb, group, resource)
        for rule in (rule for it in manifests for rule in it.get("rules") or ())
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def pod_spec(manifest: Object) -> Object | None:
    """Return the spec of its pods; None if it makes none."""
    if manifest["kind"] == "Pod":
        spec: Object = manifest["spec"]
        return spec
    owner = manifest["spec"]["jobTemplate"] if manifest["kind"] == "CronJob" else manifest
    template = owner.get("spec", {}).get("template")
    return template["spec"] if template else None


def containers(made: Iterable[Object]) -> list[Object]:
    """Return the containers of these objects' pods."""
    return [it for found in made for it in (pod_spec(found) or {}).get("containers", [])]


def container(name: str, values: Object = WITH_FILES) -> Object:
    """Return the chart's container of a name: `hub`, `driver`, `agent`, a sidecar's."""
    (found,) = (it for it in containers(charted(values)) if it["name"] == name)
    return found


def relaying_agent(**of_agent: object) -> Object:
    """Return the agent's container with a relay and with direct volumes."""
    agent = {**WITH_FILES["agent"], "relay": True, "directRuntimes": ["kata=go:4.1"], **of_agent}
    return container("agent", {**WITH_FILES, "agent": agent})


def example_driver() -> Object:
    """Return the container of the example driver."""
    (found,) = (it for it in containers(objects(DEPLOY / "examples/driver/node.yaml")) if it["name"] == "dirdriver")
    return found


def arguments(container: Object, **values: str) -> list[str]:
    """Return its process's arguments, with each `$(NAME)` from `values`, or from its `env`.

    Raises:
        LookupError: a name has no value.
    """
    known = {it["name"]: it["value"] for it in container.get("env", ()) if "value" in it} | values
    return [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text) for text in container["args"]]


def with_flags(args: list[str], **flags: object) -> list[str]:
    """Return arguments with new values of their flags: `with_flags(args, csi_address="/x")`.

    Raises:
        LookupError: a flag is not among them.
    """
    changed = list(args)
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}="
        (at,) = (number for number, text in enumerate(args) if text.startswith(flag))
        changed[at] = f"{flag}{value}"
    return changed
