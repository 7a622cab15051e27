"""What the subcommands of ``radixtier lab`` have in common: traces, the model's geometry, policies, speeds, sizes.

Owns their flags and how those are read. A value that cannot be used raises `ValueError` (`BadTrace`, `BadValue`) or
`OSError` with one line that names the flag or the file, the value and the fix; the dispatcher prints it and exits with
status 2. Main thread.

A subcommand calls ``add_...`` on its parser and then, with the parsed options, the function of the same name without
``add_``. Flags that a recorded trace answers by its header are None until then.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixtier.lab.future import NextUseOracle
from radixtier.lab.geometry import PRESETS, Geometry, preset
from radixtier.lab.rates import Rates
from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.recorded import RecordedTrace
from radixtier.lab.traces.sessions import SPREAD_S
from radixtier.lab.traces.trace import Trace
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.policy.prefill import FAST, Machine
from radixtier.policy.write_budget import parse_budget
from radixtier.tools.attention import DTYPES, from_config
from radixtier.tools.breakeven import DEFAULT_KV_BYTES
from radixtier.units import BadValue, Unit, format_bytes, parse_size

ORACLE = NextUseOracle.name
"""In the place of an eviction policy: who knows the next use."""

DEFAULT_POLICIES: dict[str, Any] = {"eviction": "lru", "admission": "auto", "write_budget": "none"}

MOST_BLOCKS = 1 << 50
"""Of a tier: 2 ** 50 blocks of 512 tokens are more KV than all drives made in a year hold."""

MOST_RANKS = 1024

SIZE_FORMS = "5000 (blocks of the trace), 2Mtok (tokens) or 40GB, 40GiB (bytes)"

_PER_SECOND = re.compile(r"\s*/\s*s\s*$", re.ASCII | re.IGNORECASE)


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_command(commands: Commands, name: str, summary: str, explanation: str) -> argparse.ArgumentParser:
    """Add the parser of a subcommand: what it does in one line, and what is to be known besides."""
    return commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=explanation,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


# ---- traces -----------------------------------------------------------------------------------------


def add_traces(parser: argparse.ArgumentParser, many: bool = False) -> None:
    """Add the trace, or several of them."""
    group = parser.add_argument_group("trace")
    add = group.add_argument
    add("traces", type=Path, nargs="+" if many else 1, metavar="TRACE", help="JSON lines, perhaps compressed with gzip")
    add("--skip-bad", action="store_true", help="leave out lines that cannot be used, and count them")
    spread = "time over which the starts of sessions are spread, for traces that do not tell (default %(default)s)"
    add("--spread", default=f"{SPREAD_S / 3600:.0f}h", metavar="TIME", help=spread)
    add("--seed", type=int, default=0, metavar="N", help="of those starts (default %(default)s)")


def traces(options: argparse.Namespace) -> list[Trace]:
    """Open the traces."""
    spread_s = _time(options.spread, "--spread")
    return [
        open_trace(file, skip_bad=options.skip_bad, spread_s=spread_s, seed=options.seed) for file in options.traces
    ]


# ---- geometry ---------------------------------------------------------------------------------------


def add_geometry(parser: argparse.ArgumentParser) -> None:
    """Add what tells the bytes of a token."""
    group = parser.add_argument_group("model", "Sizes in bytes are those of the whole server, the sum over its ranks.")
    model = group.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="PRESET", help=f"one of {', '.join(PRESETS)}")
    model.add_argument("--model-config", type=Path, metavar="FILE", help="a config.json, or the directory it is in")
    default = f"KV of one token on all ranks (default: the recording's, or {format_bytes(DEFAULT_KV_BYTES)})"
    model.add_argument("--kv-bytes-per-token", metavar="N", help=default)
    group.add_argument("--kv-dtype", choices=DTYPES, help="of the KV cache (default: the model's)")
    group.add_argument("--tp", type=int, default=1, metavar="N", help="ranks (default %(default)s)")


def geometry(options: argparse.Namespace, trace: Trace | None = None) -> Geometry:
    """Return the geometry that was asked for; that of a recorded trace where nothing was."""
    tp = options.tp
    if not 1 <= tp <= MOST_RANKS:
        raise BadValue(f"--tp {tp}: no number of ranks", f"Give 1 to {MOST_RANKS}")
    if options.kv_dtype and not (options.model or options.model_config):
        raise BadValue(f"--kv-dtype {options.kv_dtype}: of which model", "Give --model or --model-config too")
    try:
        if options.model:
            return Geometry.of(preset(options.model, options.kv_dtype), tp)
        if options.model_config:
            return Geometry.of(from_config(options.model_config, options.kv_dtype), tp)
    except BadValue as error:
        flag = f"--model {options.model}" if options.model else f"--model-config {options.model_config}"
        raise BadValue(f"{flag}: {error.why}", error.fix) from None
    if options.kv_bytes_per_token is not None:
        return Geometry(_kv_bytes(options.kv_bytes_per_token), tp)
    header = trace.header if isinstance(trace, RecordedTrace) else None
    if header is not None and header.page_bytes:
        return Geometry(max(1, header.page_bytes // header.page_tokens), tp)
    return Geometry(tp=tp)


def _kv_bytes(text: str) -> int:
    flag = "--kv-bytes-per-token"
    nbytes = int(text) if _is_integer(text) else _bytes(text, flag)
    if not 1 <= nbytes <= 1 << 40:
        raise BadValue(f"{flag} {text}: no number of bytes", "Give 1 at least, such as 131072 or 128KiB")
    return nbytes


# ---- policies ---------------------------------------------------------------------------------------


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Add what decides who stays and who is written."""
    add = parser.add_argument_group("policies").add_argument
    default = "(default: the recording's, or %s)"
    eviction = f"of DRAM and NVMe; {ORACLE} knows the future {default % DEFAULT_POLICIES['eviction']}"
    add("--eviction", "--policy", dest="eviction", choices=(*EVICTIONS, ORACLE), help=eviction)
    add("--admission", choices=ADMISSIONS, help=f"to NVMe {default % DEFAULT_POLICIES['admission']}")
    budget = f"500GB/day, 1.0DWPD or none {default % DEFAULT_POLICIES['write_budget']}"
    add("--write-budget", metavar="B", help=budget)
    add("--mirror", action="store_true", help="every block in HBM takes a block of DRAM, as with stock write-through")


