/**
 * The charts of a page: which are near the viewport, what they need from the server, what the socket brings, when they are drawn.
 *
 * A chart is mounted within one viewport of view, drawn at most once a second and only while visible; one that scrolled far away is
 * cleared. Axis, smoothing and zoom are the page's, and live in its URL.
 */

import { Chart } from "assay/chart.js";
import { live } from "assay/live.js";
import { emptyColumns, ofSamples, Series } from "assay/series.js";
import { fillTable, showLegend } from "assay/figure.js";
import { ask as read } from "assay/session.js";

/**
 * @typedef {{id: string, cursor: number, attempts: {number: number, first_step: number}[], live: boolean}} RunInfo
 * @typedef {{run: string, name: string, label: string, colour: number}} Wanted
 * @typedef {{series: Series, cursor: number}} Held
 * @typedef {{figure: HTMLElement, chart: Chart, wanted: Wanted[], near: boolean, visible: boolean, dirty: boolean, hidden: Set<string>}} Card
 * @typedef {{id: number, kind: string, step: number, at: string, data: Record<string, any>}} Event
 */

const BUCKETS = 600;
const DRAW_EVERY = 1000;
const MOST_DRAWN = 12;
/** Milliseconds of drawing after which the page gets its turn. */
const SLICE = 30;
/** The part of a chart that must be in sight for it to be live. */
const IN_SIGHT = 0.25;
const ASK_AGAIN = 3000;
const SAMPLE_EVERY = 15_000;
const NAMES_AT_ONCE = 12;
/** Events of the run that are marked below its charts, and the kind of mark. */
const MARKS = { checkpoint: "checkpoint", evaluation: "evaluation", stage_started: "stage", incident: "incident" };

/** @type {{runs: RunInfo[], points: string, events: Event[], pages: Record<string, string>}} */
const page = JSON.parse(document.getElementById("dashboard")?.textContent ?? '{"runs": [], "points": "", "events": [], "pages": {}}');
/** @type {Map<Element, Card>} */
const cards = new Map();
/** @type {Map<string, Held>} keyed by run and metric */
const held = new Map();
/** @type {Map<string, Set<string>>} metrics to ask for, by run */
const asked = new Map();
/** @type {Set<string>} series on their way for the first time: a chart of several waits for all, since some of a stack would be a false sum */
const awaited = new Set();
/** @type {Map<string, {update: (changes: object) => void}>} */
const subscriptions = new Map();
/** @type {Map<string, string>} the metrics each run's topic now names, joined */
const subscribed = new Map();
/** @type {Map<number, Event>} marks by event, so that one that comes twice is drawn once */
const lane = new Map();
let asking = 0;

const state = readState();

/** @param {string} run @param {string} name */
const key = (run, name) => `${run} ${name}`;

/** The zoom is in steps on every axis. @returns {{axis: "step" | "wall" | "tokens", smoothing: number, range: [number, number] | null}} */
function readState() {
  const query = new URL(location.href).searchParams;
  const [from, to] = [query.get("from"), query.get("to")].map((text) => (text === null ? NaN : Number(text)));
  const axis = query.get("x");
  return {
    axis: axis === "wall" || axis === "tokens" ? axis : "step",
    smoothing: Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0)),
    range: Number.isFinite(from) && Number.isFinite(to) ? [from, to] : null,
  };
}

function writeState() {
  const url = new URL(location.href);
  /** @param {string} name @param {string | null} value */
  const set = (name, value) => (value === null ? url.searchParams.delete(name) : url.searchParams.set(name, value));
  set("x", state.axis === "step" ? null : state.axis);
  set("smooth", state.smoothing ? String(state.smoothing) : null);
  set("from", state.range ? String(Number(state.range[0].toPrecision(8))) : null);
  set("to", state.range ? String(Number(state.range[1].toPrecision(8))) : null);
  history.replaceState(history.state, "", url);
  showControls();
}

// ---------------------------------------------------------------- asking the server
/** @param {string} run @param {string} name */
function ask(run, name) {
  const names = asked.get(run) ?? new Set();
  asked.set(run, names.add(name));
  if (!asking) asking = window.setTimeout(askNow, 20);
}

function askNow() {
  asking = 0;
  for (const [run, names] of asked) {
    const list = [...names];
    for (let at = 0; at < list.length; at += NAMES_AT_ONCE) fetchPoints(run, list.slice(at, at + NAMES_AT_ONCE));
  }
  asked.clear();
}

/** @param {string} run @param {string[]} names */
async function fetchPoints(run, names) {
  follow(run);
  const first = names.map((name) => key(run, name)).filter((one) => !held.has(one));
  for (const one of first) awaited.add(one);
  await takePoints(run, names).finally(() => {
    for (const one of first) awaited.delete(one);
    drawDue();
  });
}

