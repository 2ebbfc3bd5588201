/** One chart. The only module that knows Plotly: it takes named series and draws them; it owns no data source. */

import { smoothed } from "assay/series.js";
import { PLAIN, counts, heights } from "assay/ticks.js";

/**
 * @typedef {{label: string, colour: number, series: import("assay/series.js").Series | undefined, dash?: string}} Line
 * @typedef {{kind: string, x: number, text: string, url?: string}} Mark
 * @typedef {{lines: Line[], stacked: boolean, smoothing: number, axis: "step" | "wall" | "tokens", attempts: {number: number, x: number}[], marks: Mark[]}} View
 */

const LANE = { checkpoint: "triangle-up", evaluation: "diamond", incident: "x", stage: "line-ns", attempt: "square", note: "circle" };
const EDGE = { nan: ["x", "NaN", 0.96], positive_infinite: ["triangle-up", "+∞", 0.99], negative_infinite: ["triangle-down", "−∞", 0.02] };
const FADED = "33";
const ROOMY_DIGITS = 5;

/** @type {Promise<void> | null} */
let loading = null;

/** @returns {Promise<void>} when Plotly is there; it is fetched once, by the first chart that comes into view */
function loadPlotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = /** @type {HTMLMetaElement} */ (document.querySelector('meta[name="plotly"]')).content;
    script.onload = () => resolve();
    script.onerror = () => reject(new Error("Plotly could not be loaded"));
    document.head.append(script);
  });
  return loading;
}

/** @type {Record<string, string> | null} */
let palette = null;
document.addEventListener("assay:theme", () => (palette = null));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (palette = null));

/** Resolved colours of the present theme. @returns {Record<string, string>} */
function colours() {
  if (palette) return palette;
  const probe = document.createElement("span");
  document.body.append(probe);
  /** @param {string} name */
  const resolve = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  palette = Object.fromEntries(["--text", "--muted", "--line", "--line-strong", "--raised", "--bad", "--accent"].map((name) => [name, resolve(name)]));
  const style = getComputedStyle(document.documentElement);
  for (let index = 0; index < 10; index += 1) palette[`--c${index}`] = style.getPropertyValue(`--c${index}`).trim();
  probe.remove();
  return palette;
}

/** @param {View["axis"]} axis @returns {(x: number) => number | Date} from our numbers to what the axis shows */
const scaleOf = (axis) => (axis === "wall" ? (x) => new Date(x * 1000) : (x) => x);

/** @param {Line} line @param {View["axis"]} axis @returns {(number | Date | null)[]} */
function places(line, axis) {
  const columns = /** @type {import("assay/series.js").Series} */ (line.series).columns;
  if (axis === "wall") return (columns.wall ?? []).map((wall) => (wall === null ? null : new Date(wall * 1000)));
  return axis === "tokens" && columns.tokens ? columns.tokens : columns.start;
}

/** The band from min to max, drawn only where a bucket holds more than one value. @param {Line} line @param {View} view @param {string} colour */
function band(line, view, colour) {
  const columns = /** @type {import("assay/series.js").Series} */ (line.series).columns;
  if (view.stacked || !columns.count.some((count) => count > 1)) return [];
  const x = places(line, view.axis);
  const edge = { x, type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, connectgaps: false };
  return [{ ...edge, y: columns.min }, { ...edge, y: columns.max, fill: "tonexty", fillcolor: colour + "26" }];
}

/** @param {Line} line @param {View} view */
function traces(line, view) {
  if (!line.series?.length) return [];
  const colour = colours()[`--c${line.colour % 10}`];
  const columns = line.series.columns;
  const x = places(line, view.axis);
  const customdata = columns.count.map((n, at) => [n, columns.min[at], columns.max[at], columns.last[at]]);
  const alone = columns.count.filter(Boolean).length < 2;
  const main = {
    x, customdata, name: line.label, type: "scatter", mode: alone ? "markers" : "lines",
    y: view.stacked ? columns.mean : smoothed(columns.mean, view.smoothing),
    line: { color: colour, width: 1.6, dash: line.dash ?? "solid" },
    marker: { color: colour, size: 6 },
    // No tags in it: Plotly turns them into style attributes, which the content policy blocks.
    hovertemplate: line.series.width > 1 ? "%{y:.4g} (%{customdata[1]:.3g} to %{customdata[2]:.3g}, n = %{customdata[0]})" : "%{y:.4g}",
    ...(view.stacked ? { stackgroup: "all", fillcolor: colour + "88", line: { width: 0.6, color: colour } } : {}),
  };
  const raw = view.smoothing && !view.stacked ? [{ x, y: columns.mean, type: "scatter", mode: "lines", line: { color: colour + FADED, width: 1 }, hoverinfo: "skip" }] : [];
  return [...band(line, view, colour), ...raw, main, ...nonFinite(line, view)];
}

