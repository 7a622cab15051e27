"""docs/metrics.md, written from the table of series: ``python -m radixtier.monitor.reference > docs/metrics.md``."""

from __future__ import annotations

from radixtier.monitor.series import COMMON_LABELS, GROUPS, Series

HEAD = """# Metrics

Start the server with SGLang's `--enable-metrics`, and radixtier's series appear at the server's own `/metrics`, beside
`sglang:...`:

```bash
curl -s http://127.0.0.1:30000/metrics | grep ^radixtier_
```

`launch/grafana` has the rest of what an operator needs: `prometheus.yml` to scrape a server, `alerts.yml` with the alerts
([operations.md](operations.md) says what to do about each), and `radixtier.json`, a dashboard to import into Grafana.

Every series has the labels {common} beside its own. With `--tp-size N` each rank has series of its own: tokens, requests
and pages are the same on all of them, so look at `tp_rank="0"`; bytes, errors and the state of drives are each rank's part, to
be added up. With MLA the first rank [stores for all](store.md#one-store-for-all-ranks): capacity, use and writes of NVMe are
its alone, and 0 on the others. Each scheduler process updates its series once a
second, on a thread of its own; if that fails there is one warning, and serving goes on. What `GET /radix_tier/state` gives as null
has no series, such as the write budget of a server without one; a gauge whose figure is gone reads `NaN`. Counters count
from the start of the process. KV is counted in tokens, also where pages move, so that figures of servers with different
page sizes can be added up.

Some questions, and how to ask them:

| question | PromQL |
|---|---|
| which share of the prompt tokens came from which tier? | `sum by (source) (rate(radixtier_prompt_tokens_total[5m])) / scalar(sum(rate(radixtier_prompt_tokens_total[5m])))` |
| why is the rest computed? | `sum by (reason) (rate(radixtier_computed_tokens_total[5m]))` |
| how long does a request wait for NVMe? | `sum(rate(radixtier_waited_seconds_total[5m])) / sum(rate(radixtier_requests_total[5m]))` |
| how much comes too late? | `sum(rate(radixtier_awaited_tokens_total{{outcome="late"}}[5m])) / sum(rate(radixtier_awaited_tokens_total[5m]))` |
| how fast is the drive for one transfer? | `histogram_quantile(0.99, sum by (le) (rate(radixtier_io_seconds_bucket{{kind="read"}}[5m])))` |
| what does radixtier cost a step of the scheduler? | `rate(radixtier_tick_seconds_total[5m]) / rate(radixtier_ticks_total[5m])` |

The tables below are made from the code (`python -m radixtier.monitor.reference`).
"""  # noqa: E501 - lines of a document

COLUMNS = "| series | type | labels | meaning | what to make of it |\n|---|---|---|---|---|"


def render() -> str:
    """Return the whole document."""
    common = " and ".join(f"`{label}`" for label in COMMON_LABELS)
    parts = [HEAD.format(common=common)]
    for title, group in GROUPS.items():
        parts.append("\n".join([f"## {title}\n", COLUMNS, *map(_row, group)]) + "\n")
    return "\n".join(parts)


def _row(series: Series) -> str:
    labels = ", ".join(f"`{label}`" for label in series.labels)
    kind = f"{series.kind.value}, {series.unit}"
    return f"| `{series.name}` | {kind} | {labels} | {series.help} | {series.advice} |"


if __name__ == "__main__":
    print(render(), end="")
