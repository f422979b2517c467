"""`goccl config`: the flags with which C programs are compiled, and where their tools look."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from goccl import __version__
from goccl._command import add_examples

PACKAGE = Path(__file__).resolve().parent
LIB = PACKAGE / "lib"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl config`."""
    add_examples(
        parser,
        [
            "cc program.c $(goccl config) -o program",
            "goccl config --libs",
            "PKG_CONFIG_PATH=$(goccl config --pkgconfig-dir) pkg-config --cflags --libs goccl",
            "cmake -B build -Dgoccl_DIR=$(goccl config --cmake-dir)",
        ],
        {0: "what was asked for was printed", 2: "wrong arguments"},
    )
    parser.add_argument("--cflags", action="store_true", help="only those that find goccl.h")
    parser.add_argument("--libs", action="store_true", help="only those that link libgoccl.so.0")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--pkgconfig-dir", action="store_true", help="instead: the folder of goccl.pc")
    one.add_argument(
        "--cmake-dir", action="store_true", help="instead: the folder of goccl-config.cmake"
    )
    one.add_argument("--version", action="store_true", help="instead: the version of goccl")


def main(args: argparse.Namespace) -> int:
    """Prints what was asked for on one line."""
    parts = [name for name in ("cflags", "libs") if getattr(args, name)]
    for name, printed in {
        "pkgconfig_dir": LIB / "pkgconfig",
        "cmake_dir": LIB / "cmake" / "goccl",
        "version": __version__,
    }.items():
        if getattr(args, name):
            if parts:
                option = name.replace("_", "-")
                print(f"goccl config: --{option} cannot go with --{parts[0]}", file=sys.stderr)
                return 2
            print(printed)
            return 0
    flags = []
    if "cflags" in parts or not parts:
        flags.append(f"-I{headers()}")
    if "libs" in parts or not parts:
        flags += [f"-L{LIB}", "-lgoccl", f"-Wl,-rpath,{LIB}"]
    print(*flags)
    return 0


def headers() -> Path:
    """Returns the folder of goccl.h: the package's, or that of the sources where the install is
    editable."""
    installed = PACKAGE / "include"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "capi"
