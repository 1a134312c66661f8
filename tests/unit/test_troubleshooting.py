"""docs/troubleshooting.md quotes what the software says: each sentence in it exists in the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from cli.doctor.hub import READ
from cli.main import cli
from common.objects.offline_policy import ANNOTATION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()

_ARGUMENT = re.compile(r"%[-#0-9.]*[sdrg]")
"""An argument of a log line."""


def said() -> Iterator[str]:
    """Every text in the source, with … in the place of what is filled in."""
    for place in ("cli", "cloud", "common", "edge"):
        for path in (ROOT / place).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(it.value) if isinstance(it, ast.Constant) else "…" for it in node.values]
                    yield re.sub("…+", "…", "".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield _ARGUMENT.sub("…", node.value)


def quoted() -> list[str]:
    """The messages that the page quotes: a paragraph of lines that begin with `> ` is one."""
    paragraphs = re.split(r"\n\s*\n", PAGE)
    return [" ".join(part.replace("\n> ", "\n").removeprefix("> ").split()) for part in paragraphs if part[:2] == "> "]


def test_every_message_that_is_quoted_is_one_of_the_softwares() -> None:
    texts = list(said())
    assert len(quoted()) > 40
    assert [message for message in quoted() if not any(message in text for text in texts)] == []


def test_the_words_by_which_the_doctor_finds_a_place_are_the_softwares() -> None:
    texts = [text.replace("…", ANNOTATION) for text in said()]
    assert [words for words, _ in READ if not any(words in text and words != text for text in texts)] == []


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"(?<!-n )csi-bridge ([a-z]+(?:-[a-z]+)*)", PAGE)) - {"edge"}
    assert len(named) > 5
    assert named - cli.commands.keys() == set()
