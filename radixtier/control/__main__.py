"""``python -m radixtier.control``: prints the schema of the control endpoint."""

from __future__ import annotations

import json
import sys

from radixtier.control.openapi import document

if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=2)
    sys.stdout.write("\n")
