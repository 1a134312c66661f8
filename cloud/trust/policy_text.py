"""The text of a policy: YAML that becomes a `Policy`, or an error that names the line.

    nodes:                              # which nodes may report which drivers
    - names: ["berlin-*", lab-1]
      drivers: [disk.example]
      topology:                         # left out: every topology
        topology.disk.example/zone: ["berlin-*"]
        topology.disk.example/host: ["{node}"]
    proxies:                            # which proxy drivers may call which drivers
    - names: [disk.example, "uid:0"]
      drivers: [disk.example]

An unknown word is an error: a rule that is misspelt must not vanish.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from cloud.sources.manifests.documents import DocumentError, Place, read_yaml
from cloud.trust.policy import OWN_NAME, Patterns, Policy, Rule, Rules

MOST_BYTES: Final = 1_048_576
"""The largest file: a ConfigMap's size in Kubernetes (API conventions, ConfigMap)."""

_NAME = re.compile(r"[A-Za-z0-9._*?-]{1,253}|uid:[0-9*?]{1,10}")
_VALUE = re.compile(r"[A-Za-z0-9._*?-]{0,63}|" + re.escape(OWN_NAME))
_KEY = re.compile(r"[A-Za-z0-9._*?/-]{1,317}")

_SECTIONS: Final = {"nodes": frozenset({"names", "drivers", "topology"}), "proxies": frozenset({"names", "drivers"})}
"""The words of a rule, by section."""


def read_policy(content: bytes, *, source: str) -> Policy:
    """The policy in a file's content.

    Args:
        content: the file.
        source: its path, for verdicts.

    Raises:
        ValueError: it is no policy; the message names the line.
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has {len(content)} bytes, and {MOST_BYTES} is the limit")
    documents = read_yaml(content.decode())  # a UnicodeDecodeError is a ValueError
    if len(documents) != 1:
        raise ValueError("it must have one document" if documents else "it is empty; leave --policy out to allow all")
    value, place = documents[0].value, documents[0].place
    _check_words(value, _SECTIONS.keys(), place, "a policy")
    return Policy(source, **{name: _section(name, value[name], place.parts[name]) for name in value})


def _section(name: str, value: Any, place: Place) -> Rules:
    if not isinstance(value, list):
        raise DocumentError(place.line, f"{name} must be a list of rules")
    return Rules(_rule(name, rule, place.parts[number]) for number, rule in enumerate(value))


def _rule(section: str, value: Any, place: Place) -> Rule:
    _check_words(value, _SECTIONS[section], place, f"a rule of {section}")
    for word in ("names", "drivers"):
        if word not in value:
            raise DocumentError(place.line, f"the rule has no {word}")
    return Rule(
        place.line,
        _patterns("names", value["names"], place.parts["names"], _NAME),
        _patterns("drivers", value["drivers"], place.parts["drivers"], _NAME),
        _topology(value["topology"], place.parts["topology"]) if "topology" in value else None,
    )


def _topology(value: Any, place: Place) -> tuple[tuple[Patterns, Patterns], ...]:
    if not isinstance(value, Mapping):
        raise DocumentError(place.line, "topology must have lists of values by key")
    for key in value:
        _check_text(key, place.parts[key].line, _KEY, "a key of a topology")
    return tuple(
        (Patterns([key]), _patterns(f"the values of {key}", values, place.parts[key], _VALUE))
        for key, values in value.items()
    )


def _patterns(what: str, value: Any, place: Place, form: re.Pattern[str]) -> Patterns:
    if not isinstance(value, list) or not value:
        raise DocumentError(place.line, f'{what} must be a list with at least one text; "*" stands for every text')
    for number, text in enumerate(value):
        _check_text(text, place.parts[number].line, form, f"an entry of {what}")
    return Patterns(value)


def _check_text(text: Any, line: int, form: re.Pattern[str], what: str) -> None:
    if not isinstance(text, str):
        raise DocumentError(line, f"{what} must be a text (in quotes, if it looks like a number or a truth value)")
    if not form.fullmatch(text):
        why = f"{what} is {text[:60]!r}, which no such name can be or match; globs have * and ?"
        raise DocumentError(line, why)


def _check_words(value: Any, known: Collection[str], place: Place, what: str) -> None:
    if not isinstance(value, Mapping):
        raise DocumentError(place.line, f"{what} must have the words {', '.join(sorted(known))}")
    for word in value:
        if word not in known:
            raise DocumentError(place.parts[word].line, f"{what} has {', '.join(sorted(known))}, and no {word[:40]!r}")