/** @param {string} run @param {string[]} names */
async function takePoints(run, names) {
  const query = new URLSearchParams({ buckets: String(BUCKETS), axis: state.axis });
  for (const name of names) query.append("names", name);
  if (state.range) {
    query.set("from", String(state.range[0]));
    query.set("to", String(state.range[1]));
  }
  const response = await read(`${page.points.replace("RUN", run)}?${query}`, { headers: { Accept: "application/json" } }).catch(() => null);
  if (!response) return;
  if (!response.ok) return showFailure(run, names, response);
  /** @type {import("assay/series.js").Answer} */
  const answer = await response.json();
  const attempt = Math.max(1, ...answer.attempts.map((other) => other.number));
  for (const name of names) {
    const series = new Series(answer.series[name] ?? emptyColumns(), answer.width, attempt);
    held.set(key(run, name), { series, cursor: answer.cursor });
    markDirty(run, name);
  }
}

/** Charts over wall seconds (memory, processor) read the newest samples; the socket carries none. */
async function fetchSamples() {
  const near = [...cards.values()].filter((card) => card.near && "wall" in card.figure.dataset);
  const [run] = page.runs;
  const names = [...new Set(near.flatMap((card) => card.wanted.map((wanted) => wanted.name)))];
  for (let at = 0; at < names.length; at += NAMES_AT_ONCE) {
    const query = new URLSearchParams(names.slice(at, at + NAMES_AT_ONCE).map((name) => ["names", name]));
    const response = await read(`${page.points.replace("RUN", run.id).replace(/points$/, "samples")}?${query}`).catch(() => null);
    if (!response?.ok) return;
    for (const [name, samples] of Object.entries((await response.json()).series)) {
      held.set(key(run.id, name), { series: ofSamples(samples), cursor: Infinity });
      markDirty(run.id, name);
    }
  }
  drawDue();
}

/** @param {string} run @param {string[]} names @param {Response} response */
function showFailure(run, names, response) {
  for (const card of cards.values()) {
    if (!card.wanted.some((wanted) => wanted.run === run && names.includes(wanted.name))) continue;
    const note = card.figure.querySelector("[data-note]");
    if (note) note.textContent = response.status === 401 ? "You are signed out" : `The server answered ${response.status} (request ${response.headers.get("X-Request-ID") ?? "unknown"})`;
  }
}

// ---------------------------------------------------------------- live
/** Subscribe to what the charts near the viewport show, and to no more: the socket carries nothing for the others. @param {string} run */
function follow(run) {
  const names = [...new Set([...cards.values()].filter((card) => card.near).flatMap((card) => card.wanted.filter((wanted) => wanted.run === run).map((wanted) => wanted.name)))];
  const joined = names.sort().join("\n");
  if (subscribed.get(run) === joined) return;
  subscribed.set(run, joined);
  subscriptions.get(run)?.update({ series: names });
}

/** @param {import("assay/live.js").Frame} frame */
function onFrame(frame) {
  for (const [name, points] of Object.entries(frame.points ?? {})) {
    const entry = held.get(key(frame.run, name));
    if (!entry || frame.cursor <= entry.cursor) continue;
    if (!merges(entry, points)) askLater(frame.run, name);
    entry.cursor = frame.cursor;
    markDirty(frame.run, name);
  }
  if (page.runs.length === 1) onRunChanges(frame);
}

/** Whether every point went into its bucket exactly. @param {Held} entry @param {import("assay/live.js").LivePoint[]} points */
function merges(entry, points) {
  if (state.axis === "tokens" || entry.series.length > 2 * BUCKETS) return false;
  const last = state.range ? state.range[1] : Infinity;
  return points.every(([attempt, step, value, wall]) => step > last || entry.series.merge(attempt, step, value, wall));
}

/** New attempts and new marks. @param {import("assay/live.js").Frame} frame */
function onRunChanges(frame) {
  const attempts = frame.run_state?.attempts;
  if (attempts && attempts.length !== page.runs[0].attempts.length) {
    page.runs[0].attempts = attempts;
    askAll();
  }
  const before = lane.size;
  for (const event of frame.events ?? []) addMark(event);
  if (lane.size !== before) redrawAll();
}

/** @param {Event} event */
function addMark(event) {
  const kind = MARKS[/** @type {keyof typeof MARKS} */ (event.kind)];
  if (!kind || event.step === null || (event.data.state && event.data.state !== "complete")) return;
  lane.set(event.id, event);
}

/** @type {Set<string>} */
const later = new Set();
/** @param {string} run @param {string} name */
function askLater(run, name) {
  const id = key(run, name);
  if (later.has(id)) return;
  later.add(id);
  setTimeout(() => {
    later.delete(id);
    ask(run, name);
  }, ASK_AGAIN);
}

