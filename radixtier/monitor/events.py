"""The last log lines of this process, for those who look at a server without its log.

Owns a bounded number of them. Lines in a row that say the same are one, with how often it came. Any thread.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import Any

MOST = 512
MOST_TEXT = 2000
"""Characters of one line."""

PREFIX = "radixtier: "


class EventLog(logging.Handler):
    """Listens on a logger, INFO and above, until it is closed."""

    def __init__(self, logger: str = "radixtier", most: int = MOST) -> None:
        super().__init__(logging.INFO)
        self._logger = logging.getLogger(logger)
        self._events: deque[dict[str, Any]] = deque(maxlen=most)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; called under the handler's lock."""
        text, level = _text(record), record.levelname.lower()
        last = self._events[-1] if self._events else None
        if last is not None and (last["text"], last["level"]) == (text, level):
            self._events[-1] = {**last, "at": record.created, "times": last["times"] + 1}
        else:
            self._events.append({"at": record.created, "level": level, "text": text, "times": 1})

    def to_json(self, limit: int) -> dict[str, Any]:
        """Return up to ``limit`` events, the newest first; ``at`` is when it came last, Unix seconds."""
        assert self.lock is not None
        with self.lock:
            return {"events": list(islice(reversed(self._events), max(0, limit)))}

    def close(self) -> None:
        """Listen no longer; what is kept stays."""
        self._logger.removeHandler(self)
        super().close()


def _text(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = f"{text} ({type(error).__name__}: {error})"
    except Exception:  # arguments that do not fit, or that cannot be told: the line says that much
        text = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
    return text.removeprefix(PREFIX)[:MOST_TEXT]
