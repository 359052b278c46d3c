"""The page shows the numbers of the manifests, loads nothing, runs only its own scripts, and is accessible."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from datakit.errors import UsageError
from datakit.report import write_report
from datakit.report.page import script_json
from datakit.storage.manifest import Manifest, read_manifest
from tests.support.report.browser import Scheme, open_page
from tests.support.report.made_up_root import write_root
from tests.support.small_shelf import WORDS, step

HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>&'", "rtl\u202e\u2028line"]
MOST_BYTES = 2_000_000
SERIOUS = ("serious", "critical")


def manifest(finished: Path, pattern: str) -> Manifest:
    return read_manifest(str(step(finished, f"root/{pattern}")))


def column(table: list[list[str]], heading: str) -> dict[str, float]:
    """The values of a column by the name in the first one."""
    place = table[0].index(heading)
    return {row[0]: float(row[place]) for row in table[1:]}


def test_numbers_of_sources_are_those_of_the_manifests(browser: Browser, shelf_report: str, finished: Path) -> None:
    page = open_page(browser, shelf_report)
    shown, tokens = page.table("retention"), page.table("tokens")
    kept, cache = manifest(finished, "shelf/consolidate-*"), manifest(finished, "shelf/tokenize-*")
    for name in ("novels", "letters"):
        counters = manifest(finished, f"sources/{name}/normalize-*").counters
        assert column(shown, "records")[name] == counters["normalize/records_in"]
        assert column(shown, "blank")[name] == counters["normalize/blank"]
        assert column(shown, "kept")[name] == kept.details["sources"][name]["records_out"]
        assert column(tokens, "tokens")[name] == sum(part.tokens or 0 for part in cache.partitions_of(name))
    assert column(shown, "kept")["all"] == kept.totals.rows
    assert column(tokens, "tokens")["all"] == cache.totals.tokens


def test_flow_distributions_and_lineage_are_those_of_the_manifests(
    browser: Browser, shelf_report: str, finished: Path
) -> None:
    page = open_page(browser, shelf_report)
    kept, dedup = manifest(finished, "shelf/consolidate-*"), manifest(finished, "shelf/dedup-*")
    flow = {(row[0], row[1]): int(row[2]) for row in page.table("flow")[1:]}
    assert flow["Documents", "Tokenized"] == kept.totals.rows
    removed = manifest(finished, "shelf/select-*").counters["select/dropped_exact"]
    assert flow["Documents", "exact duplicates across sources"] == removed
    assert column(page.table("lengths"), "documents")["all"] == kept.totals.rows
    clusters = dedup.details["clusters"]["histogram"]
    if clusters:
        assert column(page.table("components"), "components")["all"] == sum(count for _, count in clusters)
    identities = {row[-2] for row in page.table("lineage-steps")[1:]}
    assert {kept.identity, dedup.identity} <= identities
    rows = {row[0]: row[1] for row in page.table("lineage-steps")[1:]}
    assert rows["download novels"] == "–" and rows["consolidate shelf"] == str(kept.totals.rows)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_quiet_and_accessible(
    browser: Browser, shelf_report: str, scheme: Scheme, width: int, tmp_path: Path
) -> None:
    opened = open_page(browser, shelf_report, scheme, width)
    opened.page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
    opened.page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    assert [one for one in opened.violations() if one["impact"] in SERIOUS] == []
    assert opened.messages == []
    assert opened.requests == []
    assert opened.overflow() == 0


def test_every_chart_is_drawn_with_a_table_behind_it(browser: Browser, shelf_report: str) -> None:
    page = open_page(browser, shelf_report).page
    charts = page.eval_on_selector_all("[data-chart]", "all => all.map(one => one.dataset.chart)")
    assert len(charts) >= 8
    for chart in charts:
        assert page.query_selector(f"#chart-{chart} canvas") is not None, chart
        assert page.query_selector(f"details #table-{chart} caption") is not None, chart
        assert page.get_attribute(f"#chart-{chart}", "aria-label")


def test_tables_are_reached_with_the_keyboard(browser: Browser, shelf_report: str) -> None:
    page = open_page(browser, shelf_report).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is True
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_hostile_names_are_only_text(browser: Browser, tmp_path: Path) -> None:
    write_root(tmp_path / "root", [*HOSTILE, "plain"], 3)
    url = "file://" + write_report(str(tmp_path / "root" / "made"), str(tmp_path))
    opened = open_page(browser, url)
    opened.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    opened.page.hover("#chart-retention")
    names = [row[0] for row in opened.table("retention")[1:4]]
    assert names == [HOSTILE[0], HOSTILE[1], r"rtl\u202e\u2028line"]
    assert opened.page.query_selector("img") is None
    assert opened.page.locator("script").count() == 3
    assert opened.messages == [] and opened.requests == []


def test_policy_stops_scripts_that_the_page_did_not_bring(browser: Browser, shelf_report: str) -> None:
    opened = open_page(browser, shelf_report)
    opened.page.evaluate(
        "() => { const one = document.createElement('script'); one.textContent = 'window.ran = true';"
        " document.body.append(one); fetch('https://example.org').catch(() => {}) }"
    )
    assert opened.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in opened.messages)


def test_page_of_many_partitions_and_sources_is_small(browser: Browser, tmp_path: Path) -> None:
    sizes = {}
    for partitions in (1, 10):  # of each source
        root = tmp_path / str(partitions)
        write_root(root, [f"source-with-a-rather-long-name-{number:03d}" for number in range(100)], partitions)
        page = Path(write_report(str(root / "made"), str(tmp_path / "reports")))
        sizes[partitions] = page.stat().st_size
    assert sizes[10] < MOST_BYTES
    assert sizes[10] - sizes[1] < 20_000, "the size does not depend on the number of partitions"
    opened = open_page(browser, f"file://{page}")
    assert column(opened.table("retention"), "kept")["all"] == 100 * 10 * 39
    assert opened.messages == []


def test_page_holds_no_text_unless_asked(finished: Path, tmp_path: Path) -> None:
    target = str(finished / "root" / "shelf")
    plain = Path(write_report(target, str(tmp_path / "plain"))).read_text()
    assert not re.search("|".join(rf"\b{word}\b" for word in WORDS), plain)


def test_removed_pairs_are_shown_if_asked(browser: Browser, near_duplicates: Path, tmp_path: Path) -> None:
    opened = open_page(browser, "file://" + write_report(str(near_duplicates), str(tmp_path), show_text=True))
    assert opened.page.locator("section#pairs .pair").count() == 3
    marked = opened.page.eval_on_selector_all("#pairs ins, #pairs del", "all => all.map(one => one.textContent.trim())")
    assert "<b>changed</b>" in marked
    assert [one for one in opened.violations() if one["impact"] in SERIOUS] == []


@pytest.fixture(scope="module")
def near_duplicates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in which three documents are nearly equal to others."""
    import datakit
    from tests.support.small_shelf import prose, write_lines

    folder = tmp_path_factory.mktemp("near")
    texts = [prose(number, 200) for number in range(20)]
    write_lines(folder / "texts" / "a.jsonl", texts + [f"{texts[number]} <b>changed</b>" for number in range(3)])
    with (folder / "texts" / "a.jsonl").open("a") as file:
        file.write("this is no record\n" * 2)
    recipe = folder / "near.toml"
    recipe.write_text(
        'name = "near"\n[[sources]]\nname = "texts"\nurl = "texts"\n[normalize]\nmax_quarantined = 2\n'
        '[dedup]\n[tokenize]\ntokenizer = "bytes"\n'
    )
    datakit.run(recipe, folder / "root", workers=2)
    return folder / "root" / "near"


