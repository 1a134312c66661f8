"""House rules that no tool checks."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TOPS = ("bench/", "cli/", "cloud/", "common/", "deploy/", "edge/", "examples/", "tests/")


def sources() -> list[Path]:
    places = ("bench", "cli", "cloud", "common", "edge", "examples", "tests")
    return [path for place in places for path in (ROOT / place).rglob("*.py") if "_pb2" not in path.name]


def test_every_exception_from_the_type_checker_has_its_reason() -> None:
    bare = re.compile(r"#\s*type: ignore(\[[^]]*\])?\s*$")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert found == []


def packages() -> list[Path]:
    places = (
        ROOT / place for place in ("cli", "cloud", "common", "edge", "examples/dirdriver", "tests/kit/testdriver")
    )
    return sorted(init.parent for place in places for init in place.rglob("__init__.py"))


def modules(package: Path) -> set[str]:
    """The modules and packages directly in a package."""
    files = {path.stem for path in package.glob("*.py") if "_pb2" not in path.name and not path.name.startswith("__")}
    return files | {path.parent.name for path in package.glob("*/__init__.py")}


def listed(package: Path) -> list[str]:
    """The names before the colon in each item of a package's docstring."""
    told = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    items = [line.partition(":")[0] for line in told.splitlines() if line.startswith("* `")]
    return [name for item in items for name in re.findall(r"`([^`]*)`", item)]


def test_each_package_lists_all_its_modules_in_reading_order() -> None:
    found = {str(package.relative_to(ROOT)): sorted(listed(package)) for package in packages()}
    assert found == {str(package.relative_to(ROOT)): sorted(modules(package)) for package in packages()}


def test_no_folder_has_more_than_a_dozen_modules_of_its_own() -> None:
    counts = {str(package.relative_to(ROOT)): len(list(package.glob("[!_]*.py"))) for package in packages()}
    rooms = ("cli", "cloud", "common", "edge")
    assert {name: count for name, count in counts.items() if count > 12 and name.startswith(rooms)} == {}


def test_an_agent_loads_no_library_that_it_needs_only_at_times() -> None:
    """Each takes memory of a small device. The module that imports it late says when it is needed."""
    program = (
        "import sys, cli.main, cli.process, edge.agent, edge.stores.sealing as sealing;"
        "sealing.Sealer(bytes(32)); print(*sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    unwanted = {
        "aiohttp", "anyio", "cryptography", "grpc", "http.server", "kubernetes", "multiprocessing", "prometheus_client",
        "unittest", "watchfiles", "wsgiref", "xml", "yaml", "edge.identity.join", "edge.identity.key_maker",
    }  # fmt: skip
    assert unwanted & set(shown.split()) == set()


def test_the_architecture_names_only_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = {name for name in re.findall(r"`([^`\s]+)`", page) if name.startswith(TOPS)}
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []


def test_the_architecture_tells_when_a_caller_gets_each_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = page.partition("## What the caller is told")[2].partition("\n## ")[0]
    codes = {row.split("|")[2].strip().partition(" ")[0].strip(",;:") for row in rows.splitlines() if "|" in row}
    product = [path for path in sources() if path.relative_to(ROOT).parts[0] in {"cloud", "common", "edge"}]
    found = {code for path in product for code in re.findall(r"code=Code\.(\w+)", path.read_text())}
    assert found - codes == set()
