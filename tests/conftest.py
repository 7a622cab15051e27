"""One Hypothesis profile for all tests: a red run is red again, and nothing is timed.

``RADIXTIER_TEST_SCALE=20`` runs so many times the examples of the state machines, other ones every time.
"""

from __future__ import annotations

import os

from hypothesis import settings

SCALE = int(os.environ.get("RADIXTIER_TEST_SCALE", "1"))

settings.register_profile("radixtier", derandomize=SCALE == 1, deadline=None, print_blob=True)
settings.load_profile("radixtier")
