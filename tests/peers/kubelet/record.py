"""The command behind `make record-kubelet`: plays scenarios on a real kubelet, and writes its records into the tree.

Without arguments it plays all but the slow ones, with `--all` those as well, with names the named ones. `--timeline`
prints when what happened.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.peers import build
from tests.peers.kubelet import catalog
from tests.peers.kubelet.kubelet_node import KubeletNode
from tests.peers.kubelet.play import play


def find(name: str) -> Path:
    """A peer's binary.

    Raises:
        SystemExit: it is not built.
    """
    found = build.find(name)
    if found is None:
        raise SystemExit(f"{name} is not built; run: make peers")
    return found


def main(arguments: Sequence[str]) -> int:
    names = [word for word in arguments if not word.startswith("-")]
    unknown = [name for name in names if name not in catalog.BY_NAME]
    if unknown:
        _say(f"no scenario is called {unknown[0]}; there are: {', '.join(catalog.BY_NAME)}")
        return 2
    chosen = [catalog.BY_NAME[name] for name in names] or [
        it for it in catalog.SCENARIOS if not it.slow or "--all" in arguments
    ]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="csi-") as directory:
        node = KubeletNode(Path(directory) / "n", peer=find)
        try:
            node.start()
            for played in play(chosen, node=node, directory=Path(directory)):
                if played.error is None:
                    catalog.write(played.record)
                _say(f"{played.scenario.name}: {played.error or 'recorded'}")
                failed += played.error is not None
                if "--timeline" in arguments:
                    _say("\n".join(played.timeline))
        finally:
            node.stop()
    return 1 if failed else 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  this file is a command


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