def policies(options: argparse.Namespace, trace: Trace | None = None) -> dict[str, Any]:
    """Return ``eviction``, ``admission``, ``write_budget`` and ``mirror``: as asked, as recorded, or the defaults."""
    recorded = trace.recorded if isinstance(trace, RecordedTrace) else {}
    found = {name: _asked(options, name) or recorded.get(name) or value for name, value in DEFAULT_POLICIES.items()}
    try:
        parse_budget(found["write_budget"], 1)
    except BadValue as error:
        raise BadValue(f"--write-budget {found['write_budget']}: {error.why}", error.fix) from None
    return {**found, "mirror": options.mirror}


def _asked(options: argparse.Namespace, name: str) -> str | None:
    value: str | None = getattr(options, name)
    return value


# ---- speeds -----------------------------------------------------------------------------------------


def add_rates(parser: argparse.ArgumentParser) -> None:
    """Add what the imagined machine takes."""
    rates = Rates()
    add = parser.add_argument_group("speeds of the server that is imagined").add_argument
    add("--prefill-rate", metavar="TOKENS/S", help=f"of short prompts (default {1 / rates.prefill.linear:.0f})")
    add("--decode-rate", metavar="TOKENS/S", help=f"of one answer (default {1 / rates.decode_s:.0f})")
    add("--copy-rate", metavar="SIZE/S", help=f"DRAM to HBM (default {rates.copy / 1e9:g}GB/s)")
    add("--read-rate", metavar="SIZE/S", help=f"all drives together (default {rates.read / 1e9:g}GB/s)")
    add("--write-rate", metavar="SIZE/S", help=f"all drives together (default {rates.write / 1e9:g}GB/s)")
    doctor = "what radixtier doctor --json FILE wrote: speeds of drives for the two flags above"
    add("--doctor", type=Path, metavar="FILE", help=doctor)


def rates(options: argparse.Namespace) -> Rates:
    """Return the speeds; attention's share of prefill grows with the context as on the machine of the defaults."""
    prefill, base = FAST, Rates()
    if options.prefill_rate is not None:
        slower = 1 / (_rate(options.prefill_rate, "--prefill-rate") * FAST.linear)
        prefill = Machine(FAST.overhead, FAST.linear * slower, FAST.quadratic * slower)
    decode_s = base.decode_s
    if options.decode_rate is not None:
        decode_s = 1 / _rate(options.decode_rate, "--decode-rate")
    read, write = (base.read, base.write) if options.doctor is None else _measured(options.doctor)
    return Rates(
        prefill=prefill,
        decode_s=decode_s,
        copy=_bandwidth(options.copy_rate, "--copy-rate", base.copy),
        read=_bandwidth(options.read_rate, "--read-rate", read),
        read_latency_s=base.read_latency_s,
        write=_bandwidth(options.write_rate, "--write-rate", write),
    )


