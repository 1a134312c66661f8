"""Secrets, which the hub sends to the nodes whose volumes name them. Errors hold no value."""

import base64
import binascii
from typing import Any, Final

from cloud.kinds.rules.fields import Body, Fields
from cloud.kinds.rules.kind_rules import KindRules, pick


def _check(fields: Fields) -> None:
    fields.text("type")
    fields.text_map("stringData")
    for key, text in fields.text_map("data").items():
        try:
            base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            fields.part("data").refuse(key, "must be base64 (plain text belongs in stringData)")


def _trim(body: Body) -> dict[str, Any]:
    # As in the API server: `stringData` wins.
    data = {key: "".join(text.split()) for key, text in (body.get("data") or {}).items()}
    for key, text in (body.get("stringData") or {}).items():
        data[key] = base64.b64encode(text.encode()).decode()
    return {**pick(body, "type"), "data": data}


RULES: Final = KindRules(kind="Secret", api_version="v1", namespaced=True, check=_check, trim=_trim)
