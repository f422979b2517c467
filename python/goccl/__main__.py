"""Lets `python -m goccl` do what the command `goccl` does."""

import sys

from goccl.cli import main

sys.exit(main())
