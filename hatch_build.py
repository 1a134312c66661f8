"""The build hook: with CSI_BRIDGE_COMPILE=1 a wheel has the call path compiled (`compilation.py`).

Without it the wheel is pure Python, and needs no compiler. A compiled wheel has the sources, too: a traceback names
their lines, as ever.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_VARIABLE = "CSI_BRIDGE_COMPILE"


class Hook(BuildHookInterface):
    """Compiles in a temporary copy of the sources, so that none of it stays in the tree."""

    def dependencies(self) -> list[str]:
        """The compiler and what it reads types of, in the versions of constraints.txt."""
        if not self._is_asked():
            return []
        core = self.metadata.core
        wanted = {_name(each) for each in (*core.dependencies, *core.optional_dependencies["compile"])}
        pins = Path(self.root, "constraints.txt").read_text().splitlines()
        return [pin for pin in pins if _name(pin) in wanted]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the libraries to the wheel."""
        if version != "standard" or not self._is_asked():
            return
        self._copy = TemporaryDirectory()
        copy = Path(self._copy.name)
        for package in self.build_config.packages:
            shutil.copytree(Path(self.root, package), copy / package)
        for file in ("pyproject.toml", "compilation.py"):
            shutil.copy(Path(self.root, file), copy)
        try:
            subprocess.run([sys.executable, "compilation.py"], cwd=copy, check=True)
        except subprocess.CalledProcessError:
            sys.exit(f"The compilation failed: see above. It takes a C compiler. Without {_VARIABLE} none is needed.")
        shutil.rmtree(copy / "build")
        libraries = {str(path): str(path.relative_to(copy)) for path in copy.rglob("*.so")}
        build_data["force_include"].update(libraries)
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, *_: object) -> None:
        """Remove the copy."""
        if hasattr(self, "_copy"):
            self._copy.cleanup()

    def _is_asked(self) -> bool:
        return os.environ.get(_VARIABLE) == "1"


def _name(requirement: str) -> str:
    """The normalised name in a requirement."""
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-").replace(".", "-")
