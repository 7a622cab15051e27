"""What may be written: each policy's law, on pages whose keys are drawn as the server's are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.admission import (
    NAMES,
    AdmitAll,
    Auto,
    Candidate,
    Keys,
    SecondHit,
    Verdict,
    make_admission,
)
from radixtier.policy.admission.auto import FULL, LEAST_SHARE, ROOMY, STEP
from radixtier.policy.admission.ghosts import MOST, Ghosts
from radixtier.policy.draw import draw, mixed

CAPACITY = 1000


def keys_of(*numbers: int) -> Keys:
    return mixed(np.array(numbers, np.uint64))


def candidate(*numbers: int, uses: int = 1, room: float = 0.0, lead: int = 0, needed: bool = False) -> Candidate:
    return Candidate(keys_of(*numbers), 4096 * len(numbers), uses, room, 0.0, lead, needed)


def lead_above(share: float) -> int:
    return next(key for key in range(10_000) if draw(key) >= share)


def lead_below(share: float) -> int:
    return next(key for key in range(10_000) if draw(key) < share)


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_is_made_by_its_name(name: str) -> None:
    assert make_admission(name, CAPACITY).name == name


def test_another_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'none' does not exist: choose one of all, second-hit, auto"):
        make_admission("none", CAPACITY)


@pytest.mark.parametrize("room", [0.0, 1.0])
def test_all_admits_what_was_used_once(room: float) -> None:
    assert AdmitAll().admit(candidate(1, room=room)) is Verdict.ADMIT


def test_second_hit_wants_a_second_request() -> None:
    policy = SecondHit(CAPACITY)
    assert policy.admit(candidate(1, 2, room=1.0)) is Verdict.REJECT
    assert policy.admit(candidate(1, 2, uses=2)) is Verdict.ADMIT


def test_second_hit_knows_what_was_lost_and_came_back() -> None:
    policy = SecondHit(CAPACITY)
    policy.gone(keys_of(1, 2), 0.0)
    assert policy.admit(candidate(2, 3)) is Verdict.ADMIT
    assert policy.admit(candidate(2, 3)) is Verdict.REJECT, "a ghost answers once"
    assert policy.admit(candidate(4)) is Verdict.REJECT


def test_second_hit_admits_what_is_in_front_of_admitted_pages() -> None:
    assert SecondHit(CAPACITY).admit(candidate(1, needed=True)) is Verdict.ADMIT


def test_auto_admits_everything_while_there_is_room_and_filters_until_there_is_plenty() -> None:
    policy = Auto(CAPACITY)
    asked = [1.0, (FULL + ROOMY) / 2, FULL, (FULL + ROOMY) / 2, ROOMY, (FULL + ROOMY) / 2]
    verdicts = [policy.admit(candidate(n, room=room)) for n, room in enumerate(asked)]
    admit, reject = Verdict.ADMIT, Verdict.REJECT
    assert verdicts == [admit, admit, reject, reject, admit, admit]


def test_auto_filters_by_reuse_when_full() -> None:
    policy = Auto(CAPACITY)
    assert policy.admit(candidate(1, uses=2)) is Verdict.ADMIT
    assert policy.admit(candidate(2, uses=1)) is Verdict.REJECT


def thrash(policy: Auto, rounds: int) -> None:
    """Let pages come back after they were evicted: ``rounds`` corrections of the share, each downward."""
    for n in range(rounds):
        pages = np.arange(int(STEP * CAPACITY), dtype=np.uint64) + np.uint64(n * CAPACITY)
        policy.evicted(pages, 0.0)
        policy.wanted(pages, 0.0)


def test_auto_keeps_a_share_of_the_paths_when_the_disk_thrashes() -> None:
    policy = Auto(CAPACITY)
    thrash(policy, 5)
    assert policy.share == pytest.approx(0.8**5)
    out, inside = lead_above(policy.share), lead_below(policy.share)
    assert policy.admit(candidate(1, uses=9, lead=out)) is Verdict.REJECT
    assert policy.admit(candidate(1, uses=9, lead=inside)) is Verdict.ADMIT
    assert policy.admit(candidate(1, lead=out, needed=True)) is Verdict.ADMIT
    assert policy.admit(candidate(1, lead=out, room=1.0)) is Verdict.ADMIT


def test_auto_opens_again_when_the_disk_serves() -> None:
    policy = Auto(CAPACITY)
    thrash(policy, 100)
    assert policy.share == LEAST_SHARE
    for _ in range(100):
        policy.served(CAPACITY, 0.0)
    assert policy.share == 1.0


def test_pages_that_never_were_on_disk_are_no_thrashing() -> None:
    policy = Auto(CAPACITY)
    policy.wanted(np.arange(10 * CAPACITY, dtype=np.uint64), 0.0)
    assert policy.share == 1.0


@given(st.integers(1, 3000), st.lists(st.lists(st.integers(1, 2**64 - 1), min_size=1, max_size=50), max_size=20))
def test_ghosts_are_bounded_and_answer_only_for_what_they_saw(pages: int, notes: list[list[int]]) -> None:
    ghosts = Ghosts(pages)
    size = ghosts.nbytes
    seen: set[int] = set()
    for note in notes:
        ghosts.note(np.array(note, np.uint64))
        seen.update(note)
        strangers = {key ^ 1 for key in note} - seen - {0}
        assert ghosts.recall(np.array(sorted(strangers), np.uint64)) == 0
    assert ghosts.nbytes == size <= 8 * max(16, 4 * pages)
    assert len(ghosts) <= len(seen)
    if notes:
        last = np.unique(np.array(notes[-1], np.uint64))
        assert 0 < ghosts.recall(last) <= len(last)
        assert ghosts.recall(last) == 0


def test_ghosts_of_a_huge_disk_are_capped() -> None:
    assert Ghosts(10**9).nbytes == 8 * MOST


def test_a_draw_is_even_and_the_same_for_one_key_and_for_many() -> None:
    keys = np.arange(1000, dtype=np.uint64)
    many = mixed(keys) / 2.0**64
    assert [draw(key) for key in range(1000)] == pytest.approx(many.tolist())
    assert np.histogram(many, bins=4, range=(0, 1))[0].min() > 200
