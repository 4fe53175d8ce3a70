"""House rules that no linter knows. Exceptions are listed, and the list only shrinks."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG_FUNCTIONS = ROOT / "tests" / "unit" / "long_functions.txt"
FUNCTION_LINES_MAX = 40
FOLDER_MODULES_MAX = 20
# What several packages have, and the objects of AMQP in the broker and in its client.
SAME_KIND_OF_THING = {"errors", "settings"} | {
    *("channel", "connection", "consumer", "message", "queue", "session")
}
# Words of the field that end like gerunds.
NOUNS = {"routing", "testing", "string", "ring", "publishing", "streaming", "logging", "binding"}
SKIPPED_PARTS = {".git", ".venv", ".cache", "build", "data", "node_modules", "__pycache__", "dist"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".c", ".sh", ".yml", ".js", ".mjs", ".html", ".css"}
CORES = ("amqp", "journal", "broker", "cluster")
# What differs from process to process. A class may hash its own values.
UNREPEATABLE = re.compile(r"(?<![\w.])(id|(?<!return )hash)\(|\burandom\b|\buuid[14]\b|\bweakref\b")
# In pieces, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
NOT_OF_THE_PROJECT = re.compile(
    "|".join(
        (r"(?<![\w.])/wo" + r"rk/", r"\bsha" + r"red/", r"/tmp/" + r"x/", r"\.lib" + r"rary\b")
    )
)


def files(*roots: str) -> list[Path]:
    found = (p for root in roots for p in (ROOT / root).rglob("*"))
    return sorted(p for p in found if p.is_file() and not SKIPPED_PARTS & set(p.parts))


def python_files(*roots: str) -> list[Path]:
    return [p for p in files(*roots) if p.suffix == ".py"]


def text_files() -> list[Path]:
    tops = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT_SUFFIXES]
    below = files("src", "tests", "tools", "bench", "docs", "requirements", ".ci")
    return tops + [ROOT / "Makefile"] + [p for p in below if p.suffix in TEXT_SUFFIXES]


def matches(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def listed(path: Path) -> list[list[str]]:
    """The fields of each line of a list of exceptions."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [fields for fields in lines if fields]


def written_modules() -> dict[str, str]:
    """Path -> text of the modules that people write; generated ones say so in their first lines."""
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in python_files("src", "tools", "bench")}
    return {name: text for name, text in texts.items() if "\nWritten by tools/" not in text[:400]}


@cache
def function_lengths() -> dict[str, int]:
    """ "path:Class.function" -> its lines, decorators and docstring not counted."""
    lengths: dict[str, int] = {}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(child) is not None
                first = child.body[1 if docstring and len(child.body) > 1 else 0]
                lengths[f"{name}{child.name}"] = (child.end_lineno or 0) - first.lineno + 1
                visit(child, f"{name}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{name}{child.name}.")

    for path, text in written_modules().items():
        visit(ast.parse(text), f"{path}:")
    return lengths


def test_functions_are_short_enough_to_read() -> None:
    allowed = {fields[0]: int(fields[1]) for fields in listed(LONG_FUNCTIONS)}
    too_long = {
        name: lines
        for name, lines in function_lengths().items()
        if lines > max(FUNCTION_LINES_MAX, allowed.get(name, 0))
    }
    assert not too_long, f"these do more than one thing: {too_long}"


def test_list_of_long_functions_only_shrinks() -> None:
    lengths = function_lengths()
    for name, _ in listed(LONG_FUNCTIONS):
        assert name in lengths, f"{name} is gone: remove it from {LONG_FUNCTIONS.name}"
        assert lengths[name] > FUNCTION_LINES_MAX, f"{name} is short now: remove it from the list"


def modules() -> list[Path]:
    return [each for each in python_files("src") if each.name != "__init__.py"]


def test_modules_are_named_by_a_noun() -> None:
    """A gerund without an object ("taking") says neither what is taken nor what is inside."""
    gerunds = [each for each in modules() if re.fullmatch(r"[a-z]+ing", each.stem)]
    assert [str(each) for each in gerunds if each.stem not in NOUNS] == []


def test_folders_are_small_enough_to_look_through() -> None:
    counts = Counter(each.parent for each in modules())
    assert {str(each): n for each, n in counts.items() if n > FOLDER_MODULES_MAX} == {}


def test_base_names_of_modules_occur_once() -> None:
    counts = Counter(each.stem for each in modules() if "substitutes" not in each.parts)
    assert {name for name, count in counts.items() if count > 1} == SAME_KIND_OF_THING


# The modules of a package that know each other in a circle, at most; `TYPE_CHECKING` counts. These
# numbers only fall: a port, or a value type in a module of its own, breaks a circle.
CIRCLE_MODULES_MAX = {"broker": 12, "cli": 5, "client": 5, "cluster": 4, "spark": 3}
OTHER_CIRCLE_MODULES_MAX = 2