def test_texts_that_are_gone_are_named(near_duplicates: Path, tmp_path: Path) -> None:
    root = shutil.copytree(near_duplicates.parent, tmp_path / "root")
    shutil.rmtree(next(root.glob("sources/texts/normalize-*")))
    with pytest.raises(UsageError, match=r"the texts of source 'texts' are gone"):
        write_report(str(root / "near"), str(tmp_path), show_text=True)
    assert Path(write_report(str(root / "near"), str(tmp_path))).exists(), "only the texts need the step"


def test_quarantined_records_are_counted_by_reason(browser: Browser, near_duplicates: Path, tmp_path: Path) -> None:
    opened = open_page(browser, "file://" + write_report(str(near_duplicates), str(tmp_path)))
    (row,) = opened.table("quarantine")[1:]
    assert (row[:2], row[3]) == (["normalize", "texts"], "2")
    assert "this is no record" not in opened.page.content()


def test_report_is_the_same_every_time(finished: Path, tmp_path: Path) -> None:
    target = str(finished / "root" / "shelf")
    first, second = (Path(write_report(target, str(tmp_path / name))) for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()
    assert first.parent.name == "report"


def test_folder_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a dataset, a step, a run"):
        write_report(str(tmp_path), str(tmp_path))
    assert not (tmp_path / "report").exists()


def test_chart_data_cannot_leave_their_script() -> None:
    assert not re.search("[<>&\u2028\u2029]", script_json({"</script>": ["<!--", "&", "\u2028\u2029"]}))


def test_steps_without_a_ledger_still_have_a_report(finished_copy: Path, tmp_path: Path) -> None:
    for ledger in (finished_copy / "root").rglob("ledger"):
        shutil.rmtree(ledger)
    page = Path(write_report(str(finished_copy / "root" / "shelf"), str(tmp_path))).read_text()
    assert 'id="lineage"' in page and 'id="memory"' not in page
