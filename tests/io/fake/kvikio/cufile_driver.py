"""What cuFile says of itself."""

from __future__ import annotations

from typing import Any

from kvikio import says


def get(key: str) -> Any:
    return {"is_gds_available": says("nvidia-fs")}[key]