/** Values that have no height are marked on the edge of the chart. @param {Line} line @param {View} view */
function nonFinite(line, view) {
  const columns = /** @type {import("assay/series.js").Series} */ (line.series).columns;
  const x = places(line, view.axis);
  return Object.entries(EDGE).flatMap(([kind, [symbol, word, height]]) => {
    const counts = columns[/** @type {keyof typeof EDGE} */ (kind)];
    const at = counts.flatMap((count, index) => (count ? [index] : []));
    if (!at.length) return [];
    return [{
      x: at.map((index) => x[index]), y: at.map(() => height), text: at.map((index) => `${line.label}: ${counts[index]} × ${word}`),
      yaxis: "y3", type: "scatter", mode: "markers", cliponaxis: false, marker: { symbol, size: 8, color: colours()["--bad"] }, hovertemplate: "%{text}<extra></extra>",
    }];
  });
}

/** @param {View} view */
function lane(view) {
  if (!view.marks.length) return [];
  const scale = scaleOf(view.axis);
  return [{
    x: view.marks.map((mark) => scale(mark.x)), y: view.marks.map(() => 0), text: view.marks.map((mark) => mark.text),
    customdata: view.marks.map((mark) => mark.url ?? ""), yaxis: "y2", type: "scatter", mode: "markers", cliponaxis: false,
    marker: {
      symbol: view.marks.map((mark) => LANE[/** @type {keyof typeof LANE} */ (mark.kind)] ?? "circle"), size: 7,
      color: view.marks.map((mark) => colours()[mark.kind === "incident" ? "--bad" : "--muted"]), line: { width: 1, color: colours()["--muted"] },
    },
    hovertemplate: "%{text}<extra></extra>",
  }];
}

/** @param {(number | Date | null | undefined)[]} values @returns {[number, number]} the least and the greatest; infinite when there is none */
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    low = Math.min(low, Number(value));
    high = Math.max(high, Number(value));
  }
  return [low, high];
}

/** The axis that holds every point and mark, with a little room; Plotly's own leaves too much for markers. @param {View} view */
function across(view) {
  const [low, high] = extent([...view.lines.flatMap((line) => (line.series ? places(line, view.axis) : [])), ...view.marks.map((mark) => scaleOf(view.axis)(mark.x))]);
  if (view.axis !== "wall") return counts(low, high);
  const room = (high - low || 1) * 0.015;
  return { range: [low - room, high + room], tickformat: "" };
}

/** A stack's own height is the sum of its parts, which Plotly knows. @param {View} view */
const upwards = (view) => (view.stacked ? PLAIN : heights(...extent(view.lines.flatMap((line) => [...(line.series?.columns.min ?? []), ...(line.series?.columns.max ?? [])]))));

