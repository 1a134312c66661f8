"""The targets: functions that take any bytes, and raise only if the program has a bug."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.fuzz import on_documents, on_http2, on_the_wire

TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "codec": on_the_wire.codec,
    "session": on_the_wire.session,
    "sync": on_the_wire.syncing,
    "enrolment": on_the_wire.enrolling,
    "token": on_the_wire.token,
    "answers": on_the_wire.answers,
    "hpack": on_http2.hpack,
    "http2": on_http2.http2,
    "server": on_http2.serving,
    "registration": on_http2.registering,
    "manifests": on_documents.manifests,
    "reports": on_documents.reports,
    "facts": on_documents.facts,
    "mount-info": on_documents.mount_infos,
    "shim": on_the_wire.shim_answers,
}
"""By name, which is also the name of the directory in `tests/fuzz/corpus`."""
