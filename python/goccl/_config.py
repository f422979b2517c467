"""`goccl config`: the flags with which C programs are compiled."""

from __future__ import annotations

import argparse
from pathlib import Path

from goccl._command import add_examples

PACKAGE = Path(__file__).resolve().parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl config`."""
    add_examples(
        parser,
        ["cc program.c $(goccl config) -o program", "goccl config --libs"],
        {0: "the flags were printed", 2: "wrong arguments"},
    )
    parser.add_argument("--cflags", action="store_true", help="only those that find goccl.h")
    parser.add_argument("--libs", action="store_true", help="only those that link libgoccl.so")


def main(args: argparse.Namespace) -> int:
    """Prints the flags on one line."""
    flags = []
    if args.cflags or not args.libs:
        flags.append(f"-I{headers()}")
    if args.libs or not args.cflags:
        folder = PACKAGE / "lib"
        flags += [f"-L{folder}", "-lgoccl", f"-Wl,-rpath,{folder}"]
    print(*flags)
    return 0


def headers() -> Path:
    """Returns the folder of goccl.h: the package's, or that of the sources where the install is
    editable."""
    installed = PACKAGE / "include"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "capi"