// ---------------------------------------------------------------- cards
/** @param {HTMLElement} figure @returns {Card} */
function makeCard(figure) {
  const wanted = /** @type {Wanted[]} */ (JSON.parse(figure.dataset.lines ?? "[]")).map((line, index) => ({ ...line, run: line.run ?? page.runs[0].id, colour: line.colour ?? index }));
  const plot = /** @type {HTMLElement} */ (figure.querySelector("[data-plot]"));
  return { figure, wanted, chart: new Chart(plot, zoom), near: false, visible: false, dirty: true, hidden: new Set() };
}

const nearby = new IntersectionObserver((entries) => entries.forEach((entry) => onNear(entry)), { rootMargin: "100% 0px" });
const inView = new IntersectionObserver((entries) => entries.forEach((entry) => onVisible(entry)), { threshold: [0, IN_SIGHT] });

/** @param {IntersectionObserverEntry} entry */
function onNear(entry) {
  const card = cards.get(entry.target);
  if (!card) return;
  card.near = entry.isIntersecting;
  card.dirty = true;
  if (card.near) need(card);
  else forget(card);
}

/** A chart that scrolled away keeps neither drawing nor data. @param {Card} card */
function forget(card) {
  card.chart.clear();
  card.figure.dataset.state = "waiting";
  const near = [...cards.values()].filter((other) => other.near).flatMap((other) => other.wanted);
  for (const { run, name } of card.wanted) {
    if (!near.some((wanted) => wanted.run === run && wanted.name === name)) held.delete(key(run, name));
  }
}

/** @param {IntersectionObserverEntry} entry */
function onVisible(entry) {
  const card = cards.get(entry.target);
  if (!card) return;
  card.visible = entry.intersectionRatio >= IN_SIGHT;
  if (card.visible && card.dirty) drawDue();
}

/** Ask for what the card lacks. @param {Card} card */
function need(card) {
  if ("wall" in card.figure.dataset) return void fetchSamples();
  for (const { run, name } of card.wanted) if (!held.has(key(run, name))) ask(run, name);
  drawDue();
}

/** @param {string} run @param {string} name */
function markDirty(run, name) {
  for (const card of cards.values()) if (card.wanted.some((wanted) => wanted.run === run && wanted.name === name)) card.dirty = true;
}

/** Take up figures that the page gained and forget those it lost. */
function scan() {
  for (const [figure] of cards) {
    if (figure.isConnected) continue;
    nearby.unobserve(figure);
    inView.unobserve(figure);
    cards.delete(figure);
  }
  for (const figure of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("figure[data-lines]"))) {
    if (cards.has(figure)) continue;
    cards.set(figure, makeCard(figure));
    nearby.observe(figure);
    inView.observe(figure);
  }
}

// ---------------------------------------------------------------- drawing
let slicing = 0;

function drawOn() {
  slicing = 0;
  drawDue();
}

/** A chart near the view is drawn once, so that it is there when it comes into sight; only one in sight is drawn again. The page may paint and listen in between. */
function drawDue() {
  if (document.hidden) return;
  const due = [...cards.values()].filter((card) => card.near && card.dirty && (card.visible || card.figure.dataset.state === "waiting") && isToldOf(card));
  due.sort((a, b) => Number(b.visible) - Number(a.visible));
  const until = performance.now() + SLICE;
  for (const card of due.slice(0, MOST_DRAWN)) {
    draw(card);
    if (performance.now() > until) return void (slicing ||= window.setTimeout(drawOn));
  }
}

/** @param {Card} card */
function isToldOf(card) {
  const keys = card.wanted.map(({ run, name }) => key(run, name));
  return keys.some((one) => held.has(one)) && !keys.some((one) => awaited.has(one));
}

/** @param {Card} card */
function draw(card) {
  card.dirty = false;
  const lines = card.wanted.map((wanted) => ({ ...wanted, series: held.get(key(wanted.run, wanted.name))?.series }));
  const shown = lines.filter((line) => !card.hidden.has(key(line.run, line.name)));
  const empty = lines.every((line) => !line.series?.length);
  showLegend(card.figure, lines, card.hidden);
  if (empty) card.figure.dataset.state = "empty";
  if (empty) return;
  const drawn = card.chart.draw({
    lines: shown, stacked: "stacked" in card.figure.dataset, smoothing: state.smoothing, ...("wall" in card.figure.dataset ? { axis: "wall", attempts: [], marks: [] } : { axis: state.axis, attempts: boundaries(), marks: marks() }),
  });
  drawn.then(() => (card.figure.dataset.state = "drawn"));
  fillTable(card.figure, lines, state.axis);
}

function boundaries() {
  if (page.runs.length !== 1 || state.axis !== "step") return [];
  return page.runs[0].attempts.filter(({ number, first_step }) => number > 1 && within(first_step)).map((attempt) => ({ number: attempt.number, x: attempt.first_step }));
}

