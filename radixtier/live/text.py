"""Writes the text that the demo's chats are about: long journals of invented places, and questions on them.

Owns the sentences. Invariant: same arguments, same text; two journals differ from their first word on, so
that chats share no prefix and every hit is a return to the same chat. Pure functions, any thread.
"""

from __future__ import annotations

import random

_PLACES = (
    ("Kelm Point", "lighthouse", "the lantern room", "the keeper"),
    ("Orvane", "observatory", "the dome", "the night assistant"),
    ("Thistle Fen", "bird station", "the reed hide", "the warden"),
    ("Brackwater", "ferry", "the engine deck", "the ferryman"),
    ("Saint Ulm", "clock workshop", "the back bench", "the apprentice"),
    ("Marrow Hill", "orchard", "the press house", "the head gardener"),
    ("Dunlow Junction", "railway halt", "the signal box", "the signaller"),
    ("Ashcombe", "paper archive", "the reading room", "the archivist"),
    ("Vellin", "glass furnace", "the annealing oven", "the master blower"),
    ("Cold Harbour", "weather mast", "the instrument hut", "the observer"),
    ("Pennick Sands", "oyster farm", "the sorting shed", "the foreman"),
    ("Tarn Edge", "mountain hut", "the drying room", "the warden of the hut"),
)
_NAMES = (
    "Ada Merrin", "Tobias Holm", "Ines Carrow", "Jonah Pell", "Marta Quill", "Silas Brandt",
    "Noor Haddad", "Edda Vance", "Piotr Lask", "Ruth Ellery", "Oscar Finch", "Lena Sorrel",
)  # fmt: skip
_WEATHER = (
    "a thin fog that lifted before noon", "steady rain from the west", "a dry wind that smelled of salt",
    "frost on every railing", "warm haze and no wind at all", "hail for ten minutes and then bright sun",
    "low cloud that never moved", "a clear sky with feathers of ice", "sleet that turned to slush by evening",
)  # fmt: skip
_THINGS = (
    "a brass key without a label", "two crates of lamp oil", "a letter in green ink", "a broken sextant",
    "a tin of copper nails", "an old map of the coast", "a basket of winter pears", "a coil of tarred rope",
    "a ledger with missing pages", "three panes of blue glass", "a box of gears", "a sealed jar of seeds",
)  # fmt: skip
_SENTENCES = (
    "We had {weather}, and {room} stayed at {number} degrees until the evening.",
    "{name} came up the path at {hour} and brought {thing}.",
    "Together with {name} we counted {number} visitors, {small} more than on the day before.",
    "The repair of {room} took {small} hours, because {name} could not find {thing}.",
    "According to the logbook, the last time this happened was {number} years ago, in the month of {month}.",
    "{name} asked whether {thing} could be sold, and {role} answered that it belongs to the {kind}.",
    "At {hour} the bell rang {small} times, which means that a guest is waiting at the gate.",
    "I wrote to {name} about {thing}; the answer should arrive in {small} days.",
    "Supper was bread, onions and a soup that {name} had kept warm since {hour}.",
    "In {room} we found {thing}, wrapped in a newspaper from {month}.",
    "{name} thinks that {place} will need {number} new planks before {month}.",
    "The children of {name} painted the door of the {kind}, and {role} pretended to be angry.",
    "We measured {number} millimetres since the morning, and {name} noted {weather}.",
    "After {hour} nobody spoke much; {role} read aloud from a book about rivers.",
    "{name} promised to teach us how one mends {thing} with nothing but wax and patience.",
    "The account for the week shows {number} coins spent on oil and {small} on paper.",
)
_MONTHS = ("January", "March", "April", "June", "August", "October", "November", "December")
_QUESTIONS = (
    "What was the weather like on day {a}?",
    "Who is mentioned on day {a}, and what did they do?",
    "Tell me in one sentence what happened on day {b}.",
    "Which objects were found or brought on day {a}?",
    "Write a short message to {name} about day {b}.",
    "What would you repair first at {place}, and why?",
    "Compare day {a} with day {b}.",
    "Give the {kind} of {place} a motto of a few words.",
)


def journal(number: int, words: int) -> str:
    """Write the journal of one place.

    Parameters
    ----------
    number
        Which journal; from the thirteenth on, places come again with another volume number.
    words
        Length to reach; the entry of a day is always finished.

    Returns
    -------
    str
        English text, about 1.4 tokens of SmolLM2 per word.
    """
    place, kind, room, role = _PLACES[number % len(_PLACES)]
    volume = number // len(_PLACES) + 1
    rng = random.Random(number)
    keeper = rng.choice(_NAMES)
    text = f"{place}, volume {volume}. The journal of the {kind}, kept by {keeper}."
    day = 0
    while len(text.split()) < words:
        day += 1
        lines = rng.sample(_SENTENCES, 6)
        entry = " ".join(_fill(line, rng, place=place, kind=kind, room=room, role=role) for line in lines)
        text += f"\n\nDay {day}. {entry}"
    return text


def instructions(number: int, words: int) -> str:
    """Write the system message of a chat about journal `number`: the journal first, so that no prefix is shared."""
    return journal(number, words) + "\n\nYou answer questions about this journal, briefly and kindly."


def question(number: int, turn: int) -> str:
    """Ask about journal `number`; every turn (from 0) of every chat asks something else."""
    place, kind, _, _ = _PLACES[number % len(_PLACES)]
    rng = random.Random(1000 * number + turn)
    wording = _QUESTIONS[(number + turn) % len(_QUESTIONS)]
    day, other = rng.sample(range(1, 10), 2)
    return wording.format(a=day, b=other, name=rng.choice(_NAMES), place=place, kind=kind)


def _fill(sentence: str, rng: random.Random, **fixed: str) -> str:
    text = sentence.format(
        weather=rng.choice(_WEATHER),
        name=rng.choice(_NAMES),
        thing=rng.choice(_THINGS),
        month=rng.choice(_MONTHS),
        hour=f"{rng.randint(5, 22)}:{rng.randint(0, 59):02}",
        number=rng.randint(11, 97),
        small=rng.randint(2, 10),
        **fixed,
    )
    return text[0].upper() + text[1:]