def _measured(file: Path) -> tuple[float, float]:
    """Read and write bytes/s of all directories of a doctor's report.

    Directories on one drive share it, which the report tells for reads only: writes are cut by the same share.
    """
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        speeds = report["directories"].values()
        reads, writes = (sum(float(speed[name]) for speed in speeds) for name in ("read_gbps", "write_gbps"))
        together = float(report["break_even"]["read_gbps"])
        found = (together * 1e9, writes * together / reads * 1e9)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RecursionError):
        found = (0.0, 0.0)
    if not all(0 < rate < math.inf for rate in found):
        raise BadValue(
            f"--doctor {file}: no speeds of drives in it",
            "Write it with: radixtier doctor DIR --json FILE, with the directories of the store",
        )
    return found


def _bandwidth(text: str | None, flag: str, default: float) -> float:
    return default if text is None else float(_bytes(_PER_SECOND.sub("", text), flag, "6GB or 500MB (per second)"))


def _rate(text: str, flag: str) -> float:
    rate = _number(text)
    if not 1e-6 <= rate <= 1e12:
        raise BadValue(f"{flag} {text}: no rate", "Give tokens per second, such as 5000")
    return rate


# ---- sizes ------------------------------------------------------------------------------------------


def blocks(text: str, flag: str, geometry: Geometry, block_tokens: int, nvme: bool = False) -> int:
    """Return how many blocks of the trace a size is.

    Parameters
    ----------
    text
        An integer: blocks. With a unit: tokens or bytes of the whole server; see :func:`radixtier.units.parse_size`.
    flag
        For the message; a tier may be absent (0), but HBM (``--hbm``) not.
    geometry, block_tokens
        What a block weighs.
    nvme
        Whether the blocks lie in a store, which has overhead; see :meth:`Geometry.blocks`.

    Raises
    ------
    BadValue
        For what is no size, rounds down to nothing, or is absurd.
    """
    if _is_integer(text):
        found = int(text)
    else:
        try:
            size = parse_size(text)
        except BadValue as error:
            raise BadValue(f"{flag} {text}: {error.why}", f"Write {SIZE_FORMS}") from None
        if size.unit is Unit.TOKENS:
            found = size.amount // block_tokens
        else:
            found = geometry.blocks(min(size.amount, 1 << 100), block_tokens, nvme=nvme)
        if size.amount and not found:
            weight = format_bytes(geometry.bytes_per_token * block_tokens)
            block = f"{block_tokens} tokens, {weight}{' and a journal' if nvme else ''}"
            raise BadValue(f"{flag} {text}: less than one block ({block})", f"Write {SIZE_FORMS}")
    if not 0 <= found <= MOST_BLOCKS:
        why = "a size cannot be negative" if found < 0 else f"more than {MOST_BLOCKS} blocks"
        raise BadValue(f"{flag} {text}: {why}", f"Write {SIZE_FORMS}")
    if not found and flag == "--hbm":
        raise BadValue(f"{flag} {text}: a server has HBM", f"Write {SIZE_FORMS}")
    return found


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d{1,30}\s*", text, re.ASCII) is not None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _bytes(text: str, flag: str, forms: str = "128KiB or 40GB") -> int:
    try:
        size = parse_size(text)
    except BadValue as error:
        raise BadValue(f"{flag} {text}: {error.why}", f"Give bytes, such as {forms}") from None
    if size.unit is not Unit.BYTES or not 0 < size.amount < 1 << 60:
        raise BadValue(f"{flag} {text}: no number of bytes", f"Give bytes, such as {forms}")
    return size.amount


def _time(text: str, flag: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d|)\s*", text, re.ASCII)
    time = float(match[1]) * {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86_400}[match[2]] if match else math.nan
    if not 0 <= time <= 1e9:
        raise BadValue(f"{flag} {text}: no time", "Give seconds, or such as 30min, 24h or 7d")
    return time