function marks() {
  if (state.axis === "tokens") return [];
  return [...lane.values()].filter((event) => within(event.step)).map((event) => ({
    kind: MARKS[/** @type {keyof typeof MARKS} */ (event.kind)], x: state.axis === "wall" ? Date.parse(event.at) / 1000 : event.step,
    text: textOf(event), url: page.pages[MARKS[/** @type {keyof typeof MARKS} */ (event.kind)]],
  }));
}

/** @param {number} step */
const within = (step) => !state.range || (step >= state.range[0] && step <= state.range[1]);

/** @param {Event} event */
function textOf(event) {
  const { data, step } = event;
  if (event.kind === "stage_started") return `Stage ${data.stage ?? ""} ${data.type ?? ""} begins at step ${step}`;
  if (event.kind === "evaluation") return `Evaluation ${data.label ?? ""} at step ${step}`;
  return data.message ?? `Checkpoint at step ${step}`;
}

// ---------------------------------------------------------------- controls
/** Look closer: the server cuts new buckets. @param {[number, number] | null} range in steps */
function zoom(range) {
  state.range = range && [Math.max(0, Math.floor(range[0])), Math.max(1, Math.ceil(range[1]))];
  askAnew();
}

/** Another axis or zoom: nothing that was drawn holds any more. */
function askAnew() {
  writeState();
  held.clear();
  for (const card of cards.values()) card.dirty = true;
  askAll();
}

/** Ask for all that is near the viewport; what is drawn stays until the answer is there. */
function askAll() {
  for (const card of cards.values()) {
    if (card.near && !("wall" in card.figure.dataset)) for (const { run, name } of card.wanted) ask(run, name);
  }
  fetchSamples();
}

function showControls() {
  for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-axis]"))) button.setAttribute("aria-pressed", String(button.dataset.axis === state.axis));
  const reset = /** @type {HTMLElement | null} */ (document.querySelector("[data-zoom-reset]"));
  if (reset) reset.hidden = !state.range;
  const smoothing = /** @type {HTMLInputElement | null} */ (document.querySelector("[data-smoothing]"));
  if (smoothing) smoothing.value = String(state.smoothing);
}

/** @param {MouseEvent} event */
function onClick(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const axis = /** @type {HTMLElement | null} */ (target.closest("[data-axis]"));
  if (axis) {
    state.axis = /** @type {typeof state.axis} */ (axis.dataset.axis);
    state.range = null;
    askAnew();
  }
  if (target.closest("[data-zoom-reset]")) zoom(null);
  const card = cards.get(/** @type {Element} */ (target.closest("figure[data-lines]")));
  if (card) onCardClick(card, target);
}

/** @param {Card} card @param {HTMLElement} target */
function onCardClick(card, target) {
  const line = /** @type {HTMLElement | null} */ (target.closest("[data-line]"));
  if (line?.dataset.line) {
    const id = line.dataset.line;
    if (!card.hidden.delete(id)) card.hidden.add(id);
    draw(card);
  }
  if (target.closest("[data-expand]")) {
    card.figure.classList.toggle("wide");
    card.chart.resize();
  }
  if (target.closest("[data-table]")) {
    const table = /** @type {HTMLElement} */ (card.figure.querySelector("[data-twin]"));
    table.hidden = !table.hidden;
    draw(card);
  }
}

function redrawAll() {
  for (const card of cards.values()) card.dirty = true;
  drawDue();
}

/** @param {(frame: import("assay/live.js").Frame) => void} onRunFrame @param {object} wants what the page itself wants of the run's topic */
export function startDashboard(onRunFrame = () => {}, wants = {}) {
  for (const run of page.runs) {
    if (!run.live) continue;
    const handlers = { frame: (/** @type {import("assay/live.js").Frame} */ frame) => (onFrame(frame), onRunFrame(frame)), reset: askAll, poll: askAll };
    subscriptions.set(run.id, live.subscribe({ topic: "run", run: run.id, cursor: run.cursor, series: [], ...wants }, handlers));
  }
  document.addEventListener("click", onClick);
  document.addEventListener("input", (event) => {
    const slider = /** @type {HTMLInputElement} */ (event.target);
    if (!slider.matches("[data-smoothing]")) return;
    state.smoothing = Number(slider.value);
    writeState();
    redrawAll();
  });
  document.addEventListener("assay:theme", redrawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  document.addEventListener("htmx:afterSettle", scan);
  document.addEventListener("visibilitychange", drawDue);
  setInterval(drawDue, DRAW_EVERY);
  if (page.runs.some((run) => run.live)) setInterval(fetchSamples, SAMPLE_EVERY);
  page.events.forEach(addMark);
  showControls();
  scan();
}
