"""The links of the pages: each names a file that is there, and a heading or a test that this file has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")]
SOURCES = (".ci", "bench", "cli", "cloud", "common", "deploy", "docs", "edge", "examples", "tests")

_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)?$", re.MULTILINE)
_NAMED = re.compile(r"\bdocs/[\w-]+\.md(?:#[\w-]+)?|\bcsi-contract\.md#[\w-]+")
"""A page as a program's message or comment names it."""

_MENTIONED = re.compile(r"[\w-]+\.md\b")
_TEST = re.compile(r"`(?P<file>(?:\w+/)*test_\w+\.py)?(?:::(?P<name>test_\w+))?`")
"""A test in SECURITY.md. It is in tests/intrusion if it has no folder, and in the file before it if it has no file."""

_UPSTREAM = {"spec.md", "statuscodes.md", "PROTOCOL-HTTP2.md"}
"""Pages of CSI and gRPC, beside the repository they are in."""

_NUMBERED = re.compile(
    r"\bRULE\s+[A-Z]?\d|\b[Cc]ontract(?:\.md)?,?\s+\(?[A-Z](?:\.\d|,|\))|\b[Dd]esign,?\s+(?:section\b|\")"
)
"""A rule or a section by a number that only a document elsewhere explains."""


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings. GitHub numbers the headings that would share one."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for heading in _HEADING.findall(re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def links(page: str) -> Iterator[str]:
    """The targets within the repository that a page links to."""
    for found in _LINK.finditer(_CODE.sub("", page)):
        if not re.match(r"[a-z]+:", found["target"]):
            yield found["target"]


def fault(target: str, *, page: Path) -> str:
    """Why a link of a page leads nowhere; empty if it does not."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"{target}: there is no {path}"
    if anchor and anchor not in anchors(file.read_text()):
        return f"{target}: {file.name} has no heading of this anchor"
    return ""


def test_a_heading_gets_the_anchor_that_github_gives_it() -> None:
    page = "# The `--uds` flag, 2nd\n```\n# a comment\n```\n## What [it](x.md) does: all_of it\n## Same\n## Same\n"

    assert anchors(page) == {"the---uds-flag-2nd", "what-it-does-all_of-it", "same", "same-1"}


def test_links_to_other_sites_and_those_in_code_are_left_alone() -> None:
    page = "[a](b.md#c) [d](https://e) `[f](g)`\n```\n[h](i)\n```\n[over two\nlines](j.md)"

    assert list(links(page)) == ["b.md#c", "j.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert [why for target in links(page.read_text()) if (why := fault(target, page=page))] == []


def texts() -> Iterator[tuple[str, str]]:
    """Each text file of the repository except this one: its path and its content."""
    for file in [
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        *PAGES,
        *(f for top in SOURCES for f in (ROOT / top).rglob("*")),
    ]:
        is_text = file.suffix in {"", ".env", ".go", ".md", ".py", ".service", ".sh", ".toml", ".yaml"}
        if is_text and file.is_file() and file != Path(__file__):
            yield str(file.relative_to(ROOT)), file.read_text(errors="replace")


def test_every_page_that_the_sources_name_is_there() -> None:
    wrong = {
        f"{path}: {why}"
        for path, text in texts()
        for named in _NAMED.findall(text)
        if (why := fault(named if named.startswith("docs/") else f"docs/{named}", page=ROOT / "README.md"))
    }
    assert sorted(wrong) == []


def said_by(code: str) -> Iterator[str]:
    """Each text of a program, with a space in the place of what is filled in, and without what describes the code."""
    tree = ast.parse(code)
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(it.value) if isinstance(it, ast.Constant) else " " for it in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.value


@pytest.mark.slow
def test_every_page_that_a_program_tells_people_to_read_is_named_with_its_heading() -> None:
    """A page has hundreds of lines."""
    named = {
        (path, target)
        for path, text in texts()
        if path.startswith(("cli/", "cloud/", "common/", "edge/")) and path.endswith(".py")
        for said in said_by(text)
        for target in re.findall(r"\bdocs/[\w-]+\.md\S*?(?=[,;:.)]*(?:\s|$))", said)
    }
    assert len(named) > 9
    wrong = [
        f"{path}: {target}" for path, target in named if "#" not in target or fault(target, page=ROOT / "README.md")
    ]
    assert sorted(wrong) == []


def test_no_file_cites_a_document_that_the_repository_lacks() -> None:
    names = {page.name for page in PAGES} | _UPSTREAM
    unknown = {f"{path}: {name}" for path, text in texts() for name in _MENTIONED.findall(text) if name not in names}
    numbered = {f"{path}: {found[0]}" for path, text in texts() for found in _NUMBERED.finditer(text)}
    assert sorted(unknown | numbered) == []


def named_tests(page: str) -> Iterator[tuple[Path, str]]:
    """The tests that a page names: each one's file and function, which is empty for all of the file."""
    file = ""
    for found in _TEST.finditer(page):
        if found["file"]:
            file = found["file"] if "/" in found["file"] else f"intrusion/{found['file']}"
        if found["file"] or found["name"]:
            yield ROOT / "tests" / file, found["name"] or ""


def is_there(file: Path, name: str) -> bool:
    """Whether a file of tests exists, and has the function."""
    return file.is_file() and (not name or re.search(rf"\bdef {name}\(", file.read_text()) is not None)


def test_every_test_that_the_security_page_names_is_there() -> None:
    named = list(named_tests((ROOT / "SECURITY.md").read_text()))
    assert len(named) > 100
    assert [f"{file}::{name}" for file, name in named if not is_there(file, name)] == []


def test_a_test_is_named_with_its_file_or_after_it() -> None:
    page = "`test_a.py::test_b`, `::test_c` | `unit/test_d.py` | `::test_e`"
    assert [(file.relative_to(ROOT / "tests").as_posix(), name) for file, name in named_tests(page)] == [
        ("intrusion/test_a.py", "test_b"), ("intrusion/test_a.py", "test_c"), ("unit/test_d.py", ""),
        ("unit/test_d.py", "test_e"),
    ]  # fmt: skip
