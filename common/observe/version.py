"""The version: this software's name and version, for logs and for a session's hello."""

from common.messages import OLDEST_WIRE_VERSION, WIRE_VERSION, Hello

VERSION = "0.1.0"  # the package's version: hatchling reads it here (pyproject.toml)

SOFTWARE = f"csi-bridge/{VERSION}"


def introduce(role: str, name: str, *, instance: str, boot: int = 0, placement: str = "") -> Hello:
    """This process's hello. The session fills in the limits."""
    return Hello(
        version=WIRE_VERSION,
        oldest=OLDEST_WIRE_VERSION,
        role=role,
        name=name,
        instance=instance,
        boot=boot,
        software=SOFTWARE,
        features=(),
        max_message_bytes=0,
        stream_window_bytes=0,
        session_window_bytes=0,
        max_streams=0,
        placement=placement,
    )
