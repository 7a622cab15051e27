"""The ranks of SGLang's tensor parallel group, as those that a tier agrees with.

Owns nothing. Scheduler thread only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.utils.rank_consensus_checker import rank_consensus

from radixtier.ranks import Agreement, Alone, Ranks

Method = TypeVar("Method", bound=Callable[..., Any])


def alike(
    params: Sequence[str] | bool | None = None, results: Sequence[str] | bool | None = None
) -> Callable[[Method], Method]:
    """Mark a method for SGLang's check that ranks call it in the same order, with the same parameters and results.

    ``params`` and ``results`` say which, all of them or none. Where the check is off, which is the default, nothing is
    added to the method.
    """
    mark: Callable[[Method], Method] = rank_consensus(same_params=params, same_results=results)
    return mark


class TorchGroup:
    """A gloo group of processes; a vector of a few hundred integers takes it some tenths of a millisecond."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = torch.distributed.get_rank(group)
        self.size: int = torch.distributed.get_world_size(group)

    def minimum(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the element-wise minimum over all ranks."""
        tensor = torch.from_numpy(values)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MIN, group=self._group)
        return values


def make_ranks(group: Any) -> Alone | Agreement:
    """Agree with the ranks of a process group (None for no group), if there are others."""
    if group is None or torch.distributed.get_world_size(group) == 1:
        return Alone()
    return Agreement(TorchGroup(group))


def agreed_number(ranks: Ranks) -> int:
    """Return a random number of 62 bits that all ranks have."""
    return ranks.agreed(int.from_bytes(os.urandom(8), "little") >> 2)
