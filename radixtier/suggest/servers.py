"""The servers of a machine, and the size of each of their tiers.

Owns the laws; the numbers that the server itself would choose are taken from :mod:`radixtier.config`. Several GPUs get
one server each, or one for as many of them as the model needs: RAM is shared out evenly, and drives go to servers whole
where their number allows it, else every server has a directory on each drive. Invariant: sizes are given in bytes, so
that a wrong guess about the model's KV makes no server fail; only the tokens told here would be off. Reads the sizes of
existing file systems, and nothing else; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from radixtier.config import CONTROL_SOCKET, CPU_SHARE, DRAM_SHARE, RadixTierConfig, ResolvedSizes
from radixtier.control.address import LONGEST_PATH
from radixtier.machine import Machine, drive_bytes, file_systems
from radixtier.suggest.drives import Directory
from radixtier.suggest.gpus import VISIBLE, Gpu
from radixtier.suggest.model import Model
from radixtier.suggest.ranks import hbm_tokens, ranks_for
from radixtier.units import Size

PAGE_SIZE = {"cuda": 64, "cpu": 16}
"""Tokens; what the server chooses by itself. Given all the same: the store is valid for one page size."""

FIRST_PORT = 30000


@dataclass(frozen=True)
class Wishes:
    """What was asked for beside the model: the first port, the drives' rating (None: no budget), the KV's type."""

    port: int = FIRST_PORT
    dwpd: float | None = 1.0
    kv_dtype: str | None = None


@dataclass(frozen=True)
class Facts:
    """What was found: RAM in bytes, GPUs (none: a CPU), the directories given, other drives in words, the model."""

    ram: int
    gpus: tuple[Gpu, ...]
    directories: tuple[Directory, ...]
    others: tuple[str, ...]
    model: Model
    runtime: str = ""
    """A directory of the user's own for sockets (``XDG_RUNTIME_DIR``); empty where there is none."""


@dataclass(frozen=True)
class Server:
    """One server to start.

    Attributes
    ----------
    gpus : tuple of Gpu
        Which compute, one tensor parallel rank each; empty on a CPU.
    port : int
        TCP port.
    environment : tuple of (name, value)
        Variables to set.
    make : tuple of str
        Directories to create first.
    config : RadixTierConfig
        Sizes and directories; sizes in bytes.
    hbm_tokens : int or None
        An estimate on a GPU; None where its memory or the weights are not known.
    sizes : ResolvedSizes
        The same in pages, of one rank.
    model : Model
        To serve.
    kv_dtype : str or None
        To give to SGLang.
    """

    gpus: tuple[Gpu, ...]
    port: int
    environment: tuple[tuple[str, str], ...]
    make: tuple[str, ...]
    config: RadixTierConfig
    hbm_tokens: int | None
    sizes: ResolvedSizes
    model: Model
    kv_dtype: str | None = None

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return "cuda" if self.gpus else "cpu"

    @property
    def visible(self) -> str | None:
        """The GPUs as ``CUDA_VISIBLE_DEVICES`` names them; None on a CPU."""
        return ",".join(gpu.number for gpu in self.gpus) or None


def make_servers(facts: Facts, wishes: Wishes) -> tuple[Server, ...]:
    """Make the servers of the machine; every directory must be usable. GPUs that do not make up a server are left."""
    ranks = ranks_for(facts.gpus, facts.model)
    count = max(1, len(facts.gpus) // ranks)
    paths = [directory.path for directory in facts.directories]
    own = _own_drives(paths, count)
    made = []
    for number in range(count):
        gpus = facts.gpus[number * ranks : (number + 1) * ranks]
        each = len(paths) // count
        parents = paths[number * each : (number + 1) * each] if own else paths
        shared = 1 if own else count
        nested = count > 1 and not own
        directories = tuple(os.path.join(p, f"gpu{number}") for p in parents) if nested else tuple(parents)
        config = _config(facts, wishes, parents, directories, shared=shared, count=count)
        config = replace(config, control=_control(facts, directories, wishes.port + number))
        sizes = config.resolve(
            facts.model.rank_bytes(ranks), PAGE_SIZE["cuda" if gpus else "cpu"], ranks, same_bytes=facts.model.latent
        )
        made.append(
            Server(
                gpus=gpus,
                port=wishes.port + number,
                environment=_environment(facts.gpus, gpus),
                make=directories if nested else (),
                config=config,
                hbm_tokens=hbm_tokens(gpus, facts.model) if gpus else sizes.hbm_tokens,
                sizes=sizes,
                model=facts.model,
                kv_dtype=wishes.kv_dtype,
            )
        )
    return tuple(made)


def _own_drives(paths: Sequence[str], count: int) -> bool:
    """Whether each server gets drives of its own: they must divide evenly, and be drives and not directories of one."""
    return bool(paths) and count > 1 and len(paths) % count == 0 and len(file_systems(paths)) == len(paths)


def _config(
    facts: Facts, wishes: Wishes, parents: Sequence[str], directories: tuple[str, ...], *, shared: int, count: int
) -> RadixTierConfig:
    """Choose the sizes of one of ``count`` servers, of which ``shared`` use the same drives."""
    chosen, _ = RadixTierConfig(enable=True, nvme_path=tuple(parents)).with_defaults(Machine(facts.ram))
    assert chosen.nvme_size is not None
    on_cpu = not facts.gpus
    memory = Size(_round(int(facts.ram * (CPU_SHARE if on_cpu else DRAM_SHARE)) // count))
    nvme = _round(chosen.nvme_size.amount // shared)
    per_day = 0
    if parents and wishes.dwpd is not None:
        per_day = int(wishes.dwpd * drive_bytes(parents)) // shared
    return RadixTierConfig(
        enable=True,
        hbm_size=memory if on_cpu else None,
        dram_size=memory,
        nvme_size=Size(nvme),
        nvme_path=directories,
        write_budget=_budget(per_day),
    )


def _round(nbytes: int) -> int:
    """Round down to whole GiB where that takes little away, else to whole MiB."""
    step = 1 << 30 if nbytes >= 16 << 30 else 1 << 20
    return nbytes // step * step


def _budget(per_day: int) -> str:
    for unit, nbytes in (("GB", 10**9), ("MB", 10**6)):
        if per_day >= 10 * nbytes:
            return f"{per_day // nbytes}{unit}/day"
    return "none"


def _control(facts: Facts, directories: Sequence[str], port: int) -> str | None:
    """Return where the control endpoint listens; None leaves it to the server, which logs its choice."""
    if directories:
        path = os.path.join(directories[0], CONTROL_SOCKET)
    elif facts.runtime:
        path = os.path.join(facts.runtime, f"radixtier-{port}.sock")
    else:
        return None
    return f"unix:{path}" if len(os.fsencode(path)) <= LONGEST_PATH else None


def _environment(gpus: Sequence[Gpu], chosen: Sequence[Gpu]) -> tuple[tuple[str, str], ...]:
    # A script that is kept must not depend on the variable of the shell that printed it.
    if not chosen or (len(gpus) == 1 and chosen[0].number == "0"):
        return ()
    # CUDA counts the fastest first, nvidia-smi by the bus: with GPUs of one kind that is the same.
    order = (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),) if len({each.name for each in gpus}) > 1 else ()
    return (*order, (VISIBLE, ",".join(gpu.number for gpu in chosen)))
