"""The report as a person has it: in a browser, without a network, with a mouse or with a keyboard, in both themes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from group_models import reports
from group_models.fakes import MemoryTables
from group_models.keys import key_id
from group_models.reporting.page.page import Page
from tests.browser.chromium import NAMES, Chromium, find_chromium
from tests.pages import CARRIERS, ODD, SET, add_nights, key_of

KEYS = 700
ROWS = "[...document.querySelectorAll('#keys tbody tr')]"
CELLS = "[...document.querySelectorAll('#keys tbody tr')].map(row => row.cells[{}].textContent)"
FOUND = "document.getElementById('found').textContent"
OPEN = "document.getElementById('one').open"
HEADS = "[...document.querySelectorAll('#keys thead th')].map(head => head.textContent)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A headless Chromium; without one the tests are skipped, but never where CI says that all must run."""
    command = find_chromium()
    if command is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs a browser: none of {', '.join(NAMES)} on PATH")
    with Chromium(command, tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def page() -> Page:
    tables = MemoryTables()
    add_nights(tables, KEYS)
    return reports.make_page(tables, SET, "night-2", worst=2)


@pytest.fixture(scope="module")
def file(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page.write(tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def opened(browser: Chromium, file: Path) -> Chromium:
    browser.open(file)
    return browser


def search(browser: Chromium, text: str) -> None:
    """Search in the table of all keys, as somebody who presses `/` and types."""
    before = browser.ask(FOUND)
    browser.press("/")
    browser.write(text)
    browser.until(f"{FOUND} !== {before!r}")


def test_the_page_opens_without_an_error_and_asks_no_network(opened: Chromium, file: Path):
    assert opened.trouble == []
    assert opened.requests == [file.as_uri()]
    assert opened.ask(FOUND) == f"{KEYS} keys"
    assert opened.ask("document.querySelectorAll('.figure svg').length") >= 8


def test_search_finds_keys_by_their_words_in_any_order(opened: Chromium):
    search(opened, "trained DL")
    assert set(opened.ask(CELLS.format(0))) == {"DL"}
    assert opened.ask(FOUND).endswith(f" of {KEYS} keys")
    search(opened, " no such words")
    assert opened.ask(f"{ROWS}.length") == 0
    assert opened.trouble == []


def test_search_for_a_column_and_its_value_finds_one_key(opened: Chromium):
    lane = key_of(122)["lane"]
    search(opened, f"lane={lane}")
    assert opened.ask(CELLS.format(1)) == [lane]


def test_a_status_is_chosen_from_what_came_of_the_keys(opened: Chromium):
    opened.ask("document.querySelector('[data-status=failed]').click()")
    assert set(opened.ask(CELLS.format(2))) == {"failed"}


def test_a_column_sorts_both_ways_with_nothing_last(opened: Chromium):
    error = opened.ask(HEADS).index("MAE")
    assert opened.ask("document.querySelector('#keys [aria-sort]').textContent") == "MAE"
    for direction in ("ascending", "descending"):
        opened.ask(f"document.querySelectorAll('#keys thead button')[{error}].click()")
        assert opened.ask("document.querySelector('#keys [aria-sort]').getAttribute('aria-sort')") == direction
        values = [float(text) for text in opened.ask(CELLS.format(error))]
        assert values == sorted(values, reverse=direction == "descending")
        assert len(values) == 50
    opened.ask("document.getElementById('size').value = '250'")
    opened.ask("document.getElementById('size').dispatchEvent(new Event('change'))")
    while not opened.ask("document.getElementById('next').disabled"):
        opened.ask("document.getElementById('next').click()")
    assert opened.ask(CELLS.format(error))[-1] == ""


def test_numbers_are_sorted_by_size_and_texts_by_their_letters(opened: Chromium):
    heads = opened.ask(HEADS)
    opened.ask(f"document.querySelectorAll('#keys thead button')[{heads.index('rows')}].click()")
    rows = [int(text.replace(",", "")) for text in opened.ask(CELLS.format(heads.index("rows")))]
    assert rows == sorted(rows, reverse=True)
    opened.ask("document.querySelectorAll('#keys thead button')[1].click()")
    lanes = opened.ask(CELLS.format(1))
    assert lanes == sorted(lanes)


def test_a_key_opens_with_what_is_known_of_it_and_its_address_opens_it_again(browser: Chromium, file: Path):
    browser.open(file)
    search(browser, "failed prepare")
    browser.ask(f"{ROWS}[0].click()")
    assert browser.ask(OPEN) is True
    said = browser.ask("document.getElementById('one').innerText")
    assert "infinite values" in said
    assert "night-1" in said
    address = browser.ask("location.href")
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=address)
    browser.until(f"document.readyState === 'complete' && !!document.getElementById('one') && {OPEN}")
    assert browser.ask("document.getElementById('one').innerText") == said
    assert browser.trouble == []


def test_a_link_of_a_failure_opens_its_key(opened: Chromium):
    link = "document.querySelector('#failures a.key')"
    label = opened.ask(f"{link}.textContent")
    opened.ask(f"{link}.click()")
    assert opened.ask("document.getElementById('one-title').textContent") == label


def test_the_table_is_used_with_the_keyboard_alone(opened: Chromium):
    opened.ask("document.querySelector('#keys tbody button').focus()")
    opened.press("ArrowDown")
    opened.press("ArrowDown")
    opened.press("ArrowUp")
    focused = opened.ask("document.activeElement.closest('tr').rowIndex")
    opened.press("Enter")
    assert (focused, opened.ask(OPEN)) == (2, True)
    opened.press("Escape")
    opened.until(f"!{OPEN}")
    assert opened.ask("document.activeElement.closest('tr').rowIndex") == 2


def test_the_page_is_light_or_dark_as_the_system_is_and_the_button_changes_it(browser: Chromium, file: Path):
    seen = {}
    for scheme in ("light", "dark"):
        browser.open(file, scheme=scheme)
        browser.ask("localStorage.clear()")
        browser.open(file, scheme=scheme)
        seen[scheme] = browser.ask(BACKGROUND)
        browser.ask("document.getElementById('theme').click()")
        seen[f"not {scheme}"] = browser.ask(BACKGROUND)
    browser.ask("localStorage.clear()")
    assert seen["light"] != seen["dark"]
    assert (seen["not light"], seen["not dark"]) == (seen["dark"], seen["light"])


def test_names_that_look_like_code_stay_names(opened: Chromium):
    assert opened.ask("document.querySelectorAll('script').length") == 2
    assert not opened.ask("[...document.querySelectorAll('b')].some(each => each.textContent.startsWith('bold'))")
    search(opened, ODD)
    assert set(opened.ask(CELLS.format(0))) <= {ODD, *[f"{ODD}{n}" for n in range(KEYS + 20)]}
    opened.ask(f"{ROWS}[0].click()")
    assert ODD in opened.ask("document.getElementById('one-title').textContent")
    assert opened.trouble == []


@pytest.mark.parametrize("carrier", CARRIERS[-3:])
def test_keys_of_any_letters_are_found(opened: Chromium, carrier: str):
    search(opened, carrier)
    assert opened.ask(f"{ROWS}.length") > 5


def test_a_phone_sees_the_page_without_scrolling_sideways(browser: Chromium, file: Path):
    browser.open(file, width=375)
    assert browser.ask("document.documentElement.scrollWidth") == 375


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(browser: Chromium, page: Page, tmp_path: Path):
    around = tmp_path / "notebook.html"
    around.write_text(f"<!doctype html><meta charset=utf-8><b>mine</b>{page._repr_html_()}", encoding="utf-8")
    browser.open(around)
    assert browser.ask("document.querySelectorAll('iframe').length") == 1
    assert browser.ask("document.querySelectorAll('table').length") == 0
    assert browser.trouble == []


def test_a_key_that_is_looked_at_closely_is_linked_from_the_table(opened: Chromium):
    ids = opened.ask("[...document.querySelectorAll('article.close')].map(each => each.id.slice(6))")
    assert len(ids) == 2
    assert set(ids) <= {key_id(tuple(key_of(number).values())) for number in range(KEYS + 20)}
    opened.ask(f"{ROWS}[0].click()")
    assert opened.ask("document.querySelector('#one-close a').getAttribute('href')") == f"#close-{ids[0]}"


@pytest.mark.slow
def test_twenty_thousand_keys_open_and_are_searched(browser: Chromium, tmp_path: Path):
    tables = MemoryTables()
    add_nights(tables, 20_000)
    large = reports.make_page(tables, SET, "night-2").write(tmp_path / "large.html")
    assert large.stat().st_size < 10_000_000
    browser.open(large)
    assert browser.ask(FOUND) == "20,000 keys"
    search(browser, "carrier=ua failed")
    assert "of 20,000 keys" in browser.ask(FOUND)
    assert browser.trouble == []