/** @param {View} view */
function layout(view) {
  const c = colours();
  const scale = scaleOf(view.axis);
  const { digits, ...up } = upwards(view);
  const axis = { gridcolor: c["--line"], linecolor: c["--line"], zeroline: false, tickfont: { size: 10, color: c["--muted"] }, fixedrange: true, automargin: false };
  const floor = view.marks.length ? 0.1 : 0;
  return {
    margin: { l: digits > ROOMY_DIGITS ? 60 : 44, r: 10, t: 6, b: view.axis === "wall" ? 36 : 24 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: "Inter, system-ui, sans-serif", size: 11, color: c["--text"] },
    hovermode: "x unified", dragmode: "zoom", uirevision: "keep",
    hoverlabel: { bgcolor: c["--raised"], bordercolor: c["--line-strong"], font: { size: 11, color: c["--text"] } },
    xaxis: { ...axis, fixedrange: false, showgrid: false, anchor: "y2", spikecolor: c["--line-strong"], spikethickness: 1, spikedash: "solid", hoverformat: view.axis === "wall" ? "%H:%M:%S" : ",d", type: view.axis === "wall" ? "date" : "linear",
      ...across(view), autorange: false },
    yaxis: { ...axis, domain: [floor, 1], nticks: 5, ...up },
    yaxis2: { domain: [0, 0.08], range: [-1, 1], visible: false, fixedrange: true },
    yaxis3: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true, domain: [floor, 1] },
    shapes: view.attempts.map(({ x }) => ({ type: "line", xref: "x", yref: "paper", x0: scale(x), x1: scale(x), y0: 0, y1: 1, line: { color: c["--line-strong"], width: 1, dash: "dot" } })),
    annotations: view.attempts.map(({ number, x }) => ({ x: scale(x), y: 1, yref: "paper", text: `attempt ${number}`, showarrow: false, bgcolor: c["--raised"], opacity: 0.85, xanchor: "left", yanchor: "top", xshift: 3, font: { size: 9, color: c["--muted"] } })),
  };
}

/**
 * The step at place `x` of the axis, by the longest series of the drawing.
 * @param {View} view @param {number} x
 */
function stepAt(view, x) {
  if (view.axis === "step") return x;
  const longest = view.lines.reduce((most, line) => ((line.series?.length ?? 0) > (most?.length ?? 0) ? line.series : most), /** @type {Line["series"]} */ (undefined));
  const places = (view.axis === "wall" ? longest?.columns.wall : longest?.columns.tokens) ?? [];
  const after = places.findIndex((place) => place !== null && place >= x);
  return longest?.columns.start.at(after) ?? 0;
}

export class Chart {
  #drawn = false;
  /** The size that the drawing was made for: a legend that grows takes room from it. */ #size = "";
  /** @type {View | null} */ #view = null;

  /** @param {HTMLElement} element @param {(steps: [number, number] | null) => void} onZoom */
  constructor(element, onZoom) {
    this.element = element;
    this.onZoom = onZoom;
  }

  /** Draw, or draw again. @param {View} view */
  async draw(view) {
    await loadPlotly();
    if (!this.element.isConnected) return;
    this.#view = view;
    const data = [...view.lines.flatMap((line) => traces(line, view)), ...lane(view)];
    await Plotly.react(this.element, data, layout(view), { displayModeBar: false, doubleClick: false, showTips: false });
    if (!this.#drawn) this.#listen();
    else this.resize();
    this.#drawn = true;
  }

  #listen() {
    const plot = /** @type {any} */ (this.element);
    this.#size = this.#room();
    this.#watch.observe(this.element);
    plot.on("plotly_relayout", (/** @type {Record<string, any>} */ change) => {
      const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
      const view = this.#view;
      if (low === undefined || high === undefined || !view) return;
      const number = (/** @type {any} */ x) => (view.axis === "wall" ? Date.parse(`${x}Z`.replace(" ", "T")) / 1000 : Number(x));
      this.onZoom([stepAt(view, number(low)), stepAt(view, number(high))]);
    });
    plot.on("plotly_doubleclick", () => this.onZoom(null));
    plot.on("plotly_click", (/** @type {any} */ event) => {
      const url = event.points.find((/** @type {any} */ point) => point.data.yaxis === "y2")?.customdata;
      if (url) location.href = url;
    });
  }

  #watch = new ResizeObserver(() => this.resize());

  #room() {
    return `${this.element.clientWidth} ${this.element.clientHeight}`;
  }

  /** Fit the drawing to its element, if that has another size by now and is shown. */
  resize() {
    if (!this.#drawn || !this.element.clientHeight || this.#room() === this.#size) return;
    this.#size = this.#room();
    Plotly.Plots.resize(this.element);
  }

  /** Forget the drawing, keep the place. */
  clear() {
    this.#watch.disconnect();
    if (this.#drawn) Plotly.purge(this.element);
    this.#drawn = false;
  }
}
