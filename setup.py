"""Builds Rhizome; compiles the modules of tools/hot_modules.txt with mypyc as one unit.

The same .py files run interpreted, so a machine without a C compiler gets a slower broker and not
a failed install: the build says so, and `rhizome --version` says it again. Type errors and C errors
in the hot modules are errors of ours and do fail the build.

RHIZOME_PURE=1 at build time skips the compiling.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

from build_progress import BuildProgress  # noqa: E402
from hot_list import hot_modules  # noqa: E402

GROUP_NAME = "rhizome_hot"  # the shared library is src/rhizome_hot__mypyc.*.so
COMPILING_COMMANDS = {"build", "build_ext", "bdist_wheel", "editable_wheel", "install", "develop"}
# mypyc writes one .c file per module, so that all cores compile; the linker then optimises them
# together, so that small functions are inlined across modules as if there were one file. Measured
# on 13,000 lines and 2 cores: one file 73 s, many files 60 s, many files and this 41 s.
LTO_CFLAGS = ["-flto", "-fvisibility=hidden"]
LTO_LDFLAGS = ["-flto=auto", "-O3", "-fvisibility=hidden"]


def why_not_compiled() -> str | None:
    """The reason to install interpreted modules on this machine, or None."""
    if os.environ.get("RHIZOME_PURE") == "1":
        return "RHIZOME_PURE=1 is set"
    try:
        import mypyc.build  # noqa: F401
    except ImportError as missing:
        return f"mypyc is missing ({missing}); install mypy[mypyc] and build again"
    if not c_compiler_works([], []):
        return "no working C compiler with Python's headers; install gcc and build again"
    return None


def c_compiler_works(cflags: list[str], ldflags: list[str]) -> bool:
    """Build a library of one line with Python.h: a compiler without headers is no use either."""
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler, get_python_inc

    compiler = new_compiler()
    customize_compiler(compiler)
    command = getattr(compiler, "compiler_so", None)
    if command and shutil.which(command[0]) is None:
        return False
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "probe.c"
        source.write_text("#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n")
        try:
            objects = compiler.compile(
                [str(source)],
                output_dir=scratch,
                include_dirs=[get_python_inc()],
                extra_postargs=cflags,
            )
            compiler.link_shared_object(
                objects, str(Path(scratch) / "probe.so"), extra_postargs=ldflags
            )
        except Exception:  # each compiler class raises its own
            return False
    return True


def extensions() -> list[Extension]:
    if not COMPILING_COMMANDS & set(sys.argv):
        return []  # metadata only: mypyc would type-check the world for nothing
    reason = why_not_compiled()
    if reason is not None:
        print(f"rhizome: building INTERPRETED modules: {reason}.", file=sys.stderr)
        return []
    from mypyc.build import mypycify

    os.chdir(ROOT)
    modules = [str(path.relative_to(ROOT)) for path in hot_modules()]
    with BuildProgress() as progress:
        progress.stage(f"translating {len(modules)} modules to C")
        compiled: list[Extension] = mypycify(
            ["--follow-imports=silent", *modules],
            opt_level=os.environ.get("RHIZOME_OPT_LEVEL", "3"),
            debug_level="0",
            multi_file=True,
            group_name=GROUP_NAME,
            target_dir="build/mypyc",
        )
    if c_compiler_works(LTO_CFLAGS, LTO_LDFLAGS):
        library = compiled[0]
        library.extra_compile_args = [*library.extra_compile_args, *LTO_CFLAGS]
        library.extra_link_args = [*library.extra_link_args, *LTO_LDFLAGS]
    return compiled


class ParallelBuildExt(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles and links on all cores, only what changed, and shows how far it is.

    mypyc makes one library of all modules, and for each module an extension that only hands its
    initialisation on to the library. distutils would build these one after the other, the files of
    the library too, and all of them again when one has changed. mypyc leaves a .c or .h alone whose
    content is the same, so time stamps tell.
    """

    def build_extensions(self) -> None:
        compiler: Any = self.compiler
        if not self.extensions or compiler.compiler_type != "unix":
            super().build_extensions()
            return
        self.parallel = len(os.sched_getaffinity(0))
        with BuildProgress() as progress:
            compiler.compile = ChangedFiles(compiler, progress, self.parallel).compile
            sources = sum(len(extension.sources) for extension in self.extensions)
            progress.stage("compiling C files", sources)
            super().build_extensions()


class ChangedFiles:
    """Compiles those C files of an extension that changed, in parallel."""

    def __init__(self, compiler: Any, progress: BuildProgress, jobs: int) -> None:
        self.compiler = compiler
        self.progress = progress
        self.jobs = jobs

    def compile(self, sources: list[str], **options: Any) -> list[str]:
        compiler = self.compiler
        extra = [*(options.get("extra_postargs") or []), "-MMD"]
        _macros, objects, extra, pp_opts, build = compiler._setup_compile(
            options.get("output_dir"),
            options.get("macros"),
            options.get("include_dirs"),
            sources,
            options.get("depends"),
            extra,
        )
        cc_args = compiler._get_cc_args(pp_opts, options.get("debug"), None)

        def compile_one(path: str) -> None:
            if path in build and is_stale(path):
                compiler._compile(path, *build[path], cc_args, extra, pp_opts)
            self.progress.step(Path(path).stem.removeprefix("__native_").replace("___", "."))

        if len(objects) == 1:
            compile_one(objects[0])
            return list(objects)
        with ThreadPoolExecutor(self.jobs) as pool:
            for result in [pool.submit(compile_one, path) for path in objects]:
                result.result()
        self.progress.stage("linking and optimising all modules together")
        return list(objects)


def is_stale(object_path: str) -> bool:
    """Whether an input named in the compiler's dependency file is newer than the object."""
    depfile = Path(object_path).with_suffix(".d")
    try:
        built_at = os.stat(object_path).st_mtime_ns
        inputs = depfile.read_text().replace("\\\n", " ").split()[1:]
        return any(os.stat(path).st_mtime_ns > built_at for path in inputs)
    except OSError:
        return True


setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuildExt})
