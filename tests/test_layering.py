"""Imports point up the list of layers only, and the core is pure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trouper

SOURCE = Path(trouper.__file__).parent
#: From the bottom up; a module may import from its own layer and from those before it.
LAYERS = (
    ("_errors",),
    ("core",),
    ("reading", "writing", "codec", "redaction"),
    ("journal", "threads", "foreign", "home", "checks"),
    ("actors", "models", "tools", "stores"),
    (
        "roster",
        "services",
        "subscription",
        "block",
        "past",
        "attached",
        "turn",
        "session",
        "resident",
        "spending",
        "snapshots",
        "ground",
        "arguments",
    ),
    ("host",),
    ("runtime", "events"),
    ("replay",),
    ("testing",),
    ("server", "cli", "docs"),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
#: What the core may not touch: time, chance, files, processes, the network, logs.
IMPURE = {
    "trio",
    "time",
    "random",
    "os",
    "logging",
    "secrets",
    "socket",
    "subprocess",
    "pathlib",
    "threading",
    "uuid",
    "io",
    "asyncio",
}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def type_checking_imports(path: Path) -> set[str]:
    """Imports that only a type checker sees."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom):
                    found.add(inner.module or "")
                    found |= {f"{inner.module}.{alias.name}" for alias in inner.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_up_the_list_only(path: Path) -> None:
    mine = layer_of(path)
    assert mine in RANK, f"{mine!r} is in no layer: add it to LAYERS and to the map in trouper/__init__.py"
    for name in imports(path) - type_checking_imports(path):
        if name.startswith("trouper."):
            other = name.split(".")[1]
            if other in RANK:
                assert RANK[other] <= RANK[mine], f"{path.name} ({mine}) imports {name}, which is above it"


@pytest.mark.parametrize("path", sorted((SOURCE / "core").rglob("*.py")), ids=lambda path: path.name)
def test_the_core_is_pure(path: Path) -> None:
    """I11: no I/O, no clock, no randomness."""
    roots = {name.split(".")[0] for name in imports(path)}
    assert not roots & IMPURE


def test_replay_never_imports_actors() -> None:
    for path in (SOURCE / "replay").rglob("*.py"):
        assert not any(name.startswith("trouper.actors") for name in imports(path)), path
