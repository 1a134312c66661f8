"""The version: what this software calls itself in a hello and in logs."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("csi-bridge")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0+source"

SOFTWARE = f"csi-bridge/{VERSION}"
