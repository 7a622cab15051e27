"""Which pages were forgotten, when and by which rule: what turns "not there" into "evicted at 12:03 by lru".

Law: a set-associative table. A key belongs to one bucket of :data:`WAYS` entries, and a new one takes the place of the
bucket's oldest; a key that comes again is renewed where it is, without a longer stay. Keys are digests, so buckets fill
evenly: after ``most / 2`` further pages 99 % of the pages noted are still there, after ``most`` about half (Poisson).
What was dropped from the table looks as if it had never been seen.

Owns 17 bytes per entry (key, time, rule), touched only as they fill. With a million entries, 50,000 keys cost 13 ms of
CPU to add and 9 ms to find, a single key 0.1 and 0.01 ms. Scheduler thread only.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST = 1 << 20
"""Pages remembered: 17 MiB."""

WAYS = 16
"""Entries of a bucket: its keys fill two cache lines."""

MOST_RULES = 255
_OTHER = "other"

LATER = 4096
"""Keys that are put aside before the table is touched: many small additions cost as much as one."""

Keys = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


class Found(NamedTuple):
    """What is known about some keys, one entry per key."""

    when: npt.NDArray[np.float64]
    """Unix seconds; NaN where the key is not known."""
    rule: npt.NDArray[np.uint8]
    """Number of the rule, see :meth:`Forgotten.rule`; 0 where the key is not known."""


class Forgotten:
    """A bounded map from 64-bit page key to time and rule.

    Parameters
    ----------
    most : int
        Entries, rounded up to a power of two of buckets, two at least.
    """

    def __init__(self, most: int = MOST) -> None:
        bits = max(1, (-(-most // WAYS) - 1).bit_length())
        buckets = 1 << bits
        self._shift = np.uint64(64 - bits)
        self._key = np.zeros((buckets, WAYS), np.uint64)
        self._when = np.zeros((buckets, WAYS), np.float64)
        self._rule = np.zeros((buckets, WAYS), np.uint8)  # 0 for an empty entry
        self._next = np.zeros(buckets, np.uint8)  # entry of the bucket that goes next
        self._names = [""]
        self._number: dict[str, int] = {}
        self._later: list[tuple[Keys, float, str]] = []
        self._n_later = 0

    @property
    def nbytes(self) -> int:
        """Size of the table."""
        return sum(each.nbytes for each in (self._key, self._when, self._rule, self._next))

    def __len__(self) -> int:
        self._catch_up()
        return int(np.count_nonzero(self._rule))

    def add(self, keys: npt.ArrayLike, when: float, rule: str) -> None:
        """Note that pages were forgotten; a key that is known already gets the new time and rule.

        Parameters
        ----------
        keys : array_like of uint64, shape (n,)
            The first 8 bytes of the page keys.
        when : float
            Unix seconds.
        rule : str
            What chose them. Names beyond the first 254 become "other".
        """
        some: Keys = np.array(keys, np.uint64)
        self._later.append((some, when, rule))
        self._n_later += len(some)
        if self._n_later >= LATER:
            self._catch_up()

    def _catch_up(self) -> None:
        """Put into the table what was put aside; additions in a row by one rule get the time of the last."""
        later, self._later, self._n_later = self._later, [], 0
        for rule, group in groupby(later, key=lambda each: each[2]):
            parts = list(group)
            self._add(np.concatenate([keys for keys, _, _ in parts]), parts[-1][1], rule)

    def _add(self, keys: Keys, when: float, rule: str) -> None:
        number = self._rule_number(rule)
        new: Keys = np.unique(keys)  # in the order of their buckets as well
        bucket = self._bucket(new)
        place, way = self._match(new, bucket)
        self._put(bucket[place], way, new[place], when, number)
        fresh = np.ones(len(new), np.bool_)
        fresh[place] = False
        self._insert(new[fresh], bucket[fresh], when, number)

    def find(self, keys: npt.ArrayLike) -> Found:
        """Look keys up, shape (n,); unknown ones are NaN and 0."""
        self._catch_up()
        wanted: Keys = np.asarray(keys, np.uint64)
        bucket = self._bucket(wanted)
        place, way = self._match(wanted, bucket)
        found = Found(np.full(len(wanted), np.nan), np.zeros(len(wanted), np.uint8))
        found.when[place] = self._when[bucket[place], way]
        found.rule[place] = self._rule[bucket[place], way]
        return found

    def summary(self, keys: npt.ArrayLike) -> list[tuple[str, float, int]]:
        """Return rule, latest time and number of pages for those of ``keys`` that are known, most pages first."""
        found = self.find(keys)
        rules = np.unique(found.rule[found.rule != 0]).tolist()
        groups = [(self.rule(rule), found.when[found.rule == rule]) for rule in rules]
        return sorted(((name, float(when.max()), len(when)) for name, when in groups), key=lambda group: -group[2])

    def rule(self, number: int) -> str:
        """Return the name of a rule, empty for 0."""
        return self._names[number]

    def clear(self) -> None:
        """Forget what was forgotten."""
        self._later.clear()
        self._n_later = 0
        self._rule[:] = 0
        self._next[:] = 0

    def _bucket(self, keys: Keys) -> Indices:
        bucket: Indices = (keys >> self._shift).astype(np.int64)
        return bucket

    def _match(self, keys: Keys, bucket: Indices) -> tuple[Indices, Indices]:
        """Which of the keys are in their buckets, and where; once each, since :meth:`add` renews what is there."""
        place, way = np.nonzero(self._key[bucket] == keys[:, None])
        used = self._rule[bucket[place], way] != 0
        return place[used], way[used]

    def _insert(self, keys: Keys, bucket: Indices, when: float, rule: int) -> None:
        """Add keys that are not there, in the order of their buckets."""
        first = np.flatnonzero(np.diff(bucket, prepend=-1))
        count = np.diff(first, append=len(bucket))
        rank = np.arange(len(bucket)) - np.repeat(first, count)
        # Of more keys than a bucket holds, the last ones stay, as if they had come one by one.
        stays = rank >= np.repeat(count, count) - WAYS
        way = (self._next[bucket] + rank) % WAYS
        self._put(bucket[stays], way[stays], keys[stays], when, rule)
        filled = bucket[first]
        self._next[filled] = (self._next[filled] + count) % WAYS

    def _put(self, bucket: Indices, way: Indices, keys: Keys, when: float, rule: int) -> None:
        self._key[bucket, way] = keys
        self._when[bucket, way] = when
        self._rule[bucket, way] = rule

    def _rule_number(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            if len(self._names) >= MOST_RULES:
                name = _OTHER
                number = self._number.get(name)
            if number is None:
                number = self._number[name] = len(self._names)
                self._names.append(name)
        return number
