"""What the first rank says, all ranks hear: whole, in order, and at the same point."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mover_fakes import SCALE
from ranks_rig import exchange

from radixtier.ranks import Words


class WordsMachine(RuleBasedStateMachine):
    """``said`` has what is on its way, ``announced`` how many of these were announced."""

    @initialize(size=st.integers(1, 4))
    def start(self, size: int) -> None:
        self.words = [Words(first=rank == 0) for rank in range(size)]
        self.said: list[bytes] = []
        self.announced = 0
        self.here: list[bytes] = []

    @rule(message=st.binary(min_size=1, max_size=40))
    def say(self, message: bytes) -> None:
        self.words[0].say(message)
        self.said.append(message)

    @rule()
    def reduce(self) -> None:
        exchange(self.words)
        if self.announced:
            self.here.append(self.said.pop(0))
        self.announced = min(1, len(self.said))

    @rule()
    def hear(self) -> None:
        for words in self.words:
            assert words.hear() == self.here
        self.here = []

    @rule()
    def drop(self) -> None:
        """What was announced comes all the same."""
        assert self.words[0].drop() == len(self.said) - self.announced
        del self.said[self.announced :]

    @invariant()
    def all_know_what_is_coming(self) -> None:
        if hasattr(self, "words"):
            assert {words.coming for words in self.words} == {self.announced > 0}
            assert self.words[0].waiting == len(self.said) - self.announced


TestWords = WordsMachine.TestCase
TestWords.settings = settings(max_examples=60 * SCALE, stateful_step_count=40)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 1000, 64 << 10])
@pytest.mark.parametrize("byte", [b"\x00", b"\xff", b"\x7f"])
def test_any_bytes_of_any_length_come_through(size: int, byte: bytes) -> None:
    words = [Words(first=True), Words(first=False), Words(first=False)]
    words[0].say(byte * size)
    words[0].say(b"next")
    lengths = [len(exchange(words)) for _ in range(4)]
    assert lengths == [1, 1 + -(-size // 8), 2, 1]
    assert [each.hear() for each in words] == [[byte * size, b"next"]] * 3
