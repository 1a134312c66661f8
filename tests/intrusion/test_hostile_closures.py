"""A hostile hub sends the objects of a node: it reaches nothing but the volumes that these objects name."""

import itertools
import re
from pathlib import Path
from typing import Any

from tests.kit.hostile_hub import DEEP, attack

_DRIVER = "vendor.test"
_OUT = "../../../../../../outside"
_NO_SURROGATE = "h\ud800"

_NUMBERS = itertools.count()

_RULES = {
    "kind": "CSIDriver",
    "metadata": {"name": _DRIVER},
    "spec": {"attachRequired": False, "volumeLifecycleModes": ["Persistent", "Ephemeral"]},
}

_PLACES = re.compile(
    r"(pods/[^/]+/volumes/kubernetes\.io~csi/[^/]+/mount"
    r"|plugins/kubernetes\.io/csi/vendor\.test/[0-9a-f]{64}/globalmount"
    r"|plugins/kubernetes\.io/csi/volumeDevices/(staging/[^/]+|publish/[^/]+/[^/]+))"
)
"""Every place of a volume below a kubelet's root directory."""

_HARMLESS = re.compile(r"[\w./~:-]*", re.ASCII)
"""Characters that mean nothing to a shell, and nothing in a file of lines."""

_FS_TYPE = re.compile(r"[A-Za-z0-9._-]*")


def pod(name: str, *volumes: dict[str, Any], uid: object = None, block: bool = False, **spec: Any) -> dict[str, Any]:
    """Return a pod of the node that uses each of these volumes."""
    field = "volumeDevices" if block else "volumeMounts"
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": uid or f"uid-of-{name}"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", field: [{"name": volume["name"]} for volume in volumes]}],
            "volumes": list(volumes),
            **spec,
        },
    }


def inline(name: str = "v", *, driver: str = _DRIVER, **csi: Any) -> dict[str, Any]:
    return {"name": name, "csi": {"driver": driver, **csi}}


def persistent(
    name: str = "", *, handle: str = "h", driver: str = _DRIVER, csi: dict[str, Any] | None = None, **spec: Any
) -> list[dict[str, Any]]:
    """Return a PersistentVolume, its claim, and a pod that uses it, all with names of their own."""
    number = f"{next(_NUMBERS)}"
    claim = {"namespace": "default", "name": f"c-{number}", "uid": f"uid-{number}"}
    return [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": claim,
            "spec": {"volumeName": name or f"pv-{number}"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        },
        {
            "kind": "PersistentVolume",
            "metadata": {"name": name or f"pv-{number}"},
            "spec": {"claimRef": claim, "csi": {"driver": driver, "volumeHandle": handle, **(csi or {})}, **spec},
        },
        pod(
            "p",
            {"name": "v", "persistentVolumeClaim": {"claimName": claim["name"]}},
            uid=f"uid-{number}",
            block=spec.get("volumeMode") == "Block",
        ),
    ]


ATTACKS: dict[str, list[dict[str, Any]]] = {
    "a pod's uid that is a path": [pod("p", inline(), uid=_OUT)],
    "a pod's uid of dots": [pod("p", inline(), uid="..")],
    "a volume's name that is a path": [pod("p", inline(_OUT))],
    "a volume's name of dots": [pod("p", inline(".."))],
    "a volume's name that is too long": [pod("p", inline("v" * 256))],
    "a pod's uid of two lines": [pod("p", inline(), uid="u\nnone etc ext4")],
    "a pod's uid that a shell runs": [pod("p", inline(), uid="$(reboot)")],
    "a pod's uid that steers a terminal": [pod("p", inline(), uid="u\x1b[2J")],
    "a volume's name of two lines": [pod("p", inline("v\nnone"))],
    "a volume's name that a shell runs": [pod("p", inline("`reboot`"))],
    "a PersistentVolume's name of two lines": persistent("pv\nnone"),
    "a block volume's name that a shell runs": persistent("pv;reboot", volumeMode="Block"),
    "a driver's name that is a path": [pod("p", inline(driver=_OUT))],
    "a driver's name of dots": persistent(driver=".."),
    "a driver's name of the kubelet's own directory": persistent(driver="volumeDevices"),
    "a PersistentVolume's name that is a path": persistent(_OUT),
    "a PersistentVolume's name of dots": persistent(".."),
    "a block volume's name that is a path": persistent(_OUT, volumeMode="Block"),
    "a block volume's name of dots": persistent("..", volumeMode="Block"),
    "a block volume's name of the kubelet's own directory": persistent("staging", volumeMode="Block"),
    "a handle that is a path": persistent(handle=_OUT),
    "a handle that is absolute": persistent(handle="/etc"),
    "a handle with a zero": persistent(handle="a\0b"),
    "a handle that UTF-8 cannot encode": persistent(handle=_NO_SURROGATE),
    "an attribute that UTF-8 cannot encode": [pod("p", inline(volumeAttributes={"a": _NO_SURROGATE}))],
    "a volume's name that UTF-8 cannot encode": [pod("p", inline(_NO_SURROGATE))],
    "a file system that is a path": persistent(csi={"fsType": "../../x"}),
    "a file system that is an option": persistent(csi={"fsType": "-o bind"}),
    "an inline volume's file system that is a path": [pod("p", inline(fsType="/etc/x"))],
    "a mount option of two lines": persistent(mountOptions=["ro\n/etc /x none bind"]),
    "a mount option with a zero": persistent(mountOptions=["ro\0bind"]),
    "an fsGroup that no group has": [pod("p", inline(fsType="ext4"), securityContext={"fsGroup": 1 << 40})],
    "a negative fsGroup": [pod("p", inline(fsType="ext4"), securityContext={"fsGroup": -1})],
    "a size of no disk": persistent(capacity={"storage": "9" * 40}),
    "objects of the wrong shape": [
        {"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": ["csi"]},
        pod("p", {"name": "v", "persistentVolumeClaim": ["c"]}),
    ],
    "an object as deep as a well": [pod("p", inline(), affinity=DEEP)],
}


async def test_a_hub_reaches_nothing_but_what_the_closure_names(short_dir: Path, tmp_path: Path) -> None:
    async with attack(short_dir, tmp_path) as attacked:
        for number, (trick, objects) in enumerate(ATTACKS.items()):
            attacked.hub.put(_RULES, *objects, pod(good := f"good-{number}", inline(good)))
            assert (await attacked.volume(good))["state"] == "published", trick
            tried = await attacked.volume("p")
            assert "bug" not in tried["error"], (trick, tried)
            for path in attacked.vendor.paths:
                assert path.startswith(f"{attacked.root}/"), (trick, path)
                assert _HARMLESS.fullmatch(path), (trick, path)
                assert _PLACES.fullmatch(path.removeprefix(f"{attacked.root}/")), (trick, path)
            for mount in attacked.vendor.mounts:
                assert _FS_TYPE.fullmatch(mount.fs_type), (trick, mount)
                assert "".join(mount.mount_flags).isprintable(), (trick, mount)
            assert attacked.left_outside() == ["file"], trick
            attacked.hub.clear()
