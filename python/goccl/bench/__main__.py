"""``python -m goccl.bench``: the same as ``goccl bench``."""

from __future__ import annotations

import argparse
import sys

from .options import DESCRIPTION, add_arguments, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m goccl.bench", description=DESCRIPTION)
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))
