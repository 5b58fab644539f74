"""The page in a real browser, fed with events: what it shows, that it moves, turns red, and can be used by all."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from starrocks_txn_sink.coordinator.model import Receipt, RegionCount
from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.protocol.verified import Verified
from starrocks_txn_sink.sink.batch_events import receipt_events
from starrocks_txn_sink.telemetry import Event
from tests.support.recorded import Pipeline
from tests.support.screen import Screen, refresh

ROWS = ["right", "fresh", "flow", "anatomy", "assembler", "saturation", "errors", "partitions"]

# Every visible text against the background it stands on; WCAG's contrast of the pairs that are too close.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (css) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => v <= 10 ? v / 3294 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(linear)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("noscript, .unseen, svg")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""


def figure(page: Page, row: str, name: str) -> Any:
    return page.locator(f"#{row} .figures > div", has=page.locator("dt", has_text=name)).locator("dd").first


def test_changes_of_tables_are_listed_with_their_statements(screen: Screen, metrics: MetricsServer) -> None:
    page = screen.open(metrics.url)
    listed = page.get_by_role("region", name="Schema changes")
    expect(page.locator("#transactions .none")).to_have_text("None yet.")
    assert listed.count() == 0
    statement = "ALTER TABLE `shop`.`t` ADD COLUMN `age` BIGINT NULL"
    metrics(Event("schema.changed", {"job": "j", "table": "t", "statement": statement}))
    refresh(page)
    expect(listed.locator("tbody td").nth(2)).to_have_text(statement)


def test_the_last_proof_is_a_line_of_the_first_row(screen: Screen, metrics: MetricsServer) -> None:
    page = screen.open(metrics.url)
    metrics(Event("session.opened", {"job": "j", "exactly_once": True}))
    result = Verified(60, 50, 0, 0, 0, "0/1D4C3A8")
    metrics(Event("tables.verified", {"database": "shop", "found": {"j": result, "of another driver": result}}))
    refresh(page)
    said = page.locator("#right .none").nth(1)
    expect(said).to_have_text("j: equal to the source at 1970-01-01 00:01 UTC, position 0/1D4C3A8: 50 tables.")
    expect(page.locator("#right .none")).to_have_count(2)


def test_a_hold_is_a_pause_in_the_sentence_and_no_failure(
    screen: Screen, metrics: MetricsServer, pipeline: Pipeline
) -> None:
    pipeline.run(5)
    pipeline.hold()
    pipeline.clock.advance(12)
    page = screen.open(metrics.url)
    said = "A command (verify or resync) has held the job for 12 s; it goes on by itself."
    expect(page.locator("#sentence")).to_have_text(said)
    for row, light in (("fresh", "warn"), ("anatomy", "ok"), ("errors", "ok")):
        expect(page.locator(f"#{row}")).to_have_attribute("data-light", light)
    expect(page.locator("#transactions tbody tr")).to_have_count(5)
    pipeline.commit()
    refresh(page)
    expect(page.locator("#sentence")).to_have_text("Committed 0.0 s ago; nothing in doubt.")


def test_the_first_snapshot_is_told_table_by_table_until_it_is_over(screen: Screen, metrics: MetricsServer) -> None:
    page = screen.open(metrics.url)
    fields = {"job": "j", "tables": 2, "over": 1, "text": "1 of 2 tables", "tables_over": ["public.orders"]}
    metrics(Event("snapshot.progressed", fields))
    metrics(
        Event("snapshot.progressed", fields | {"over": 2, "text": "over, 2 tables", "tables_over": ["public.items"]})
    )
    for _ in "ab":  # each start of the query tells it again
        metrics(Event("snapshot.ended", {"job": "j", "tables": 2}))
    refresh(page)
    rows = page.get_by_role("region", name="Schema changes and snapshot").locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("the snapshot is over: 2 tables")
    expect(rows.nth(2)).to_contain_text("public.ordersthe snapshot of the table is over (1 of 2 tables)")


def test_the_rows_come_in_the_order_of_an_operators_questions(screen: Screen, metrics: MetricsServer) -> None:
    page = screen.open(metrics.url)
    expect(page.locator("#sentence")).to_have_text("Waiting for the first micro-batch for 0.0 s.")
    sections = page.locator("main > section").evaluate_all("nodes => nodes.map(node => node.id)")
    assert sections == [*ROWS, "transactions"]


def test_figures_appear_and_move(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(40)
    page = screen.open(metrics.url)
    expect(page.locator("#verdict")).to_have_attribute("data-light", "ok")
    expect(page.locator("#sentence")).to_have_text("Committed 0.0 s ago; nothing in doubt.")
    expect(figure(page, "anatomy", "committed")).to_have_text("40 tx")
    expect(figure(page, "saturation", "loads at once")).to_have_text("3 loads")
    expect(figure(page, "partitions", "event-time skew")).to_have_text("1.05 s")
    expect(page.locator("#partitions tbody tr")).to_have_count(4)
    expect(page.locator("#flow tbody tr")).to_have_count(3)
    expect(page.locator("#assembler tbody tr")).to_have_count(2)
    expect(page.locator("#assembler tbody tr").first).to_contain_text("lanes1 at 4711")
    expect(page.locator("#assembler tbody tr").last).to_contain_text("all others")
    first = page.locator("#transactions tbody tr").first
    expect(first).to_contain_text("#39order_events, order_items, orders")
    line = page.locator("#flow .spark .line").first
    before = line.get_attribute("d")
    pipeline.run(20)
    refresh(page)
    expect(figure(page, "anatomy", "committed")).to_have_text("60 tx")
    assert line.get_attribute("d") != before
    assert screen.complaints == []


def test_it_refreshes_by_itself(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    page = screen.open(metrics.url)
    pipeline.run(7)
    expect(figure(page, "anatomy", "committed")).to_have_text("7 tx")


def test_it_turns_red_when_commits_fail_and_leads_to_the_runbook(
    screen: Screen, metrics: MetricsServer, pipeline: Pipeline
) -> None:
    pipeline.run(10)
    page = screen.open(metrics.url)
    ground = "getComputedStyle(document.getElementById('verdict')).backgroundColor"
    green = page.evaluate(ground)
    pipeline.fail()
    pipeline.fail()
    refresh(page)
    expect(page.locator("#verdict")).to_have_attribute("data-light", "bad")
    expect(page.locator("#sentence")).to_contain_text("The last micro-batch failed 0.0 s ago (commit_failed)")
    assert page.evaluate(ground) != green
    for row in ("fresh", "anatomy", "errors"):
        expect(page.locator(f"#{row}")).to_have_attribute("data-light", "bad")
    expect(page.locator("#transactions tbody tr.failed")).to_have_count(2)
    pipeline.run(1)
    refresh(page)
    expect(page.locator("#verdict")).to_have_attribute("data-light", "warn")
    page.locator("#errors a", has_text="commit_failed").click()
    expect(page.locator(":target")).to_have_text("Error commit_failed")


def test_what_is_wrong_outshines_what_is_slow(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(3)
    pipeline.fail("outcome_unknown", unsettled=1)
    page = screen.open(metrics.url)
    expect(page.locator("#sentence")).to_contain_text("1 StarRocks transaction in doubt for 0.0 s")
    pipeline.violate()
    refresh(page)
    expect(page.locator("#sentence")).to_contain_text("Data is wrong: 1 integrity violation")
    expect(page.locator("#right")).to_have_attribute("data-light", "bad")


def test_a_transaction_opens_by_keyboard_and_closes_again(
    screen: Screen, metrics: MetricsServer, pipeline: Pipeline
) -> None:
    pipeline.run(3)
    page = screen.open(metrics.url)
    page.locator("#transactions button").nth(1).focus()
    refresh(page)  # new content must not take the keyboard's place away
    page.keyboard.press("Enter")
    dialog = page.locator("#detail")
    expect(dialog).to_be_visible()
    expect(dialog.locator("h2")).to_have_text("shop-orders-6b01b8a8-0-1-4_0")
    expect(dialog.locator(".legend")).to_contain_text("publish")
    expect(dialog.locator("table").nth(1).locator("tbody tr")).to_have_count(4)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert page.evaluate("document.activeElement.textContent") == "shop-orders-6b01b8a8-0-1-4_0"


def test_the_range_can_be_chosen(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(400)
    page = screen.open(metrics.url)
    expect(page.locator("#ranges input:checked")).to_have_value("900")  # the smallest that holds the run
    with page.expect_response("**/api/state?seconds=300"):
        page.get_by_label("5 min", exact=True).check(force=True)
    expect(page.locator("#ranges input:checked")).to_have_value("300")


def test_a_driver_that_has_ended_is_said(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(3)
    page = screen.open(metrics.url)
    metrics.close()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#sentence")).to_contain_text("The driver does not answer")
    expect(page.locator("#verdict")).to_have_attribute("data-light", "bad")


def screens(*widths: int) -> pytest.MarkDecorator:
    """Every width in both colour schemes; the quick tests take the widest light and the narrowest dark one."""
    quick = {(max(widths), "light"), (min(widths), "dark")}
    every = itertools.product(widths, ("light", "dark"))
    return pytest.mark.parametrize(
        ("width", "scheme"),
        [
            pytest.param(*screen_values, marks=[] if screen_values in quick else pytest.mark.deep)
            for screen_values in every
        ],
    )


@screens(1440, 1280, 390)
def test_everybody_can_read_it(
    screen: Screen, metrics: MetricsServer, pipeline: Pipeline, scheme: str, width: int
) -> None:
    pipeline.run(30)
    pipeline.fail()
    pipeline.run(1)
    page = screen.open(metrics.url, width=width, scheme=scheme)
    expect(page.locator("#transactions tbody tr").first).to_be_visible()
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (red + green + blue > 600) == (scheme == "light")
    wide = "nodes => nodes.filter(n => n.scrollWidth > n.parentElement.clientWidth + 6).map(n => n.textContent)"
    assert page.locator(".figures dd").evaluate_all(wide) == []
    two_lines = "nodes => nodes.filter(n => n.clientHeight > 25).map(n => n.textContent)"
    assert page.locator("main .figures dt, main .figures dd, figcaption").evaluate_all(two_lines) == []


@pytest.mark.deep
@screens(1440, 390)
def test_everybody_can_read_the_runbook(screen: Screen, metrics: MetricsServer, scheme: str, width: int) -> None:
    page = screen.open(metrics.url, width=width, scheme=scheme)
    page.goto(f"{metrics.url}runbook#error-commit_failed")
    expect(page.locator(":target")).to_have_text("Error commit_failed")
    expect(page.locator(":target + p")).to_contain_text("StarRocks did not commit")
    assert page.locator("table, ol, pre, code").count() > 20
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert screen.complaints == []


def test_nothing_is_red_while_nothing_is_wrong(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(20)
    page = screen.open(metrics.url)
    expect(page.locator("#errors .spark .line.calm")).to_have_count(1)
    assert page.locator(".spark .red").count() == 0
    pipeline.fail()
    pipeline.run(4)  # a sparkline shows what has ended
    refresh(page)
    expect(page.locator("#errors .spark .line.red")).to_have_count(1)


def test_it_makes_sense_without_eyes(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(5)
    page = screen.open(metrics.url)
    expect(page.locator("h1")).to_have_count(1)
    assert page.locator("#verdict").get_attribute("role") == "status"
    assert page.evaluate("document.documentElement.lang") == "en"
    unnamed = (
        "nodes => nodes.filter(node => !node.getAttribute('aria-label') && !node.getAttribute('aria-hidden')).length"
    )
    assert (
        page.locator("section svg").evaluate_all(
            unnamed.replace("node =>", "node => !node.closest('.bar, .legend') &&")
        )
        == 0
    )
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    for row in ROWS:
        assert page.get_by_role("region", name=page.locator(f"#{row}-h span").nth(1).inner_text()).count() >= 1


def test_a_name_is_never_taken_as_markup(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    name = "<img src=x onerror=alert(1)>"
    pipeline.run(1)
    dead = (RegionCount("0", name, 2, 9),)
    letters = Receipt("l", 1, "shop", 1, (), (), 1, 1, 0, False, dead_lettered=dead)
    for event in receipt_events([letters]):
        metrics(event)
    page = screen.open(metrics.url)
    expect(page.locator("#errors td", has_text=name)).to_have_count(1)
    expect(page.locator("#right .warn dd")).to_have_text("2 rows")
    assert page.locator("img").count() == 0
    assert screen.complaints == []


def test_it_asks_nobody_but_the_driver(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(2)
    screen.open(metrics.url)
    assert screen.asked == {urlsplit(metrics.url).netloc}
    assert screen.complaints == []


def test_every_figure_graph_and_number_says_what_it_is(
    screen: Screen, metrics: MetricsServer, pipeline: Pipeline
) -> None:
    pipeline.run(30)
    pipeline.fail()
    pipeline.run(1)
    page = screen.open(metrics.url)
    expect(page.locator("#transactions tbody tr").first).to_be_visible()
    mute = "nodes => nodes.filter(node => (node.title || '').length < 12).map(node => node.textContent)"
    for things in ("main .figures > div", "main figure:has(svg.spark)", "main th.n"):
        texts = page.locator(things).evaluate_all(mute)
        assert [text for text in texts if text not in ("count", "rows", "bytes")] == [], things
    page.locator("#transactions button").last.click()
    assert page.locator("#detail .figures > div").evaluate_all(mute) == []
    assert screen.complaints == []


def test_graphs_have_axes(screen: Screen, metrics: MetricsServer, pipeline: Pipeline) -> None:
    pipeline.run(30)
    page = screen.open(metrics.url)
    plots = page.locator("#flow figure .axis")
    expect(plots).to_have_count(2)
    top, middle, bottom = plots.first.locator("span").all_inner_texts()
    assert bottom == "0"
    assert float(top) == 2 * float(middle) > 0
    assert page.locator("#flow .times span").count() == 2
    high = page.locator("#flow .spark .line").first.evaluate("line => line.getBBox().y")
    assert high >= 0, "the line stays below the top of its axis"


def test_after_a_restart_in_the_same_process_the_page_is_green_again(
    screen: Screen, metrics: MetricsServer, pipeline: Pipeline
) -> None:
    pipeline.run(3)
    pipeline.fail("query_failed")
    job = next(iter(metrics.model.jobs))
    metrics(Event("query.ended", {"query": job.query, "failed": True}))
    page = screen.open(metrics.url)
    expect(page.locator("#sentence")).to_contain_text("failed")
    expect(page.locator("#verdict")).to_have_attribute("data-light", "bad")
    pipeline.run(40)
    refresh(page)
    expect(page.locator("#sentence")).to_contain_text("Committed")
    expect(page.locator("#verdict")).not_to_have_attribute("data-light", "bad")
    assert job.ended_code == ""
