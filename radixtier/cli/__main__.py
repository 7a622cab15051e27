"""Lets ``python -m radixtier.cli`` do what the ``radixtier`` command does."""

import sys

from radixtier.cli.main import main

sys.exit(main())
