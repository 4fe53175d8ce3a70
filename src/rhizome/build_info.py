"""How this copy of Rhizome was built: compiled with mypyc, or interpreted.

`python -m rhizome.build_info` prints it.
"""

from importlib.machinery import EXTENSION_SUFFIXES

from rhizome import __version__, errors


def is_compiled() -> bool:
    """Whether the hot modules run as machine code. They are compiled as one unit: one tells all."""
    return (errors.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES))


def describe() -> str:
    return f"rhizome {__version__} ({'compiled with mypyc' if is_compiled() else 'interpreted'})"


if __name__ == "__main__":
    print(describe())