def imports_of(tree: ast.AST, known: frozenset[str]) -> set[str]:
    """The modules that a module imports, at once, later or for its types."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{each.name}" for each in node.names}
            found |= (whole & known) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & known


def module_trees(root: Path) -> dict[str, ast.Module]:
    """Dotted name -> syntax tree of every module below a folder of sources."""
    trees = {}
    for path in python_files(str(root.relative_to(ROOT))):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text())
    return trees


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules each of which reaches all others of its set."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            for each in graph[waiting.pop()] - seen:
                seen.add(each)
                waiting.append(each)
        reached[module] = seen
    found: dict[frozenset[str], None] = {}
    for module, seen in reached.items():
        circle = frozenset(each for each in seen if module in reached[each])
        if len(circle) > 1:
            found[circle] = None
    return [set(each) for each in found]


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return module_trees(ROOT / "src" / "rhizome")


@pytest.fixture(scope="module")
def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    known = frozenset(trees)
    return {name: imports_of(tree, known) for name, tree in trees.items()}


def test_circles_of_imports_only_shrink(imports: dict[str, set[str]]) -> None:
    graph = dict(imports)
    # The face of the package, which everybody imports for the version, loads `embedded` when asked.
    graph["rhizome"] = set()
    sizes: dict[str, int] = {}
    for circle in circles(graph):
        packages = Counter((*each.split("."), "")[1] for each in circle)
        for package, size in packages.items():
            sizes[package] = max(size, sizes.get(package, 0))
    for package, size in sizes.items():
        most = CIRCLE_MODULES_MAX.get(package, OTHER_CIRCLE_MODULES_MAX)
        assert size <= most, f"{size} modules of {package} import each other in a circle"
    shrunk = {each: sizes.get(each, 0) for each, most in CIRCLE_MODULES_MAX.items()}
    assert shrunk == CIRCLE_MODULES_MAX, "the circle is smaller now: lower its number"


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"f"}}
    assert circles(graph) == [{"a", "b", "c"}]


def words_in_strings(tree: ast.AST) -> set[str]:
    """The words of the texts of a module that are no docstrings: names of modules among them are
    loaded when they are needed."""
    prose = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    return {
        word
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        for word in re.findall(r"\w+", node.value)
    }


def loaded_by_name(names: set[str], trees: dict[str, ast.Module]) -> set[str]:
    words = {name: words_in_strings(tree) for name, tree in trees.items()} if names else {}
    return {
        name
        for name in names
        if any(name.rpartition(".")[2] in said for other, said in words.items() if other != name)
    }


def used_by_tests(names: set[str]) -> set[str]:
    """Only files that have the last part of such a name can import it."""
    stems = re.compile("|".join(name.rpartition(".")[2] for name in names) or "(?!)")
    texts = (path.read_text() for path in python_files("tests", "bench", "tools"))
    found = (imports_of(ast.parse(text), frozenset(names)) for text in texts if stems.search(text))
    return set().union(*found)


def test_compiled_classes_declare_an_attribute_once(trees: dict[str, ast.Module]) -> None:
    """mypyc tells the garbage collector twice of an attribute that a subclass declares again. It
    then takes what is there for used by others, and never frees it."""
    classes = {
        node.name: (
            attributes_of(node),
            [base.id for base in node.bases if isinstance(base, ast.Name)],
        )
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def inherited(name: str) -> set[str]:
        if name not in classes:
            return set()
        return set().union(
            *(classes.get(b, (set(), []))[0] | inherited(b) for b in classes[name][1])
        )

    again = {name: attributes & inherited(name) for name, (attributes, _) in classes.items()}
    assert {name: found for name, found in again.items() if found} == {}


def attributes_of(node: ast.ClassDef) -> set[str]:
    """The attributes of instances that a class declares."""
    return {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        if "ClassVar" not in ast.unparse(each.annotation) and each.value is None
    }


def test_no_module_is_dead(trees: dict[str, ast.Module], imports: dict[str, set[str]]) -> None:
    """Something imports every module, or loads it by its name. Tests may be all that use a module
    that is there for testing."""
    known = set(trees)
    entry_points = set(re.findall(r"rhizome(?:\.\w+)+", (ROOT / "pyproject.toml").read_text()))
    used = {"rhizome.__main__", *(entry_points & known)}
    for name, imported in imports.items():
        used |= imported - {name}
    packages = {name.rpartition(".")[0] for name in known}
    shipped = ROOT / "src" / "rhizome" / "spark" / "shipment" / "substitutes"
    stems = {path.stem for path in shipped.glob("*.py")}
    left = {each for each in known - used - packages if each.rpartition(".")[2] not in stems}
    left -= used_by_tests({each for each in left if each.startswith("rhizome.testing.")})
    assert left - loaded_by_name(left, trees) == set()


def test_nothing_is_left_for_later() -> None:
    assert not matches(UNFINISHED, python_files("src", "tests", "tools", "bench"))


def test_source_never_sleeps_for_a_condition() -> None:
    # One place polls: another process's output and ports tell nobody when they change.
    polling = ROOT / "src" / "rhizome" / "testing" / "broker_process.py"
    others = [p for p in python_files("src") if p != polling]
    assert not matches(re.compile(r"\btime\.sleep\("), others)


def test_cores_ask_for_nothing_that_a_simulation_could_not_repeat() -> None:
    assert not matches(UNREPEATABLE, python_files(*(f"src/rhizome/{core}" for core in CORES)))


def test_generated_names_and_paths_of_a_workplace_stay_out() -> None:
    assert not matches(NOT_OF_THE_PROJECT, text_files())


SPARK = re.compile(r"/rhizome/(spark/|cli/pipeline/)")


@pytest.mark.parametrize("word", ["master", "slave"])
def test_source_uses_the_words_of_the_glossary(word: str) -> None:
    # What others call so is called so: Spark's clusters have a master.
    ours = re.compile(rf"(?<![-.])\b{word}s?\b(?!-)", re.IGNORECASE)
    files = [each for each in python_files("src") if not SPARK.search(str(each))]
    assert not matches(ours, files)


def test_what_an_event_loop_finds_open_when_it_is_closed_is_no_error() -> None:
    """Raised from within uvloop's close(), it would keep that from ever returning."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.warn("unclosed resource <TCPTransport>", ResourceWarning, stacklevel=1)
    assert len(heard) == 1
