"""Options of the JVMs of tests: short jobs gain from a quick start, not from compiling much."""

from __future__ import annotations

from typing import Final

from rhizome.spark.jvm_class_archive import java_options

QUICK_JVM: Final = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {java_options()}".strip()
