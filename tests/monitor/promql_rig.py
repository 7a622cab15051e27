"""PromQL expressions held against the table of series: names, labels, and what may be done with each type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser as promql
from monitor_rig import make_state

from radixtier.monitor.series import COMMON_LABELS, SERIES, Kind, Series

SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""

GROWTH = {"rate", "increase", "irate"}
SUFFIXES = ("_bucket", "_sum", "_count")

BY_NAME = {series.name: series for series in SERIES}


def parse(expr: str) -> Any:
    """Parse an expression, also one with Grafana's variables in place of a duration."""
    return promql.parse(expr.replace("$__rate_interval", "5m"))


def series_of(name: str) -> Series:
    """Return the series that a selector names, a part of a histogram included."""
    if name in BY_NAME and BY_NAME[name].kind is not Kind.HISTOGRAM:
        return BY_NAME[name]
    for suffix in SUFFIXES:
        series = BY_NAME.get(name.removesuffix(suffix))
        if name.endswith(suffix) and series is not None and series.kind is Kind.HISTOGRAM:
            return series
    raise AssertionError(f"{name} is not exported")


def known_values(series: Series, label: str) -> set[str]:
    """Values that a label of a series takes on some server."""
    at = series.labels.index(label)
    if series.observe is not None:
        return {series.observe((kind, 1.0, 1))[0][at] for kind in ("read", "write", "verify")}
    return {labels[at] for labels, _ in series.read(make_state(1, 1))}


def selectors(node: Any) -> Iterator[Any]:
    """Yield the selectors of an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for child in children(node):
        yield from selectors(child)


def children(node: Any) -> list[Any]:
    if isinstance(node, promql.MatrixSelector):
        return [node.vector_selector]
    if isinstance(node, promql.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, promql.Call):
        return list(node.args)
    return [node.expr] if hasattr(node, "expr") else []


def check_selector(selector: Any) -> None:
    """See that a selector can match something."""
    series = series_of(selector.name)
    for matcher in selector.matchers.matchers:
        assert matcher.name in labels_of(selector), f"{selector.name} has no label {matcher.name}"
        free = matcher.name == "directory" or "$" in matcher.value
        if matcher.name in series.labels and not free:
            assert matcher.value in known_values(series, matcher.name), f"{selector.name}: never {matcher.value}"


def labels_of(node: Any) -> set[str]:
    """Return the labels that the result of an expression has; asserts that aggregations keep labels that are there."""
    if isinstance(node, promql.VectorSelector):
        series = series_of(node.name)
        le = {"le"} if node.name.endswith("_bucket") else set()
        return {*series.labels, *COMMON_LABELS, *SCRAPED, *le}
    if isinstance(node, promql.AggregateExpr):
        inner = labels_of(node.expr)
        kept = set() if node.modifier is None else set(node.modifier.labels)
        assert kept <= inner, f"{node}: no label {kept - inner}"
        return kept
    if isinstance(node, promql.Call):
        found = set().union(*map(labels_of, node.args))
        if node.func.name == "histogram_quantile":
            assert "le" in found, f"{node}: needs le"
            found.discard("le")
        return set() if node.func.name in ("scalar", "vector", "time") else found
    if isinstance(node, promql.BinaryExpr):
        left, right = labels_of(node.lhs), labels_of(node.rhs)
        return left or right
    return set().union(*map(labels_of, children(node)))


def check_types(node: Any, growth: str | None = None) -> None:
    """See that counters and histograms are looked at by their growth, and gauges never are."""
    if isinstance(node, promql.VectorSelector):
        counts = series_of(node.name).kind is not Kind.GAUGE
        assert counts or growth is None, f"{growth} of the gauge {node.name}"
        return
    if isinstance(node, promql.Call):
        growth = node.func.name if node.func.name in GROWTH else growth
    for child in children(node):
        check_types(child, growth)


def check(expr: str) -> Any:
    """Parse an expression and hold it against the table; return it parsed."""
    node = parse(expr)
    assert list(selectors(node)), expr
    for selector in selectors(node):
        check_selector(selector)
    labels_of(node)
    check_types(node)
    return node
