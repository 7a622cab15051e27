"""Linking rows: what hangs on a root comes once, parents first, hottest first; everything else is an orphan."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_rig import after, row

from radixtier.identity import Space, namespace_seed
from radixtier.store.catalog import ROOT, Catalog
from radixtier.store.journal import Index, Row
from radixtier.store.rows import no_rows, offsets_of

SPACES = [Space(), Space("lora", None), Space(None, "lora")]


def index_of(rows: list[Row]) -> Index:
    """Return what a journal with these rows says."""
    rows = sorted(rows, key=lambda each: each.slot)
    if not rows:
        return no_rows()
    pages = np.array([len(each.stretch) for each in rows])
    return Index(
        np.array([each.slot for each in rows]),
        pages,
        np.array([each.used for each in rows]),
        np.array([100 + SPACES.index(each.stretch.space) for each in rows]),
        np.stack([np.frombuffer(each.stretch.front, dtype=np.uint8) for each in rows]),
        np.concatenate([each.stretch.keys for each in rows]),
        offsets_of(pages),
        {100 + i: space for i, space in enumerate(SPACES)},
    )


def key(catalog: Catalog, number: int, page: int) -> bytes:
    return catalog.keys[catalog.offsets[number] + page].tobytes()


def front(catalog: Catalog, number: int) -> bytes:
    """Key in front of what the row keeps."""
    skip = int(catalog.skip[number])
    return key(catalog, number, skip - 1) if skip else catalog.front[number].tobytes()


def check(catalog: Catalog, drives: list[list[Row]]) -> None:
    """Hold a catalog against what can be said about the rows one by one."""
    roots = {namespace_seed(*space) for space in SPACES}
    order = catalog.order.tolist()
    place = {number: at for at, number in enumerate(order)}
    assert len(place) == len(order)

    reached: dict[bytes, int] = dict.fromkeys(roots, 0)  # key -> pages up to it
    known = -1
    while known < len(reached):
        known = len(reached)
        for each in (each for rows in drives for each in rows):
            if each.stretch.front in reached:
                for i, found in enumerate(each.stretch.keys):
                    reached[found.tobytes()] = reached[each.stretch.front] + i + 1

    kept: list[bytes] = []
    lost = {(d, each.slot + i) for d, rows in enumerate(drives) for each in rows for i in range(len(each.stretch))}
    for number in order:
        skip, pages, parent = int(catalog.skip[number]), int(catalog.pages[number]), int(catalog.parent[number])
        kept += [key(catalog, number, page) for page in range(skip, pages)]
        slot, drive = int(catalog.slot[number]), int(catalog.drive[number])
        lost -= {(drive, slot + page) for page in range(skip, pages)}
        assert catalog.depth[number] == reached[front(catalog, number)]
        if parent == ROOT:
            assert front(catalog, number) in roots and catalog.parent_pages[number] == 0
        else:
            assert place[parent] < place[number]
            assert catalog.parent_pages[number] > catalog.skip[parent]
            assert front(catalog, number) == key(catalog, parent, int(catalog.parent_pages[number]) - 1)
    assert sorted(kept) == sorted(reached.keys() - roots), "every reachable page once"
    orphans = [(d, slot + i) for d, slot, pages in catalog.orphans.tolist() for i in range(pages)]
    assert len(orphans) == len(set(orphans)) and set(orphans) == lost

    heat = {number: float(catalog.used[number]) for number in order}
    below = dict.fromkeys(order, -np.inf)
    for number in reversed(order):
        if (parent := int(catalog.parent[number])) != ROOT:
            heat[parent] = max(heat[parent], heat[number])
            below[parent] = max(below[parent], heat[number])
    assert [heat[number] for number in order] == sorted(heat.values(), reverse=True)
    parents = {int(catalog.parent[number]) for number in order}
    assert {number for number in order if catalog.leaf[number]} == place.keys() - parents
    assert {number for number in order if catalog.tip[number]} == {n for n in order if catalog.used[n] > below[n]}


STEPS = st.lists(
    st.tuples(
        st.integers(0, 30),  # which row to hang it on, beyond the last: a root
        st.integers(1, 5),  # behind which of its pages
        st.integers(1, 5),  # pages
        st.integers(0, 3),  # what is in them: equal seeds make equal pages
        st.integers(0, 2),  # drive
        st.integers(0, 9),  # heat
        st.integers(0, 4),  # 0: missing from the journals
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_any_forest_is_linked(steps: list[tuple[int, int, int, int, int, int, int]]) -> None:
    made: list[Row] = []
    drives: list[list[Row]] = [[], [], []]
    for on, behind, pages, seed, drive, used, there in steps:
        slot = 10 * len(made)
        if on < len(made):
            parent = made[on]
            each = after(parent, slot, pages, seed, at=min(behind, len(parent.stretch)), used=used)
        else:
            each = row(slot, pages, seed, space=SPACES[on % 3], used=used)
        made.append(each)
        if there:
            drives[drive].append(each)
    check(Catalog([index_of(rows) for rows in drives]), drives)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=8))
def test_damaged_keys_cost_rows_but_never_order(
    steps: list[tuple[int, int, int, int, int, int, int]], copies: list[tuple[int, int]]
) -> None:
    """Keys copied over others make circles, rows in front of themselves, and pages in two places."""
    made: list[Row] = []
    for on, behind, pages, seed, _, used, _ in steps:
        parent = made[on] if on < len(made) else None
        slot = 10 * len(made)
        at = min(behind, len(parent.stretch)) if parent else 0
        made.append(after(parent, slot, pages, seed, at=at, used=used) if parent else row(slot, pages, seed, used=used))
    index = index_of(made)
    keys, fronts = index.keys.copy(), index.front.copy()
    for source, target in copies if made else []:
        if target % 2:
            keys[target % len(keys)] = keys[source % len(keys)]
        else:
            fronts[target % len(fronts)] = keys[source % len(keys)]
    catalog = Catalog([index._replace(keys=keys, front=fronts)])
    seen: set[int] = set()
    kept: set[bytes] = set()
    for number in catalog.order.tolist():
        parent_row = int(catalog.parent[number])
        assert parent_row == ROOT or parent_row in seen
        assert catalog.skip[number] < catalog.pages[number]
        if parent_row != ROOT:
            assert catalog.skip[parent_row] < catalog.parent_pages[number] <= catalog.pages[parent_row]
            assert front(catalog, number) == key(catalog, parent_row, int(catalog.parent_pages[number]) - 1)
        seen.add(number)
        mine = {key(catalog, number, page) for page in range(int(catalog.skip[number]), int(catalog.pages[number]))}
        assert not mine & kept
        kept |= mine
    orphaned = int(catalog.orphans[:, 2].sum())
    assert orphaned == int(catalog.pages.sum()) - sum(int(catalog.pages[n] - catalog.skip[n]) for n in seen)


def test_nothing_at_all() -> None:
    catalog = Catalog([])
    assert not len(catalog) and not len(catalog.order) and catalog.orphans.shape == (0, 3)
    catalog = Catalog([no_rows(), no_rows()])
    assert not len(catalog.order)


def test_a_parent_on_another_drive_is_found() -> None:
    head = row(0, 3, used=1.0)
    tail = after(head, 0, 3, 1, at=2, used=2.0)
    catalog = Catalog([index_of([tail]), index_of([head])])
    assert catalog.order.tolist() == [1, 0]
    assert catalog.parent.tolist() == [1, ROOT] and catalog.parent_pages.tolist() == [2, 0]
    assert catalog.depth.tolist() == [2, 0] and catalog.tip.tolist() == [True, False]


def test_a_row_of_another_namespace_is_no_parent() -> None:
    head = row(0, 3)
    index = index_of([head, after(head, 10, 3, 1)])
    catalog = Catalog([index._replace(space=np.array([100, 101]))])
    assert catalog.order.tolist() == [0] and catalog.orphans.tolist() == [[0, 10, 3]]


def test_shared_pages_go_to_one_row_and_the_rest_stays() -> None:
    """Two rows begin alike, as when a page was written once more: the hotter has all, the other what is its own."""
    head = row(0, 1, 7, used=1.0)
    cold, hot = (
        Row(slot, stretch, np.zeros(3, dtype=np.uint64), used)
        for slot, used, stretch in (
            (10, 2.0, _joined(head, after(head, 0, 2, 1))),
            (20, 3.0, _joined(head, after(head, 0, 2, 2))),
        )
    )
    catalog = Catalog([index_of([head, cold, hot])])
    assert catalog.order.tolist() == [2, 1]
    assert catalog.skip.tolist() == [1, 1, 0]
    assert catalog.parent.tolist()[1] == 2 and catalog.parent_pages.tolist()[1] == 1
    assert catalog.orphans.tolist() == [[0, 0, 1], [0, 10, 1]]


def _joined(head: Row, tail: Row):  # type: ignore[no-untyped-def]
    tokens = np.concatenate([head.stretch.tokens, tail.stretch.tokens])
    return type(head.stretch).chained(Space(), head.stretch.front, tokens.reshape(-1), tokens.shape[1])


def test_a_long_chain_is_linked() -> None:
    """Rows of one page each, 5000 behind one another, the last one the hottest."""
    rows = [row(0, 1)]
    for slot in range(1, 5000):
        rows.append(after(rows[-1], slot, 1, slot, used=float(slot)))
    rng = np.random.default_rng(0)
    slots = rng.permutation(5000).tolist()
    catalog = Catalog([index_of([each._replace(slot=slot) for each, slot in zip(rows, slots, strict=True)])])
    assert catalog.order.tolist() == slots
    assert catalog.depth[catalog.order].tolist() == list(range(5000))
    assert catalog.tip.sum() == catalog.leaf.sum() == 1
