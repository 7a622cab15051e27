"""The one configuration object: what the operator asked for, checked, completed and turned into page counts.

Flags, environment and YAML all end here (:mod:`radixtier.settings` reads them). Invariant: a config that
passed :meth:`RadixTierConfig.validate` and :meth:`RadixTierConfig.with_defaults` has a concrete DRAM and NVMe
size. Immutable and picklable: it travels to the scheduler processes. Any thread.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from radixtier.control.address import Address, parse_address
from radixtier.control.runtime import runtime_socket
from radixtier.footprint import footprint, slot_bytes, slots_for
from radixtier.machine import FileSystem, Machine, directory_fault, drive_bytes, file_systems
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.policy.write_budget import parse_budget
from radixtier.units import BadValue, Size, Unit, format_bytes

IO_ENGINES = ("auto", "posix", "kvikio")

DIRECT = ("auto", "on", "off")
"""Whether pages go straight from NVMe to HBM."""

CONTROL_SOCKET = "radixtier.sock"
"""The control endpoint's socket beside the store."""

OTHERS = ("reclaim", "keep")
"""What becomes of the store of another model or shape that lies in the directory."""

DRAM_SHARE = Fraction(1, 2)
"""Of the available RAM, for DRAM when no size is given: the rest is for SGLang and the page cache."""

CPU_SHARE = Fraction(1, 4)
"""The same on ``--device cpu``, once for DRAM and once for "HBM": weights and activations live in RAM too."""

NVME_SHARE = Fraction(1, 2)
"""Of the free space less the reserve, when directories are given without a size."""

MIN_FREE = Size(1 << 30)
"""A gibibyte for logs and whatever else lives on the drive."""

SCRUB = Size(16 << 20)
"""Per second: all of a 3 TB store in two days, at half a percent of what one NVMe drive reads."""

LANDING = Size(256 << 20)
"""A share of GPU memory that SGLang leaves to activations anyway; some 2,000 tokens of an 8B model."""

_RAM_RESERVE = 10 * 2**30
_RAM_RESERVE_SHARE = Fraction(1, 4)


@dataclass(frozen=True)
class Problem:
    """One reason not to start, in words for the operator.

    Attributes
    ----------
    setting : str
        The flag, variable or YAML key as it was given.
    value : object
        Its value.
    why, fix : str
        What is wrong, and what to do; no closing period.
    """

    setting: str
    value: object
    why: str
    fix: str

    def __str__(self) -> str:
        stop = "" if self.fix.endswith(("?", ".")) else "."
        return f"{self.setting} {self.value}: {self.why}. {self.fix}{stop}".replace("\n", " ")


