"""For everybody: names of controls, contrast, colours that stay apart, small screens, motion, themes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_browser import live, until, watched_page
from dashboard_server import FakeServer, serve
from dashboard_tree import large_tree
from dashboard_world import World, degraded_state

Serve = Callable[..., FakeServer]
Show = Callable[..., Any]
Colour = tuple[float, float, float]

TIERS = ("hbm", "dram", "nvme", "computed", "lost")

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
DEFICIENCIES = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def palette(page: Any) -> dict[str, Colour]:
    found = page.evaluate(
        """async () => {
          const names = ["muted", "ink", "good", "warn", "bad"];
          const { palette, parse } = await import("/radix_tier/dashboard/colours.js");
          const probe = document.body.appendChild(document.createElement("i"));
          const more = names.map((name) => {
            probe.style.color = `var(--${name})`;
            return [name, parse(getComputedStyle(probe).color)];
          });
          probe.remove();
          const root = getComputedStyle(document.body).backgroundColor;
          return { ...palette(), ...Object.fromEntries(more), page: parse(root) };
        }"""
    )
    return {name: tuple(colour) for name, colour in found.items()}


def linear(colour: Colour) -> Colour:
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour))
    return r, g, b


def contrast(a: Colour, b: Colour) -> float:
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(a), linear(b)))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: Colour) -> Colour:
    """Linear RGB to Oklab, in which distances are about as large as they look."""
    r, g, b = (max(0.0, c) for c in rgb)
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def distance(a: Colour, b: Colour, matrix: tuple[tuple[float, ...], ...]) -> float:
    def seen(colour: Colour) -> Colour:
        rgb = linear(colour)
        x, y, z = (sum(m * c for m, c in zip(row, rgb, strict=True)) for row in matrix)
        return oklab((x, y, z))

    return sum((p - q) ** 2 for p, q in zip(seen(a), seen(b), strict=True)) ** 0.5


@pytest.fixture(scope="module")
def palettes(browser: Any) -> dict[str, dict[str, Colour]]:
    found = {}
    with serve(World()) as fake:
        for scheme in ("light", "dark"):
            with watched_page(browser, fake.url, color_scheme=scheme) as page:
                found[scheme] = palette(page)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_have_contrast(palettes: dict[str, dict[str, Colour]], scheme: str) -> None:
    colours = palettes[scheme]
    for text in ("ink", "muted", "good", "warn", "bad"):
        for ground in ("surface", "page"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in (*TIERS, "accent"):
        assert contrast(colours[mark], colours["surface"]) >= 3.0, mark


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_tiers_stay_apart_for_every_eye(palettes: dict[str, dict[str, Colour]], scheme: str, deficiency: str) -> None:
    colours = palettes[scheme]
    for a, b in itertools.combinations(TIERS, 2):
        assert distance(colours[a], colours[b], DEFICIENCIES[deficiency]) >= 0.08, (a, b)


def test_the_theme_follows_the_system_until_it_is_chosen(server: Serve, show: Show) -> None:
    page = show(server(), color_scheme="dark")
    dark = palette(page)
    button = page.locator("#theme")
    assert button.inner_text() == "Theme: auto"
    button.click()
    assert button.inner_text() == "Theme: light"
    assert palette(page)["page"] != dark["page"]
    page.reload()
    live(page)
    assert button.inner_text() == "Theme: light"
    button.click()
    button.click()
    assert button.inner_text() == "Theme: auto"
    assert palette(page)["page"] == dark["page"]


_NAMELESS = """() => {
  const wanted = "button, input, select, a[href], canvas, [tabindex='0'], [role=slider], [role=meter], [role=img]";
  const name = (e) => {
    const by = e.getAttribute("aria-labelledby");
    const labels = e.labels ? [...e.labels].map((l) => l.textContent).join(" ") : "";
    return (e.getAttribute("aria-label") || (by && document.getElementById(by)?.textContent) || labels
      || e.textContent || "").trim();
  };
  return [...document.querySelectorAll(wanted)].filter((e) => e.checkVisibility() && !name(e)).map((e) => e.outerHTML);
}"""


@pytest.mark.parametrize("view", ["Picture", "Table"])
def test_every_control_has_a_name(server: Serve, show: Show, view: str) -> None:
    page = show(server(World(state=degraded_state())))
    page.get_by_role("radio", name=view).check()
    page.locator("tr.request").nth(1).get_by_role("button").click()
    page.locator('[data-list="hottest"] button').first.click()
    assert page.evaluate(_NAMELESS) == []
    tree = page.locator("body").aria_snapshot()
    for line in tree.splitlines():
        role, _, rest = line.strip().removeprefix("- ").partition(" ")
        if role.rstrip(":") in ("button", "combobox", "textbox", "checkbox", "radio", "slider", "meter", "application"):
            assert rest.startswith('"'), line
    for landmark in ("banner", "main", 'navigation "Path to what is shown"', "search"):
        assert f"- {landmark}" in tree, landmark
    assert page.get_by_role("heading", level=1).inner_text() == "radixtier"


def test_the_tab_key_reaches_everything_that_acts(server: Serve, show: Show) -> None:
    page = show(server())
    seen: list[str] = []
    for _ in range(200):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(e => e.id || e.className || e.name || e.tagName)(document.activeElement)"))
        if seen[-1] == "BODY":
            break
    assert {"skip", "health", "theme", "range", "plot", "search-by", "search-for", "icicle", "events-warnings"} <= set(
        seen
    )


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (1920, 1080), (800, 1000), (390, 844), (320, 640)])
def test_nothing_is_wider_than_the_screen(server: Serve, show: Show, width: int, height: int) -> None:
    page = show(server(World(state=degraded_state())), viewport={"width": width, "height": height})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_picture_is_sharp_on_dense_screens(server: Serve, show: Show) -> None:
    page = show(server(), device_scale_factor=2)
    until(page, "document.querySelector('#icicle').dataset.drawn > 0")
    assert page.eval_on_selector("#icicle", "c => Math.abs(c.width / c.clientWidth - 2) < 0.01")


def test_nothing_moves_for_those_who_do_not_want_it(server: Serve, show: Show) -> None:
    page = show(server(), reduced_motion="reduce")
    assert page.eval_on_selector(".meter i", "e => getComputedStyle(e).transitionDuration") == "0s"
    assert page.evaluate("""import("/radix_tier/dashboard/dom.js").then((dom) => dom.moves())""") is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("what", ["good", "bad", "large", "phone"])
def test_the_page_can_be_looked_at(server: Serve, show: Show, tmp_path: Path, scheme: str, what: str) -> None:
    """Leaves a picture of the whole page for people; here only that it was drawn."""
    worlds: dict[str, Callable[[], World]] = {
        "bad": lambda: World(state=degraded_state()),
        "large": lambda: World(rows=large_tree()),
    }
    size = {"width": 390, "height": 844} if what == "phone" else {"width": 1280, "height": 900}
    page = show(server(worlds.get(what, World)()), color_scheme=scheme, viewport=size)
    page.locator('[data-list="hottest"] button').nth(4).click()
    page.locator("tr.request").nth(1).get_by_role("button").click()
    page.get_by_text("left DRAM").first.wait_for()
    page.evaluate("scrollTo(0, 0)")
    picture = page.screenshot(path=tmp_path / f"{what}-{scheme}.png", full_page=True)
    assert len(picture) > 50_000
