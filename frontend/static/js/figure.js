/** What surrounds a drawing: its legend with the newest values, and the table that says the same in numbers. */

/**
 * @typedef {{run: string, name: string, label: string, colour: number, series: import("assay/series.js").Series | undefined}} Line
 */

const MISSING = "–";
const MOST_ROWS = 200;
const LARGE = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

/** @param {number | null | undefined} value @returns {string} */
export function written(value) {
  if (value === null || value === undefined) return MISSING;
  const size = Math.abs(value);
  if (size >= 1e5) return LARGE.format(value).replace("-", "−");
  if (size > 0 && size < 1e-3) return value.toExponential(2).replace("-", "−");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 4 }).replaceAll(",", "\u2009").replace("-", "−");
}

/** @param {HTMLElement} figure @param {Line[]} lines @param {Set<string>} hidden */
export function showLegend(figure, lines, hidden) {
  const legend = figure.querySelector("[data-legend]");
  if (!legend) return;
  if (legend.childElementCount !== lines.length) legend.replaceChildren(...lines.map(legendItem));
  legend.classList.toggle("single", lines.length === 1);
  lines.forEach((line, index) => {
    const item = /** @type {HTMLElement} */ (legend.children[index]);
    item.setAttribute("aria-pressed", String(!hidden.has(`${line.run} ${line.name}`)));
    const value = item.querySelector("b");
    if (value) value.textContent = written(line.series?.latest);
  });
}

/** @param {Line} line */
function legendItem(line) {
  const item = document.createElement("button");
  item.type = "button";
  item.className = `legend-item c${line.colour % 10}`;
  item.dataset.line = `${line.run} ${line.name}`;
  item.title = line.label === line.name ? line.name : `${line.label}: ${line.name}`;
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  const label = document.createElement("span");
  label.className = "clip";
  label.textContent = line.label;
  item.append(swatch, label, document.createElement("b"));
  return item;
}

/** @param {HTMLElement} figure @param {Line[]} lines @param {"step" | "wall" | "tokens"} axis */
export function fillTable(figure, lines, axis) {
  const twin = /** @type {HTMLElement | null} */ (figure.querySelector("[data-twin]"));
  if (!twin || twin.hidden) return;
  const longest = lines.reduce((most, line) => ((line.series?.length ?? 0) > (most?.series?.length ?? 0) ? line : most), lines[0]);
  const starts = (longest?.series?.columns.start ?? []).slice(-MOST_ROWS).reverse();
  const table = document.createElement("table");
  const caption = table.createCaption();
  caption.className = "visually-hidden";
  caption.textContent = `Newest ${starts.length} buckets, mean of each`;
  const head = table.createTHead().insertRow();
  for (const text of [axis === "step" ? "Step" : "From step", ...lines.map((line) => line.label)]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.className = "num";
    cell.textContent = text;
    head.append(cell);
  }
  const body = table.createTBody();
  const places = lines.map((line) => new Map(line.series?.columns.start.map((start, at) => [start, at])));
  for (const start of starts) tableRow(body, start, lines, places);
  twin.replaceChildren(table);
}

/** @param {HTMLTableSectionElement} body @param {number} start @param {Line[]} lines @param {Map<number, number>[]} places */
function tableRow(body, start, lines, places) {
  const row = body.insertRow();
  const first = document.createElement("th");
  first.scope = "row";
  first.className = "num";
  first.textContent = written(start);
  row.append(first);
  lines.forEach((line, index) => {
    const at = places[index].get(start);
    const cell = row.insertCell();
    cell.className = "num";
    const columns = line.series?.columns;
    cell.textContent = at === undefined || !columns ? MISSING : wordOf(columns, at);
  });
}

/** @param {import("assay/series.js").Columns} columns @param {number} at */
function wordOf(columns, at) {
  const odd = [columns.nan[at] && "NaN", columns.positive_infinite[at] && "∞", columns.negative_infinite[at] && "−∞"].filter(Boolean);
  return [...(columns.count[at] ? [written(columns.mean[at])] : []), ...odd].join(" ");
}
