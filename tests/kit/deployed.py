"""The content of deploy/: its objects, their containers, and the arguments that Kubernetes would give each."""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

OURS = "registry.example/csi-bridge/"  # the registry of the project's own images in the manifests


def manifests() -> list[Path]:
    """Return every file of objects or of patches; no kustomization."""
    return sorted(path for path in DEPLOY.rglob("*.yaml") if path.name != "kustomization.yaml")


def kustomizations() -> list[Path]:
    """Return every folder that can be applied."""
    return sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))


def with_components(directory: Path, of: str, *components: str) -> Path:
    """Write a kustomization of a folder below deploy/ with components from there. Returns the directory that has it.

    A folder that is a template, such as another-driver, gets the components itself, as in a person's copy of it.
    """
    made: Object = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [of]}
    if (template := yaml.safe_load((DEPLOY / of / "kustomization.yaml").read_text())).get("nameSuffix"):
        made = {**template, "resources": [DEPLOY / of / name for name in template["resources"]]}
    made |= {"components": components}
    for key in ("resources", "components"):
        made[key] = [os.path.relpath((DEPLOY / name).resolve(), directory.resolve()) for name in made[key]]
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(made))
    return directory


def kustomized(kubectl: Path, folder: Path) -> list[Object]:
    """Return the objects of a kustomization."""
    command = [str(kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def granted(manifests: Iterable[Object]) -> set[tuple[str, str, str]]:
    """Return what the roles among them allow: verb, API group, resource."""
    return {
        (verb, group, resource)
        for rule in (rule for it in manifests for rule in it.get("rules", ()))
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def objects(path: Path) -> list[Object]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def pod_spec(manifest: Object) -> Object | None:
    """Return the spec of its pods; None if it makes none."""
    if manifest["kind"] == "Pod":
        spec: Object = manifest["spec"]
        return spec
    owner = manifest["spec"]["jobTemplate"] if manifest["kind"] == "CronJob" else manifest
    template = owner.get("spec", {}).get("template")
    return template["spec"] if template else None


def containers() -> Iterator[tuple[Path, Object]]:
    """Yield every container of deploy/, with its file."""
    for path in manifests():
        for manifest in objects(path):
            for container in (pod_spec(manifest) or {}).get("containers", []):
                yield path, container


def container(path: str, name: str) -> Object:
    (found,) = (it for file, it in containers() if file == DEPLOY / path and it["name"] == name)
    return found


def arguments(container: Object, **values: str) -> list[str]:
    """Return its process's arguments, with each `$(NAME)` from `values`, or from its `env`.

    Raises:
        LookupError: a name has no value.
    """
    known = {it["name"]: it["value"] for it in container.get("env", ()) if "value" in it} | values
    return [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text) for text in container["args"]]


def added_arguments(overlay: str) -> list[str]:
    """Return the arguments that an overlay below deploy/ appends to those of the first container."""
    patches = yaml.safe_load((DEPLOY / overlay / "kustomization.yaml").read_text())["patches"]
    lists = [found for patch in patches if isinstance(found := yaml.safe_load(patch.get("patch", "")), list)]
    changes = [change for found in lists for change in found]
    return [
        it["value"] for it in changes if (it["op"], it["path"].rpartition("/containers/0/")[2]) == ("add", "args/-")
    ]


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
