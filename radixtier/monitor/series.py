"""Every series that goes to Prometheus: its name, what it is, and how it is read from a state.

Owns the names, which are an interface: dashboards and alerts are written against them. One table, :data:`SERIES`, says
everything; what exports, what documents and what tests all go by it. Base units as Prometheus has them: seconds, bytes,
ratios from 0 to 1, and tokens for KV. Reading a state never raises, whatever it lacks. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from radixtier.monitor.reading import Latency
from radixtier.monitor.samples import (
    KINDS,
    TIERS,
    Read,
    Sample,
    at,
    build,
    degraded,
    drives,
    items,
    of,
    status,
    tier_bytes,
)

COMMON_LABELS = ("model_name", "tp_rank")
"""What every series has beside its own labels."""

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BYTES = tuple(float(1 << power) for power in range(12, 25))


class Kind(Enum):
    """Types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Series:
    """One series.

    Attributes
    ----------
    name : str
        As Prometheus shows it; a histogram's without ``_bucket``, ``_sum`` and ``_count``.
    kind : Kind
        What it is.
    unit : str
        Of its value.
    help : str
        What it says, one sentence.
    advice : str
        What to make of it.
    read : callable
        Yields its samples from a state; a figure that does not apply has none. Of a histogram: nothing.
    observe : callable or None
        Of a histogram: the sample that one transfer makes.
    labels : tuple of str
        Its own labels, beside :data:`COMMON_LABELS`.
    buckets : tuple of float
        Of a histogram: the upper bounds.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    advice: str
    read: Read = field(default=lambda state: iter(()), repr=False)
    observe: Callable[[Latency], Sample] | None = field(default=None, repr=False)
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, unit: str, read: Read, help: str, advice: str, *labels: str) -> Series:
    return Series(name, Kind.COUNTER, unit, help, advice, read, labels=labels)


def _gauge(name: str, unit: str, read: Read, help: str, advice: str, *labels: str) -> Series:
    return Series(name, Kind.GAUGE, unit, help, advice, read, labels=labels)


def _histogram(
    name: str, unit: str, observe: Callable[[Latency], Sample], buckets: tuple[float, ...], help: str, advice: str
) -> Series:
    return Series(name, Kind.HISTOGRAM, unit, help, advice, observe=observe, labels=("kind",), buckets=buckets)


PAGE = "page_tokens"
"""Where a state has the tokens of a page: counters of pages are exported in tokens."""

ANSWERS = (
    _counter(
        "radixtier_requests_total", "requests", at("requests.finished"),
        "Requests that ended, health checks and aborted ones apart.",
        "The rate is the load.",
    ),
    _counter(
        "radixtier_prompt_tokens_total", "tokens", items("requests.tokens"),
        "Prompt tokens of these requests by where they came from: `hbm`, `dram`, `nvme`, or `computed`.",
        "The share of each source is the hit rate of that tier; compare it with what `radixtier lab` promises.",
        "source",
    ),
    _counter(
        "radixtier_computed_tokens_total", "tokens", items("requests.computed_because"),
        "Computed prompt tokens by reason, as in an explanation; some reasons are known seconds after the end.",
        "`never seen` and `always computed` are no loss. `evicted` asks for larger tiers, `not worth waiting for` for "
        "a faster drive, `declined` for a larger budget, `lost` for a look at the drives.",
        "reason",
    ),
    _counter(
        "radixtier_waited_seconds_total", "seconds", at("requests.waited_s"),
        "Time that admissions waited for pages on NVMe, over all requests.",
        "Over the requests it is the mean wait; it is never more than computing the pages would take.",
    ),
    _gauge(
        "radixtier_waiting_requests", "requests", at("requests.waiting_for_nvme"),
        "Requests that wait for pages on NVMe now.",
        "A few are normal under load. Many for long: the drive is the bottleneck.",
    ),
)  # fmt: skip

LEVELS = (
    _gauge(
        "radixtier_tier_capacity_tokens", "tokens", of(TIERS, "tiers.{}.capacity"),
        "Tokens that a tier can hold: `hbm`, `dram` or `nvme`.",
        "Fixed at start.", "tier",
    ),
    _gauge(
        "radixtier_tier_used_tokens", "tokens", of(TIERS, "tiers.{}.used"),
        "Tokens that a tier holds, running requests included.",
        "A full tier is normal: what is coldest goes. What it costs is in `radixtier_computed_tokens_total`.", "tier",
    ),
    _gauge(
        "radixtier_tier_capacity_bytes", "bytes", tier_bytes("capacity"),
        "The same as bytes of KV.", "Fixed at start.", "tier",
    ),
    _gauge(
        "radixtier_tier_used_bytes", "bytes", tier_bytes("used"),
        "The same as bytes of KV.", "As for tokens.", "tier",
    ),
    _gauge(
        "radixtier_dram_in_hbm_too_tokens", "tokens", at("tiers.dram.in_hbm_too"),
        "Tokens in DRAM that HBM has as well.",
        "DRAM gives these up first. Close to the use of DRAM: it adds little, HBM is as large as the working set.",
    ),
    _gauge(
        "radixtier_landing_capacity_tokens", "tokens", at("landing.capacity"),
        "Tokens that fit into the landing zone in GPU memory; missing where nothing goes straight to HBM.",
        "Fixed at start.",
    ),
    _gauge(
        "radixtier_landing_used_tokens", "tokens", at("landing.used"),
        "Tokens that are on their way there, or wait there for their request.",
        "Full for long: requests wait for room in HBM with their pages in the zone.",
    ),
    _gauge(
        "radixtier_pages", "pages", items("pages"),
        "Pages below HBM by state: `free`, `filling`, `dirty` (DRAM only), `clean` (DRAM and NVMe), `cold` (NVMe "
        "only), `lost` (nowhere).",
        "Many `dirty` pages for long: writes do not keep up, or are refused.", "state",
    ),
    _gauge("radixtier_nodes", "nodes", at("nodes"), "Nodes of the tree below HBM.", "Grows with different prompts."),
    _gauge(
        "radixtier_parked_pages", "pages", at("parked_pages"),
        "Pages that admission keeps from NVMe for now.",
        "They are lost when DRAM needs their frames; `radixtier_lost_tokens_total` counts that.",
    ),
    _gauge(
        "radixtier_pinned_pages", "pages", items("pins", "held"),
        "Pages that hints keep in a tier.", "At most a quarter of the tier; see `radixtier_pins`.", "tier",
    ),
    _gauge("radixtier_pins", "pins", items("pins", "pins"), "Pins by tier.", "Whoever sends hints knows why.", "tier"),
)  # fmt: skip

MOVES = (
    _counter(
        "radixtier_demoted_tokens_total", "tokens", at("counters.demoted", PAGE),
        "Tokens that left DRAM and are on NVMe.", "The rate says how fast DRAM turns over.",
    ),
    _counter(
        "radixtier_lost_tokens_total", "tokens", at("counters.lost", PAGE),
        "Tokens that left DRAM without a copy on NVMe.",
        "With admission or a write budget some are meant to. Else the drive takes no pages, or is too slow for them.",
    ),
    _counter(
        "radixtier_promoted_tokens_total", "tokens", items("promotions.by", "promoted", PAGE),
        "Tokens that came up from NVMe, to DRAM or straight to HBM, by trigger: a request (`arrival`), a `hint`, an "
        "expected `return`, `idle` time, a `probe` of the drive.",
        "What came up ahead of requests should be used: see the two below.", "trigger",
    ),
    _counter(
        "radixtier_landed_tokens_total", "tokens", at("counters.landed", PAGE),
        "Of these, tokens that went straight to HBM, without a frame of DRAM.",
        "None though direct reads are on: what returns is short or shared. The law is in `docs/policies.md`.",
    ),
    _counter(
        "radixtier_landing_missed_tokens_total", "tokens", of(("failed", "full"), "counters.landing_{}", PAGE),
        "Tokens that were to go straight to HBM and came through DRAM: a read `failed`, or the zone was `full`.",
        "`failed`: see `radixtier doctor`. Much of `full`: a larger --radix-tier-landing-size helps.", "reason",
    ),
    _counter(
        "radixtier_ahead_used_tokens_total", "tokens", items("promotions.by", "used", PAGE),
        "Tokens that came up ahead of a request which then used them, by trigger.",
        "Against `radixtier_ahead_wasted_tokens_total` it says how good the forecast is.", "trigger",
    ),
    _counter(
        "radixtier_ahead_wasted_tokens_total", "tokens", items("promotions.by", "wasted", PAGE),
        "Tokens that came up ahead of a request and left DRAM unused, by trigger.",
        "Costs reads that nobody waited for, nothing else.", "trigger",
    ),
    _counter(
        "radixtier_awaited_tokens_total", "tokens", of(("in_time", "late"), "promotions.{}", PAGE),
        "Tokens on NVMe that requests waited for, by outcome: `in_time`, or `late` and computed instead.",
        "A large share of `late`: the drive is slower than it was when the wait began.", "outcome",
    ),
    _counter(
        "radixtier_staged_tokens_total", "tokens", at("counters.staged", PAGE),
        "Tokens that were copied from HBM to DRAM once more, since HBM was about to lose them.",
        "Grows with the pressure on HBM.",
    ),
    _counter(
        "radixtier_writes_refused_tokens_total", "tokens", of(("rejected", "throttled"), "counters.writes_{}", PAGE),
        "Tokens that admission kept from NVMe: `rejected` by the policy, `throttled` by the write budget. What is "
        "asked about again counts again.",
        "`throttled` for long: the budget is smaller than the load.", "reason",
    ),
    _counter(
        "radixtier_declined_backup_tokens_total", "tokens", at("counters.backups_declined", PAGE),
        "Tokens that DRAM had no room for when they were to be copied from HBM.",
        "DRAM is too small for what runs, or nothing in it gets clean.",
    ),
    _counter(
        "radixtier_restored_tokens_total", "tokens", at("counters.restored", PAGE),
        "Tokens taken over from an earlier run.", "After a restart it should come near what NVMe held.",
    ),
)  # fmt: skip

TRANSFERS = (
    _counter(
        "radixtier_io_bytes_total", "bytes", of(KINDS, "io.{}.bytes"),
        "Bytes moved between DRAM and NVMe by kind: `read`, `write`, `verify`.",
        "The rate is the bandwidth in use; that of `write` wears the drive.", "kind",
    ),
    _counter(
        "radixtier_io_pages_total", "pages", of(KINDS, "io.{}.pages"),
        "Pages moved, with a checksum that is right.", "As for bytes.", "kind",
    ),
    _counter(
        "radixtier_io_errors_total", "pages", of(KINDS, "io.{}.errors"),
        "Pages that the device failed to move.",
        "Any is a reason to read the kernel's log. Pages that were not read are computed, those not written stay in "
        "DRAM.", "kind",
    ),
    _counter(
        "radixtier_io_busy_seconds_total", "seconds", of(KINDS, "io.{}.busy_s"),
        "Time of transfers, added up over the threads.", "The rate is the number of transfers in flight.", "kind",
    ),
    _gauge(
        "radixtier_io_queue_chunks", "chunks", at("io.queue"),
        "Transfers that wait for a thread; one is some MiB at most.",
        "Reads go first, so a long queue of writes is no harm.",
    ),
    _gauge("radixtier_io_running_chunks", "chunks", at("io.running"), "Transfers that run.", "At most the threads."),
    _histogram(
        "radixtier_io_seconds", "seconds", lambda each: ((each[0],), each[1]), SECONDS,
        "Time of one transfer of up to some MiB, checksums included, without the time in the queue.",
        "Compare the 99th percentile with what `radixtier doctor` measured on the idle drive.",
    ),
    _histogram(
        "radixtier_io_size_bytes", "bytes", lambda each: ((each[0],), float(each[2])), BYTES,
        "Size of one transfer.", "Small ones cost bandwidth: the drive is nearly full and its free space in pieces.",
    ),
    _gauge(
        "radixtier_nvme_read_bytes_per_second", "bytes per second", at("estimates.nvme_read_bytes_per_s"),
        "What the drives are believed to read, which waits are planned with.",
        "Far below what `radixtier doctor` measured: something else uses the drive.",
    ),
    _gauge(
        "radixtier_nvme_slowness_ratio", "ratio", at("estimates.nvme_slowness"),
        "How many times longer than usual reads take at the moment.", "About 1; above 2 the drive is disturbed.",
    ),
)  # fmt: skip

DRIVES = (
    _gauge(
        "radixtier_drive_degraded", "0 or 1", degraded,
        "Whether a drive takes no new pages.", "The log and `radixtier top` say why. What it holds is still read.",
        "directory",
    ),
    _gauge(
        "radixtier_drive_used_bytes", "bytes", drives("used_slots", "page_bytes"),
        "KV on a drive, as far as it is not free again.", "Full is normal.", "directory",
    ),
    _gauge(
        "radixtier_drive_quarantined_slots", "slots", drives("quarantined"),
        "Slots where something failed and that are tested before they are used again.",
        "More and more of them: the drive is dying.", "directory",
    ),
    _counter(
        "radixtier_checksum_failures_total", "pages", at("io.corrupt"),
        "Pages with a wrong checksum; they are computed instead.",
        "Should stay 0. A drive, a cable or memory changes bytes.",
    ),
    _counter(
        "radixtier_scrubbed_pages_total", "pages", at("counters.scrubbed"),
        "Pages that were read in the background and are right.", "Goes on while nothing else is to do.",
    ),
    _counter(
        "radixtier_scrub_failures_total", "pages", at("counters.scrubbed_bad"),
        "Pages that were read in the background and are bad.", "As for checksums; nobody had asked for these yet.",
    ),
    _gauge(
        "radixtier_write_budget_bytes_per_day", "bytes per day", at("wear.budget_bytes_per_day"),
        "What may be written in a day.", "Set with --radix-tier-write-budget; missing without one.",
    ),
    _gauge(
        "radixtier_write_budget_left_bytes", "bytes", at("wear.budget_bytes_left"),
        "What may be written now; at most an hour's share of a day.", "Near 0 for long: the budget is below the load.",
    ),
    _gauge(
        "radixtier_written_bytes_per_day", "bytes per day", at("wear.bytes_per_day"),
        "Mean rate of writing since the start; missing in the first ten minutes.",
        "Compare it with the drive's rating.",
    ),
    _gauge(
        "radixtier_rated_life_used_ratio", "ratio", at("wear.rated_life_used"),
        "Share of the bytes the drives are rated for that was written since the start, at 1 drive write per day for 5 "
        "years.", "Only what this server wrote since its start; the drive's SMART data has the whole.",
    ),
    _gauge(
        "radixtier_journal_waiting_runs", "runs", at("journal.waiting"),
        "Runs of pages that are to go on record for a restart.", "A second's worth is normal.",
    ),
    _gauge(
        "radixtier_journal_lag_seconds", "seconds", at("journal.lag_s"),
        "Age of the oldest of them.", "Below 2. What is not on record is missing after a crash, nothing else.",
    ),
    _counter(
        "radixtier_journal_dropped_pages_total", "pages", at("journal.dropped"),
        "Pages on NVMe that no restart will find, since the journal could not take them.",
        "Should stay 0. The file system is full or the drive overloaded.",
    ),
)  # fmt: skip

PROCESS = (
    _gauge(
        "radixtier_health_status", "0 or 1", status,
        "1 for the status that the server is in: `ok`, `degraded`, `draining`, `drained`.",
        "`radixtier top` and `GET /radix_tier/state` give the reasons.", "status",
    ),
    _counter(
        "radixtier_ticks_total", "steps", at("tick.count"), "Steps of the scheduler.", "For the mean of the next one.",
    ),
    _counter(
        "radixtier_tick_seconds_total", "seconds", at("tick.seconds"),
        "Time of the scheduler thread that radixtier took in these steps; when it is idle, without what answering "
        "questions takes.",
        "Look at the mean per step, below a millisecond as a rule: an idle scheduler makes many steps for nothing.",
    ),
    _gauge(
        "radixtier_tick_longest_seconds", "seconds", at("tick.longest_s"),
        "The longest since the start.", "Some milliseconds; bringing back a store after the start takes longer ones.",
    ),
    _gauge("radixtier_start_time_seconds", "seconds", at("started"), "Start of the cache, Unix time.", "For uptime."),
    _gauge(
        "radixtier_build_info", "1", build, "Versions of radixtier and SGLang.", "To see which server runs what.",
        "version", "sglang",
    ),
)  # fmt: skip

GROUPS: dict[str, tuple[Series, ...]] = {
    "What requests were served from": ANSWERS,
    "What the tiers hold": LEVELS,
    "What moves": MOVES,
    "Transfers": TRANSFERS,
    "Drives, wear and the journal": DRIVES,
    "The server": PROCESS,
}
"""All series, in the order in which they are documented."""

SERIES: tuple[Series, ...] = tuple(series for group in GROUPS.values() for series in group)
