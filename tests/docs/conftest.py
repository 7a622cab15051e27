"""The documentation is tried on stores as the store's own tests make them."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("store", "config"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
