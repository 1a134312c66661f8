"""The compilation: the modules of a call's path become C extensions, made by mypyc from the same source.

    python compilation.py        compile them in the present directory, beside their sources

Only the build hook (`hatch_build.py`) and `make test-compiled` run it, each in a copy of the tree: a library beside its
source takes the place of it, and a later change of the source would have no effect.
"""

import sys
from pathlib import Path

COMPILED = (
    "common/status.py",
    # The session and its wire.
    "common/codec.py",
    "common/messages.py",
    "common/limits.py",
    "common/stream_books.py",
    "common/outbox.py",
    "common/inbox.py",
    "common/session.py",
    "common/deadlines.py",
    "common/link.py",
    "common/turn.py",
    "common/websocket_frames.py",
    "common/transport.py",
    "common/local_dial.py",
    # The end of each call: its log line and its metric.
    "common/accounting.py",
    "common/logs.py",
    # Both ends of gRPC.
    "common/relay/errors.py",
    "common/relay/framing.py",
    "common/relay/hpack.py",
    "common/relay/metadata.py",
    "common/relay/frames.py",
    "common/relay/frame_reader.py",
    "common/relay/http2.py",
    "common/relay/pump.py",
    "common/relay/listener.py",
    "common/relay/server_call.py",
    "common/relay/server_connection.py",
    "common/relay/server.py",
    "common/relay/library_texts.py",
    "common/relay/client_call.py",
    "common/relay/client_connection.py",
    "common/relay/client.py",
    # The proxy driver.
    "cloud/forwarded_call.py",
    # The hub.
    "cloud/passage.py",
    "cloud/node_call.py",
    "cloud/visit.py",
    "cloud/edge_nodes.py",
    "cloud/node_calls.py",
    "cloud/proxy_rights.py",
    "cloud/routing.py",
    "cloud/placement/attempts.py",
    "cloud/placement/carry.py",
    "cloud/placement/decide.py",
    "cloud/placement/decisions.py",
    "cloud/placement/find.py",
    "cloud/placement/fleet.py",
    "cloud/placement/foreign_ids.py",
    "cloud/placement/outcome.py",
    "cloud/placement/pending.py",
    "cloud/placement/placement.py",
    "cloud/placement/requests.py",
    "cloud/placement/segment.py",
    # The agent.
    "common/csi/methods.py",
    "common/redact.py",
    "edge/hub_call.py",
    "edge/operations.py",
    "edge/time_limit.py",
    "edge/registry/driver_registry.py",
    "edge/registry/driver_services.py",
    "edge/registry/driver_sockets.py",
)
"""The compiled modules: those that every call passes with more than a step or two. Others would gain nothing.

mypyc cannot compile three more of the path: `edge.drivers` and `cloud.csi_proxy_driver` have async generators,
`cloud.placement.claim_store` has generic dataclasses with slots.
"""


def main() -> None:
    """Compile in the present directory."""
    if missing := [path for path in COMPILED if not Path(path).is_file()]:
        sys.exit(f"compilation.py: no such module: {', '.join(missing)}")
    from mypyc.build import mypycify  # noqa: PLC0415  # readers of the list need no compiler
    from setuptools import setup  # noqa: PLC0415  # the same

    extensions = mypycify(list(COMPILED), opt_level="3", debug_level="0", group_name="csi_bridge")
    setup(name="csi-bridge", packages=[], ext_modules=extensions, script_args=["--quiet", "build_ext", "--inplace"])


if __name__ == "__main__":
    main()
