import { el, meter, shares, sparkline, table } from "./drawing.js";
import { FIGURES } from "./words.js";

const EVERY = 2000;
const NOTHING = "–";
let range = null;
let shown = null;

// --- numbers as people read them ---

const number = (value, digits = 0) => value === null || value === undefined ? NOTHING : value.toLocaleString("en", { maximumFractionDigits: digits });
const short = (value) => value === null || value === undefined ? NOTHING
  : value >= 1e9 ? `${(value / 1e9).toFixed(1)} G` : value >= 1e6 ? `${(value / 1e6).toFixed(1)} M`
  : value >= 1e4 ? `${(value / 1e3).toFixed(value >= 1e5 ? 0 : 1)} k` : number(value, value < 10 ? 1 : 0);
const bytes = (value) => value === null || value === undefined ? NOTHING
  : value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : value >= 2 ** 20 ? `${(value / 2 ** 20).toFixed(1)} MiB`
  : value >= 2 ** 10 ? `${(value / 2 ** 10).toFixed(0)} KiB` : `${number(value)} B`;
const time = (value) => value === null || value === undefined ? NOTHING : value === 0 ? "0 s"
  : value < 0.0995 ? `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms` : value < 9.95 ? `${value.toFixed(2)} s`
  : value < 120 ? `${value.toFixed(0)} s` : value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
const clock = (at) => at ? new Date(at * 1000).toLocaleTimeString("en-GB") : NOTHING;
const since = (now, at) => at ? `${time(Math.max(0, now - at))} ago` : NOTHING;

// --- pieces ---

function figures(row, ...pairs) {
  return el("dl", { class: "figures" }, pairs.map(([name, value, kind]) => {
    const [unit, text] = FIGURES[row][name] ?? ["", ""];
    return el("div", { class: kind || "", title: text }, el("dt", {}, name),
      el("dd", {}, value, unit && value !== NOTHING ? el("small", {}, ` ${unit}`) : null));
  }));
}

const plots = (state, ...drawn) => [el("div", { class: "plots" }, drawn),
  el("div", { class: "times", "aria-hidden": "true" }, el("span", {}, clock(state.series.start)), el("span", {}, clock(state.now)))];
const line = (values, kind) => ({ values, kind });
const level = (values, kind) => ({ values, kind, joined: true });  // measured now and then, and true in between
const alarm = (value) => value ? "bad" : "";
const caution = (value) => value ? "warn" : "";
const of = (limit) => el("span", {}, "of ", el("b", {}, limit));
const none = (text) => el("p", { class: "none" }, text);

// --- the rows, in the order of an operator's questions ---

