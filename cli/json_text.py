"""A JSON text: the output of a command for programs."""

import json
from typing import Any


def json_text(state: Any) -> str:
    """A state as JSON, indented."""
    return json.dumps(state, indent=2)