class RadixTierConfigError(ValueError):
    """The tier was asked for something it cannot do. Raised to users of ``Engine``; a command line exits."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"radixtier: {problem}" for problem in problems))
        self.problems = tuple(problems)


class Origin(NamedTuple):
    """Where a setting was given, and the text that was written there."""

    where: str
    text: str


@dataclass(frozen=True)
class RadixTierConfig:
    """What radixtier was asked to do, per server (not per rank).

    Attributes
    ----------
    enable : bool
        Whether the tier is on.
    hbm_size : Size or None
        KV cache in HBM; None leaves SGLang's own choice.
    dram_size : Size or None
        KV pages in host memory; None until :meth:`with_defaults`.
    nvme_size : Size or None
        Of the store on NVMe, journal included, over all directories; 0 for none; None until :meth:`with_defaults`.
    nvme_path : tuple of str
        Directories of the store, which get equal shares; empty without NVMe.
    nvme_min_free : Size
        Bytes on each file system that are left to others.
    nvme_others : str
        One of :data:`OTHERS`.
    io_engine : str
        One of :data:`IO_ENGINES`.
    direct : str
        One of :data:`DIRECT`.
    landing_size : Size
        GPU memory that pages are read to on their way straight to HBM.
    scrub : Size
        Bytes per second read in the background to verify pages; 0 for never.
    eviction, admission : str
        Policies, by the names that :mod:`radixtier.policy.eviction` and :mod:`radixtier.policy.admission` know.
    write_budget : str
        Most bytes written to NVMe, as :func:`radixtier.policy.write_budget.parse_budget` reads it.
    control : str or None
        Where the control endpoint listens, as :func:`radixtier.control.parse_address` reads it; None for
        :data:`CONTROL_SOCKET` in the first directory, or :func:`radixtier.control.runtime.runtime_socket` without one.
    record : str or None
        File to record the load in, for the lab; None for none.
    allow_untested : bool
        Whether a release of SGLang that was not tested may be used.
    origin : Mapping[str, Origin]
        Where the given fields came from, for messages.
    """

    enable: bool = False
    hbm_size: Size | None = None
    dram_size: Size | None = None
    nvme_size: Size | None = None
    nvme_path: tuple[str, ...] = ()
    nvme_min_free: Size = MIN_FREE
    nvme_others: str = "reclaim"
    io_engine: str = "auto"
    direct: str = "auto"
    landing_size: Size = LANDING
    scrub: Size = SCRUB
    eviction: str = "auto"
    admission: str = "auto"
    write_budget: str = "none"
    control: str | None = None
    record: str | None = None
    allow_untested: bool = False
    origin: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    def named(self, name: str) -> str:
        """Return how the operator wrote a field: its origin, or its flag where it was not given."""
        return self.origin[name].where if name in self.origin else f"--radix-tier-{name.replace('_', '-')}"

    def problem(self, name: str, why: str, fix: str) -> Problem:
        """Build a :class:`Problem` about one field, with the value as it was written."""
        if name in self.origin:
            shown = self.origin[name].text
        else:
            value = getattr(self, name)
            shown = " ".join(value) if isinstance(value, tuple) else str(value)
        return Problem(self.named(name), shown, why, fix)

    def validate(self, machine: Machine) -> list[Problem]:
        """Check everything that can be known before the model is.

        Parameters
        ----------
        machine : Machine
            What sizes in bytes are held against.

        Returns
        -------
        list of Problem
            All of them, empty if the server may start.
        """
        found = self._check_memory(machine)
        found += (self._check_path() + self._check_nvme()) or self._check_space()
        if self.io_engine not in IO_ENGINES:
            found.append(self.problem("io_engine", "unknown engine", f"Use one of {', '.join(IO_ENGINES)}"))
        found += self._check_direct()
        if self.nvme_others not in OTHERS:
            found.append(self.problem("nvme_others", "neither of the two", f"Use one of {', '.join(OTHERS)}"))
        return found + self._check_policies() + self._check_record()

    def _check_direct(self) -> list[Problem]:
        if self.direct not in DIRECT:
            return [self.problem("direct", "neither of the three", f"Use one of {', '.join(DIRECT)}")]
        if self.direct == "on" and not self.nvme_path:
            fix = "Add --radix-tier-nvme-path DIRECTORY, or drop it"
            return [self.problem("direct", "there is no NVMe tier to read from", fix)]
        if self.direct != "off" and not self.landing_size.amount:
            fix = "Give it a size, or set --radix-tier-direct off"
            return [self.problem("landing_size", "nothing can be read into no memory", fix)]
        return []

    def _check_policies(self) -> list[Problem]:
        found = []
        for name, known in (("eviction", EVICTIONS), ("admission", ADMISSIONS)):
            if getattr(self, name) not in known:
                found.append(self.problem(name, "unknown policy", f"Use one of {', '.join(known)}"))
        try:
            if self.bytes_per_day() is not None and not self.nvme_path:
                fix = "Add --radix-tier-nvme-path DIRECTORY, or drop the budget"
                found.append(self.problem("write_budget", "there is no NVMe tier to write to", fix))
        except BadValue as error:
            found.append(self.problem("write_budget", error.why, error.fix))
        return found

    def _check_record(self) -> list[Problem]:
        if self.record is None:
            return []
        directory = os.path.dirname(self.record)
        if os.path.lexists(self.record):
            fix = "Name another file, or move it away"
            return [self.problem("record", "it is there already, and nothing is written over", fix)]
        if not os.path.isdir(directory):
            fix = f"Create it (mkdir -p {directory}) or name a file elsewhere"
            return [self.problem("record", f"there is no directory {directory}", fix)]
        try:
            # As for a store: permission bits do not tell all.
            with tempfile.TemporaryFile(dir=directory) as probe:
                probe.write(b"\0")
        except OSError as error:
            fix = "Name a file in a directory that this user may write to"
            return [self.problem("record", f"{directory} cannot be written ({error.strerror})", fix)]
        return []

    def bytes_per_day(self) -> int | None:
        """Return the most bytes that may be written to NVMe per day, None for no limit; raises `BadValue`."""
        usable = self.nvme_path and not any(map(directory_fault, self.nvme_path))
        return parse_budget(self.write_budget, drive_bytes(self.nvme_path) if usable else None)

    def control_address(self, key: bool) -> Address | None:
        """Return where the control endpoint of this process listens, None for nowhere.

        Unless it was said where: beside the store, or else, without one, in a directory of this user's own.

        Parameters
        ----------
        key : bool
            Whether its clients need a key.

        Raises
        ------
        BadValue
            When that cannot be.
        """
        if self.control is not None:
            return parse_address(self.control, key)
        places = [os.path.join(directory, CONTROL_SOCKET) for directory in self.nvme_path[:1]]
        for path in (*places, runtime_socket(os.getpid())):
            try:
                return parse_address(f"unix:{path}", key)
            except BadValue:  # a path that is too long for a socket, which nobody asked for
                continue
        return None

    def with_defaults(self, machine: Machine, hbm_in_ram: bool = False) -> tuple[RadixTierConfig, list[str]]:
        """Choose the sizes that were not given.

        Parameters
        ----------
        machine : Machine
            What shares are taken of.
        hbm_in_ram : bool
            True on a CPU whose "HBM" has no limit yet: then it gets a share of the RAM as well.

        Returns
        -------
        config : RadixTierConfig
            With concrete ``dram_size`` and ``nvme_size``.
        notes : list of str
            One line for the log per choice made.
        """
        chosen: dict[str, Any] = {}
        notes = []
        share = CPU_SHARE if hbm_in_ram else DRAM_SHARE
        for name in ("hbm_size", "dram_size") if hbm_in_ram else ("dram_size",):
            if getattr(self, name) is None:
                chosen[name] = Size(int(machine.ram_bytes * share))
                notes.append(f"{self.named(name)} not given: {chosen[name]}, {share} of the available RAM")
        if self.nvme_size is None:
            chosen["nvme_size"] = Size(0)
            if self.nvme_path:
                smallest = min(self._room(fs) // len(fs.directories) for fs in file_systems(self.nvme_path))
                chosen["nvme_size"] = Size(int(max(0, smallest) * len(self.nvme_path) * NVME_SHARE))
                where = f"{NVME_SHARE} of the free space in {', '.join(self.nvme_path)}"
                each = ", as much in each as the fullest has" if len(self.nvme_path) > 1 else ""
                notes.append(f"{self.named('nvme_size')} not given: {chosen['nvme_size']}, {where}{each}")
            else:
                notes.append("--radix-tier-nvme-path not given: no NVMe tier")
        for fs in file_systems(self.nvme_path):
            if len(fs.directories) > 1:
                together = ", ".join(fs.directories)
                notes.append(f"{self.named('nvme_path')}: {together} share a file system, which adds no bandwidth")
        return dataclasses.replace(self, **chosen), notes

    def resolve(
        self, bytes_per_token: int, page_size: int, ranks: int = 1, *, same_bytes: bool = False
    ) -> ResolvedSizes:
        """Turn sizes into whole pages of one rank.

        Parameters
        ----------
        bytes_per_token : int
            KV bytes of one token on one rank, all layers.
        page_size : int
            Tokens per page.
        ranks : int
            Ranks that share the server's sizes. Bytes are divided over them; a size in tokens is the same on
            every rank, since each holds its share of every token.
        same_bytes : bool
            Whether all ranks hold the same KV, as with MLA: it is then stored once, in all of NVMe, and still divided
            over them in memory.

        Returns
        -------
        ResolvedSizes
            With a multiple of the directories as slots. NVMe given in bytes is a hard cap, which the slots are
            rounded down to; given in tokens, they are rounded up.
        """
        if self.dram_size is None or self.nvme_size is None:
            raise ValueError("sizes are resolved after with_defaults()")
        page_bytes = bytes_per_token * page_size
        directories = max(1, len(self.nvme_path))
        stores = 1 if same_bytes else ranks

        def pages(size: Size) -> int:
            if size.unit is Unit.TOKENS:
                return size.amount // page_size
            return size.amount // ranks // page_bytes

        if self.nvme_size.unit is Unit.TOKENS:
            slots = -(-pages(self.nvme_size) // directories) * directories
        else:
            slots = slots_for(self.nvme_size.amount // stores, page_bytes, page_size, directories)
        return ResolvedSizes(
            bytes_per_token=bytes_per_token,
            page_size=page_size,
            hbm_pages=None if self.hbm_size is None else pages(self.hbm_size),
            dram_pages=pages(self.dram_size),
            nvme_slots=slots,
            directories=directories,
            ranks=ranks,
            stores=stores,
        )

    def _check_memory(self, machine: Machine) -> list[Problem]:
        found = []
        if self.hbm_size is not None and self.hbm_size.amount == 0:
            fix = "Give it a size, or leave the flag out for SGLang's own choice"
            found.append(self.problem("hbm_size", "SGLang cannot serve without KV cache in HBM", fix))
        if self.dram_size is not None and self.dram_size.amount == 0:
            fix = "Give it a size, or leave the flag out for the default"
            found.append(self.problem("dram_size", "every page passes through DRAM", fix))
        if self.dram_size is not None and self.dram_size.unit is Unit.BYTES:
            found += self.check_ram("dram_size", self.dram_size.amount, machine)
        return found

    def check_ram(self, name: str, asked_bytes: int, machine: Machine) -> list[Problem]:
        """Hold what field ``name`` asks for against the RAM there is, less a reserve for everything else."""
        reserve = min(_RAM_RESERVE, int(machine.ram_bytes * _RAM_RESERVE_SHARE))
        if asked_bytes <= machine.ram_bytes - reserve:
            return []
        why = (
            f"more than the machine has: {format_bytes(machine.ram_bytes)} of RAM are available within its "
            f"cgroup limits, of which {format_bytes(reserve)} stay free for SGLang"
        )
        fix = f"Ask for at most {(machine.ram_bytes - reserve) // 2**20}MiB"
        return [self.problem(name, why, fix)]

    def _check_nvme(self) -> list[Problem]:
        size, path = self.nvme_size, self.nvme_path
        if size is None:
            return []
        if size.amount and not path:
            fix = "Add --radix-tier-nvme-path DIRECTORY, or set the size to 0 for a DRAM-only tier"
            return [self.problem("nvme_size", "there is no directory to put it in", fix)]
        if not size.amount and path:
            fix = "Drop one of them; without NVMe the tier lives in DRAM only"
            return [self.problem("nvme_size", f"contradicts {self.named('nvme_path')} {' '.join(path)}", fix)]
        return []

    def _check_space(self) -> list[Problem]:
        fix = "Lower it, free some space, or name a directory on another drive"
        found = [
            self.problem("nvme_min_free", f"more than is free in {', '.join(fs.directories)} at all", fix)
            for fs in file_systems(self.nvme_path)
            if self._room(fs) < 0
        ]
        if self.nvme_size is not None and self.nvme_size.unit is Unit.BYTES:
            found += self.check_disk(self.nvme_size.amount)
        return found

    def check_disk(self, asked_bytes: int) -> list[Problem]:
        """Hold the NVMe tier's bytes, in equal shares, against the free space of each file system."""
        found = []
        for fs in file_systems(self.nvme_path):
            free, where = self._room(fs), ", ".join(fs.directories)
            share = asked_bytes * len(fs.directories) // len(self.nvme_path)
            if free >= 0 and share > free:
                part = f"its share of {format_bytes(share)} is " if share < asked_bytes else ""
                why = (
                    f"{part}more than the {format_bytes(free)} that are free in {where} beside "
                    f"{self.named('nvme_min_free')} {self.nvme_min_free}"
                )
                fix = "Ask for less, free some space, or name a directory on another drive"
                found.append(self.problem("nvme_size", why, fix))
        return found

    def _room(self, fs: FileSystem) -> int:
        """Return what a store may take on a file system; negative where not even the reserve is there.

        Files of any earlier store count as free, also if they are kept: those count against the new one's size.
        """
        return fs.free - self.nvme_min_free.amount

    def _check_path(self) -> list[Problem]:
        found = []
        seen: dict[tuple[int, int], str] = {}
        for path in self.nvme_path:
            fault = directory_fault(path)
            if fault is None:
                status = os.stat(path)
                first = seen.get((status.st_dev, status.st_ino))
                seen[status.st_dev, status.st_ino] = path
                if first is not None:
                    fault = f"the same directory as {first}", "Name each directory once"
            if fault:
                found.append(Problem(self.named("nvme_path"), path, *fault))
        return found