const ROWS = {
  right({ right, series }, state) {
    const { violations, outcomes } = right;
    return [figures("right", ["torn", number(violations.torn), alarm(violations.torn)],
      ["changed", number(violations.source_changed), alarm(violations.source_changed)], ["unlisted", number(violations.unlisted), alarm(violations.unlisted)],
      ["in doubt", number(right.in_doubt), alarm(right.in_doubt)], ["quarantined", number(right.dead_letter_rows), caution(right.dead_letter_rows)]),
    ...plots(state, sparkline("commits and failures a second", [line(series.commits), line(series.failed, "red")], (value) => number(value, 2)),
      sparkline("violations a second", [line(series.violations, "red")], (value) => number(value, 2))),
    none(`${short(outcomes.committed)} source transactions committed, ${short(outcomes.dead_lettered)} dead-lettered, ${short(outcomes.replayed)} came again and were left out, ` +
      `${short(outcomes.abandoned)} were abandoned by the source.`), ...right.verified.map(none)];
  },
  fresh({ fresh, series, now }, state) {
    return [figures("fresh", ["last commit", fresh.last_commit ? time(Math.max(0, now - fresh.last_commit)) : NOTHING], ["visible in, p50", time(fresh.p50)],
      ["visible in, p99", time(fresh.p99)], ["behind", fresh.lag === null ? NOTHING : short(fresh.lag)],
      ["waiting", fresh.lag_seconds === null ? NOTHING : time(fresh.lag_seconds)], ["micro-batch", fresh.batch_id < 0 ? NOTHING : `#${fresh.batch_id}`],
      ...(fresh.goal === null ? [] : [["goal", time(fresh.goal)], ["a commit each", time(fresh.interval)], ["paced by", fresh.paced_by]])),
    ...plots(state, sparkline("source → visible, p50 and p99", [level(series.latency_p99, "second"), level(series.latency_p50)], time),
      sparkline("micro-batch in the sink", [level(series.batch_seconds)], time)),
    ...plots(state, sparkline("rows waiting in the source", [level(series.lag_rows)], short),
      sparkline("oldest row in the source waits", [level(series.lag_seconds)], time))];
  },
  flow({ flow, series }, state) {
    const rows = flow.tables.map((one) => ({ cells: [one.table, short(one.rate), short(one.upsert), short(one.delete)] }));
    return [figures("flow", ["transactions", short(flow.transactions)], ["rows", short(flow.rows)], ["data", bytes(flow.bytes)],
      ["per commit", number(flow.n_to_1, 1)], ["rows in all", short(flow.rows_total)]),
    ...plots(state, sparkline("source transactions a second", [line(series.transactions)], short), sparkline("rows a second", [line(series.rows)], short)),
    rows.length ? table([["table"], ["rows/s", "n"], ["upserts", "n"], ["deletes", "n"]], rows, "Rows by table") : null];
  },
  anatomy({ anatomy, series }, state) {
    const parts = Object.entries(anatomy.phases).filter(([, value]) => value);
    const loads = anatomy.loads.map((one) => ({ cells: [one.table, short(one.loads), time(one.p50), time(one.p99)] }));
    const { committed = 0, aborted = 0, unknown = 0 } = anatomy.outcomes;
    return [figures("anatomy", ["commit p50", time(anatomy.commit_p50)], ["commit p99", time(anatomy.commit_p99)], ["committed", short(committed)],
      ["aborted", short(aborted), caution(aborted)], ["unknown", short(unknown), alarm(unknown)], ["loads each", number(anatomy.loads_per_commit, 1)]),
    parts.length ? shares(parts, time) : none("No StarRocks transaction in the time shown."),
    ...plots(state, sparkline("commit → visible, p50 and p99", [level(series.commit_p99, "second"), level(series.commit_p50)], time),
      sparkline("commits and aborts a second", [line(series.commits), line(series.aborted, "red")], (value) => number(value, 2))),
    loads.length ? table([["load into"], ["loads", "n"], ["p50", "n"], ["p99", "n"]], loads, "Loads by table") : null];
  },
  assembler({ assembler, series, now }, state) {
    const { lost } = assembler;
    const rows = assembler.open_transactions.map((one) => ({ cells: [one.stage, one.place ?? "all", time(now - one.since), short(one.open), short(one.rows), bytes(one.bytes)] }));
    return [figures("assembler", ["open", short(assembler.open)], ["oldest", assembler.oldest ? time(now - assembler.oldest) : NOTHING], ["rows held", short(assembler.rows)],
      ["state", bytes(assembler.bytes)], ["abandoned", short(lost.abandoned)], ["dropped", short(lost.dropped), caution(lost.dropped)]),
    ...plots(state, sparkline("open source transactions", [level(series.open)], short), sparkline("state", [level(series.state_bytes)], bytes)),
    rows.length ? table([["open in"], ["partition, position"], ["age", "n"], ["transactions", "n"], ["rows", "n"], ["bytes", "n"]], rows, "Open source transactions by age")
      : none("No source transaction is open.")];
  },
  saturation({ saturation, series }, state) {
    const full = saturation.buffer_limit ? saturation.buffer / saturation.buffer_limit : 0;
    return [figures("saturation", ["buffer", bytes(saturation.buffer), caution(full >= 0.9)], ["loads at once", number(saturation.inflight)],
      ["open now", number(saturation.open)], ["running for", saturation.running === null ? NOTHING : time(saturation.running)],
      ["age", saturation.timeout ? `${(saturation.age * 100).toFixed(1)} %` : NOTHING, saturation.age >= 0.8 ? "bad" : caution(saturation.age >= 0.5)],
      ["recycled", number(saturation.recycled), caution(saturation.recycled)]),
    el("div", { class: "plots" }, el("figure", {}, el("figcaption", {}, "fullest lane's buffer", of(bytes(saturation.buffer_limit))), meter("buffer of its limit", full)),
      el("figure", {}, el("figcaption", {}, "oldest transaction's age", of(time(saturation.timeout))), meter("age of timeout", saturation.age))),
    ...plots(state, sparkline("most bytes a lane held", [level(series.buffer_bytes)], bytes), sparkline("retries a second", [line(series.retries)], (value) => number(value, 2)))];
  },
  errors({ errors, series, now }, state) {
    const rows = errors.codes.map((one) => ({ cells: [el("a", { href: one.runbook }, one.code), short(one.count), since(now, one.last), [one.meaning, one.advice].join(" ")] }));
    const letters = errors.dead_letters.map(([name, reason, count]) => ({ cells: [name, reason, short(count)] }));
    const retried = errors.retries.map(([operation, reason, count]) => `${operation} ${short(count)}× (${reason})`).join(", ");
    return [figures("errors", ["failed batches", short(errors.failed_batches), caution(errors.failed_batches)],
      ["errors", short(errors.codes.reduce((sum, one) => sum + one.count, 0)), caution(errors.codes.length)],
      ["retries", short(errors.retries.reduce((sum, one) => sum + one[2], 0))],
      ["requests", short(errors.requests.reduce((sum, one) => sum + one[2], 0))]),
    ...plots(state, sparkline("errors a second", [line(series.errors, "red")], (value) => number(value, 2))),
    rows.length ? table([["error"], ["count", "n"], ["last"], ["what it means", "wrap"]], rows, "Errors by code") : none("No error so far."),
    letters.length ? table([["table"], ["reason"], ["rows", "n"]], letters, "Dead letters") : null,
    retried ? none(`Repeated: ${retried}.`) : null];
  },
  partitions({ partitions, now }) {
    if (!partitions.count) return [none("No position is visible yet.")];
    const rows = partitions.shown.map((one) => ({ cells: [one.partition, number(one.position), one.lag === null ? NOTHING : short(one.lag),
      one.event_time === null ? NOTHING : since(now, one.event_time), one.behind === null ? NOTHING : time(one.behind)] }));
    return [figures("partitions", ["partitions", number(partitions.count)], ["event-time skew", time(partitions.skew)]),
      table([["partition"], ["position", "n"], ["lag", "n"], ["event time"], ["skew", "n"]], rows, "Source partitions")];
  },
  transactions({ transactions, schema_changes, now }) {
    const changes = schema_changes.map((one) => ({ cells: [since(now, one.at), one.table, one.statement] }));
    const changed = changes.length ? table([["when"], ["table"], ["statement", "wrap"]], changes, "Schema changes and snapshot") : null;
    if (!transactions.length) return [none("None yet."), changed];
    const rows = transactions.map((one) => one.outcome === "failed"
      ? { kind: "failed", cells: [since(now, one.at), open(one, `failed: ${one.code}`), `#${one.batch_id}`, NOTHING, NOTHING, NOTHING, NOTHING, time(one.open_seconds)] }
      : { cells: [since(now, one.at), open(one, one.label), `#${one.batch_id}`, Object.keys(one.tables).join(", "), number(one.rows), number(one.source_transactions),
        time((one.phases.commit || 0) + (one.phases.publish || 0)), time(one.open_seconds)] });
    return [table([["when"], ["label", "label"], ["batch", "n"], ["tables", "names"], ["rows", "n"], ["source tx", "n"], ["commit → visible", "n"], ["open for", "n"]], rows, "Recent StarRocks transactions"), changed];
  },
};

