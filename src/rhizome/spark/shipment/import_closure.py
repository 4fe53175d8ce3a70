"""Which modules of this package a set of modules imports, directly or not, found in the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

OURS: Final = ("rhizome", "pyspark_rhizome", "pyspark_rhizome_journal", "pyspark_rhizome_table")


class Sources:
    """The .py files below a directory, whether or not compiled modules lie beside them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def all_files(self) -> list[Path]:
        return sorted(path for name in OURS for path in (self.directory / name).rglob("*.py"))

    def below(self, package: str) -> list[str]:
        """The modules of a package and of packages in it."""
        top = self.directory.joinpath(*package.split("."))
        found = (path.relative_to(self.directory).with_suffix("") for path in top.rglob("*.py"))
        return [".".join(path.parts).removesuffix(".__init__") for path in found]

    def path_of(self, module: str) -> Path:
        """The source of a module; raises ImportError if there is none."""
        path = self._find(module)
        if path is None:
            raise ImportError(f"{self.directory} has no source of {module}", name=module)
        return path

    def closure(self, roots: Iterable[str]) -> dict[str, Path]:
        """The roots, all modules of ours that they import wherever they do, and their packages."""
        found = {root: self.path_of(root) for root in roots}
        waiting = list(found)
        while waiting:
            for name in self._needed(waiting.pop(), found):
                path = self._find(name)
                if path is not None and name not in found:
                    found[name] = path
                    waiting.append(name)
        return found

    def _needed(self, module: str, found: dict[str, Path]) -> Iterator[str]:
        yield module.rpartition(".")[0]
        yield from imported(ast.parse(found[module].read_text()))

    def _find(self, module: str) -> Path | None:
        if module.partition(".")[0] not in OURS:
            return None
        path = self.directory.joinpath(*module.split("."))
        for candidate in (path / "__init__.py", path.with_suffix(".py")):
            if candidate.is_file():
                return candidate
        return None


def imported(tree: ast.Module) -> Iterator[str]:
    """Every name that may be a module which this one imports, unless for types only."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports here name their module in full"
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)
        waiting.extend(ast.iter_child_nodes(node))


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
