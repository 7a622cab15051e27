"""The log as events: newest first, bounded, repeats counted, and only while somebody listens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from radixtier.monitor.events import MOST_TEXT, EventLog

LOGGER = logging.getLogger("radixtier.of.a.test")


@pytest.fixture
def events() -> Iterator[EventLog]:
    level = logging.getLogger("radixtier").level
    logging.getLogger("radixtier").setLevel(logging.DEBUG)
    log = EventLog(most=8)
    yield log
    log.close()
    logging.getLogger("radixtier").setLevel(level)


def texts(events: EventLog, limit: int = 100) -> list[str]:
    return [event["text"] for event in events.to_json(limit)["events"]]


def test_newest_first_without_the_prefix(events: EventLog) -> None:
    LOGGER.info("radixtier: %d pages are back", 5)
    LOGGER.warning("radixtier: /mnt takes no new pages")
    LOGGER.debug("radixtier: not for operators")
    logging.getLogger("somebody.else").warning("not ours")
    newest, oldest = events.to_json(100)["events"]
    assert (newest["level"], newest["text"], newest["times"]) == ("warning", "/mnt takes no new pages", 1)
    assert (oldest["level"], oldest["text"]) == ("info", "5 pages are back")
    assert newest["at"] >= oldest["at"] > 1e9


def test_equal_lines_in_a_row_are_one(events: EventLog) -> None:
    for text in ("a", "a", "a", "b", "a"):
        LOGGER.warning(text)
    LOGGER.info("a")
    found = [(event["text"], event["level"], event["times"]) for event in events.to_json(100)["events"]]
    assert found == [("a", "info", 1), ("a", "warning", 1), ("b", "warning", 1), ("a", "warning", 3)]


def test_bounded_in_number_and_length(events: EventLog) -> None:
    for i in range(100):
        LOGGER.info("line %d", i)
    assert texts(events) == [f"line {i}" for i in range(99, 91, -1)]
    assert texts(events, 2) == ["line 99", "line 98"]
    assert texts(events, 0) == texts(events, -3) == []
    LOGGER.info("x" * 10 * MOST_TEXT)
    assert len(texts(events, 1)[0]) == MOST_TEXT


def test_errors_and_lines_that_cannot_be_formatted(events: EventLog) -> None:
    try:
        raise OSError("broken")
    except OSError:
        LOGGER.exception("radixtier: it failed")
    # Not through the logger: pytest's own handler insists that it can be formatted.
    events.handle(logging.LogRecord("radixtier", logging.INFO, "", 1, "radixtier: %d pages", ("no number",), None))
    assert texts(events) == ["%d pages", "it failed (OSError: broken)"]


class _Untellable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_arguments_that_cannot_be_told_are_no_error(events: EventLog) -> None:
    for message, arguments in (("radixtier: %s", (_Untellable(),)), (_Untellable(), None)):
        events.handle(logging.LogRecord("radixtier", logging.INFO, "", 1, message, arguments, None))
    assert texts(events) == ["_Untellable", "%s"]


def test_what_is_told_later_changes_nothing_that_was_given_out(events: EventLog) -> None:
    LOGGER.info("a")
    before = events.to_json(10)
    LOGGER.info("a")
    assert before["events"][0]["times"] == 1 and events.to_json(10)["events"][0]["times"] == 2


def test_a_closed_log_listens_no_longer(events: EventLog) -> None:
    LOGGER.info("a")
    events.close()
    LOGGER.info("b")
    assert texts(events) == ["a"] and events not in logging.getLogger("radixtier").handlers


def test_many_threads(events: EventLog) -> None:
    def work() -> None:
        for _ in range(200):
            LOGGER.info("same")
            events.to_json(5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [event["times"] for event in events.to_json(5)["events"]] == [800]