// --- the detail view ---

const open = (one, text) => el("button", { type: "button", onclick: () => detail(one), "data-key": keyOf(one) }, el("bdi", {}, text));
const keyOf = (one) => `${one.job}/${one.batch_id}/${one.label || one.at}`;

function detail(one) {
  const dialog = document.getElementById("detail");
  dialog.querySelector("h2").textContent = one.label || `Micro-batch ${one.batch_id} failed`;
  dialog.querySelector(".body").replaceChildren(...(one.outcome === "failed" ? failure(one) : content(one)));
  dialog.onclose = () => document.querySelector(`#transactions [data-key="${CSS.escape(keyOf(one))}"]`)?.focus();
  dialog.showModal();
}

const failure = (one) => [none(`job ${one.job}`), figures("detail", ["failed at", clock(one.at)], ["after", time(one.open_seconds)], ["rolled back", number(one.attempts)]),
  el("p", {}, "Error ", el("a", { href: `runbook#error-${one.code}` }, one.code), ". Nothing that was open became visible; Spark or its supervisor repeats the micro-batch.")];

function content(one) {
  const phases = Object.entries(one.phases).filter(([, value]) => value);
  const regions = one.regions.map(([partition, name, count, size]) => ({ cells: [partition, name, number(count), bytes(size)] }));
  const spans = one.positions.map(([partition, first, last, count]) => ({ cells: [partition, number(first), number(last), number(count)] }));
  return [none(`job ${one.job}, micro-batch ${one.batch_id}`), figures("detail", ["visible at", clock(one.at)], ["transaction id", one.txn_id ?? NOTHING], ["rows", number(one.rows)], ["bytes", bytes(one.bytes)],
    ["source transactions", number(one.source_transactions)], ["loads", number(one.loads)], ["attempts", number(one.attempts), caution(one.attempts > 1)], ["retries", number(one.retries), caution(one.retries)],
    ["recycled", one.recycled ? "yes" : "no", caution(one.recycled)], ["quarantined", number(one.dead_lettered_rows), caution(one.dead_lettered_rows)], ["open for", time(one.open_seconds)]),
  el("h3", {}, "Time"), ...shares(phases, time),
  el("h3", {}, "Rows"), table([["partition"], ["table"], ["rows", "n"], ["bytes", "n"]], regions, "Rows by partition and table"),
  one.more_regions ? none(`and ${one.more_regions} more`) : null,
  el("h3", {}, "Positions"), table([["partition"], ["first", "n"], ["last", "n"], ["source transactions", "n"]], spans, "Positions")].filter(Boolean);
}

