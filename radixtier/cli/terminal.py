"""Whether lines of a stream can be written over.

Owns nothing. Any thread.
"""

from __future__ import annotations

import os
from typing import TextIO


def rewrites(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that obeys escape codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
