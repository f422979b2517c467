"""``python -m goccl._bench``: the same as ``goccl bench``."""

from __future__ import annotations

import sys

from goccl._cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
