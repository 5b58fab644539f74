// Elements and small plots, in plain SVG. Text enters the page as text only, never as markup.

import { COLUMNS, GRAPHS } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const WIDTH = 300, HEIGHT = 58;

// The end of an axis, so that its label is short: 1, 2 or 5 times a power of ten, of bytes a power of two.
function ceiling(most, show) {
  if (show(1024).endsWith("KiB")) return 2 ** Math.ceil(Math.log2(most));
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((end) => end >= most * 0.999);
}

// One or two lines over time; nulls are gaps, unless `joined`. `lines` is [{values, kind, joined}], kind "", "second" or "red".
export function sparkline(title, lines, show) {
  const all = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const last = lines.map((line) => line.values.findLast((value) => value !== null));
  const most = Math.max(...all, 0), top = most ? ceiling(most, show) : 1;
  const drawing = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: ${all.length ? `now ${last.map(show).join(" and ")}, at most ${show(most)}` : "nothing yet"}` });
  for (const y of [HEIGHT - 0.5, HEIGHT / 2, 0.5]) drawing.append(svg("line", { class: "base", x1: 0, x2: WIDTH, y1: y, y2: y }));
  for (const [place, line] of lines.entries()) draw(drawing, line, top, place === 0);
  const caption = el("figcaption", {}, el("span", {}, title), all.length ? el("span", {}, "max ", el("b", {}, show(most))) : null);
  const axis = el("div", { class: "axis", "aria-hidden": "true" }, [top, top / 2, 0].map((end) => el("span", {}, all.length || !end ? show(end) : "")));
  return el("figure", { title: GRAPHS[title] }, caption, el("div", { class: "plot" }, axis, drawing));
}

function draw(drawing, line, top, filled) {
  const step = WIDTH / Math.max(1, line.values.length - 1);
  const place = (value, at) => `${(at * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)}`;
  const calm = line.kind === "red" && !line.values.some(Boolean);  // nothing bad happened: no red on the page
  const kind = calm ? "calm" : line.kind || "";
  for (const run of runs(line.values, line.joined)) {
    const points = run.map(([value, at]) => place(value, at));
    if (points.length === 1) points.push(place(run[0][0], run[0][1] + 0.6));
    if (filled) {
      const [first, end] = [points[0].split(",")[0], points.at(-1).split(",")[0]];
      drawing.append(svg("path", { class: `area ${kind}`, d: `M${first},${HEIGHT} L${points.join(" L")} L${end},${HEIGHT} Z` }));
    }
    drawing.append(svg("path", { class: `line ${kind}`, d: `M${points.join(" L")}` }));
  }
}

function runs(values, joined) {
  const found = [];
  let open = null;
  values.forEach((value, at) => {
    if (value === null) open = joined ? open : null;
    else if (open) open.push([value, at]);
    else found.push(open = [[value, at]]);
  });
  return found;
}

// Shares of a whole, side by side, with a legend. `parts` is [[name, value]].
export function shares(parts, show) {
  const whole = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  const bar = svg("svg", { viewBox: "0 0 1000 22", preserveAspectRatio: "none", "aria-hidden": "true" });
  let at = 0;
  for (const [name, value] of parts) {
    const width = (value / whole) * 1000;
    bar.append(svg("rect", { class: name, x: at, y: 0, width: Math.max(0, width - 1), height: 22 }));
    at += width;
  }
  const legend = parts.map(([name, value]) => el("li", {},
    svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: name, width: 10, height: 10, rx: 2 })),
    `${name} ${show(value)}`));
  return [el("div", { class: "bar" }, bar), el("ul", { class: "legend" }, legend)];
}

// How full something is, from 0 to 1.
export function meter(title, share) {
  const full = Math.min(1, Math.max(0, share || 0));
  const kind = full >= 0.8 ? "bad" : full >= 0.5 ? "warn" : "";
  return svg("svg", { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${(full * 100).toFixed(0)} %` },
    svg("rect", { class: "track", width: 100, height: 8 }), svg("rect", { class: `full ${kind}`, width: full * 100, height: 8 }));
}

export function table(columns, rows, caption) {
  const head = el("tr", {}, columns.map(([name, kind]) => el("th", { scope: "col", class: kind, title: COLUMNS[name] }, name)));
  const body = rows.map(({ cells, kind }) => el("tr", { class: kind },
    cells.map((cell, place) => el("td", { class: columns[place][1] }, cell instanceof Node ? cell : String(cell)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, head), el("tbody", {}, body)));
}