@dataclass(frozen=True)
class ResolvedSizes:
    """The capacity of each tier on one rank, in whole pages.

    Attributes
    ----------
    bytes_per_token : int
        KV bytes of one token on this rank, all layers.
    page_size : int
        Tokens per page.
    hbm_pages : int or None
        Pages of SGLang's device pool; None leaves SGLang's own choice.
    dram_pages : int
        Frames.
    nvme_slots : int
        Slots in the store, 0 without NVMe.
    directories : int
        Over which the slots are spread evenly.
    ranks : int
        That have as much each: a server has so many times the bytes, and the tokens once.
    stores : int
        On NVMe: as many as ranks, or one that all of them read.
    """

    bytes_per_token: int
    page_size: int
    hbm_pages: int | None
    dram_pages: int
    nvme_slots: int
    directories: int = 1
    ranks: int = 1
    stores: int = 1

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers, K and V."""
        return self.bytes_per_token * self.page_size

    @property
    def hbm_tokens(self) -> int | None:
        """Tokens of SGLang's device pool; None leaves SGLang's own choice."""
        return None if self.hbm_pages is None else self.hbm_pages * self.page_size

    @property
    def dram_tokens(self) -> int:
        """Tokens that fit into the frames."""
        return self.dram_pages * self.page_size

    @property
    def dram_bytes(self) -> int:
        """Bytes of all frames."""
        return self.dram_pages * self.page_bytes

    @property
    def nvme_tokens(self) -> int:
        """Tokens that fit into the slots."""
        return self.nvme_slots * self.page_size

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: a page, rounded up to 4 KiB."""
        return slot_bytes(self.page_bytes)

    @property
    def nvme_bytes(self) -> int:
        """The most that one store takes on disk, journal included; a store of this capacity has these slots."""
        return footprint(self.nvme_slots, self.page_bytes, self.page_size, self.directories)