// --- the page ---

const WORDS = { none: "nothing known yet", ok: "good", warn: "look when you can", bad: "look now" };

function lamp(section, light) {
  section.dataset.light = light;
  const heading = section.querySelector("h2");
  if (!heading.querySelector(".lamp")) heading.prepend(el("span", { class: "lamp", "aria-hidden": "true" }));
  let word = heading.querySelector(".word");
  if (!word) heading.append(word = el("span", { class: "word" }));
  word.textContent = WORDS[light];
  word.classList.toggle("unseen", light === "ok");  // the green dot says it
  heading.dataset.light = light;
}

function render(state) {
  shown = state;
  const verdict = document.getElementById("verdict");
  verdict.dataset.light = state.verdict.light;
  say(state.verdict.text);
  document.title = `${state.verdict.light === "bad" ? "● " : ""}starrocks-txn-sink`;
  document.getElementById("build").textContent = [state.build.version, state.build.spark && `Spark ${state.build.spark}`].filter(Boolean).join(" · ");
  document.getElementById("jobs").textContent = state.jobs.map((job) => `job ${job.name}`).join(", ");
  for (const input of document.querySelectorAll("#ranges input")) input.checked = Number(input.value) === state.range;
  for (const [name, draw] of Object.entries(ROWS)) {
    const section = document.getElementById(name);
    if (state.lights[name]) lamp(section, state.lights[name]);
    replace(section.querySelector(".body"), draw(state, state).flat().filter(Boolean));
  }
}

function say(text) {
  const sentence = document.getElementById("sentence");
  if (sentence.textContent !== text) sentence.textContent = text;
}

// New content without losing the keyboard's place or the tables' scroll positions.
function replace(body, nodes) {
  const key = body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const places = [...body.querySelectorAll(".scroll")].map((node) => [node.getAttribute("aria-label"), node.scrollTop, node.scrollLeft, node === document.activeElement]);
  body.replaceChildren(...nodes);
  for (const [name, top, left, focused] of places) {
    const node = [...body.querySelectorAll(".scroll")].find((one) => one.getAttribute("aria-label") === name);
    if (!node) continue;
    node.scrollTop = top;
    node.scrollLeft = left;
    if (focused) node.focus({ preventScroll: true });
  }
  if (key) body.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

async function refresh() {
  try {
    const answer = await fetch(`api/state${range ? `?seconds=${range}` : ""}`, { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    render(await answer.json());
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
    document.getElementById("verdict").dataset.light = "bad";
    const last = shown ? ` What you see is from ${clock(shown.now)}.` : "";
    say(`The driver does not answer: it has ended, or it cannot be reached.${last}`);
  }
}

async function keepGoing() {
  if (!document.hidden) await refresh();
  setTimeout(keepGoing, EVERY);
}

document.getElementById("ranges").addEventListener("change", (event) => {
  range = Number(event.target.value);
  refresh();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
keepGoing();
