/** The log tab: lines arrive at the end while they pass the filter, and the view follows until the reader scrolls up. */

import { live } from "assay/live.js";
import { onRunFrame } from "assay/run.js";

const MOST_LINES = 2000;

/** @type {{id: string, cursor: number, live: boolean}} */
const run = JSON.parse(document.getElementById("run-info")?.textContent ?? "{}");
const log = /** @type {HTMLElement} */ (document.getElementById("lines"));
const filters = /** @type {HTMLFormElement} */ (document.getElementById("log-filters"));
const button = /** @type {HTMLElement} */ (document.querySelector("[data-follow]"));
let following = true;

/** Lines out of sight have estimated heights, which settle once they are drawn: the end is reached in a few frames. @param {number} frames */
function toEnd(frames) {
  log.scrollTop = log.scrollHeight;
  if (frames) requestAnimationFrame(() => toEnd(frames - 1));
}

/** @param {boolean} on */
function follow(on) {
  following = on;
  button.setAttribute("aria-pressed", String(on));
  if (on) toEnd(3);
}

/** @param {any} line @returns {boolean} whether the filters of the page keep it */
function passes(line) {
  const wanted = new FormData(filters);
  const levels = wanted.getAll("level"), component = wanted.get("component"), attempt = wanted.get("attempt");
  const text = String(wanted.get("q") ?? "").toLowerCase();
  return (!levels.length || levels.includes(line.level)) && (!component || component === line.component)
    && (!attempt || Number(attempt) === line.attempt) && (!text || line.message.toLowerCase().includes(text));
}

/** As the server shows it: without terminal sequences, other characters that are not to be seen as their code points. @param {string} text */
function visible(text) {
  const code = (/** @type {string} */ found) => `⟨${(found.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return text.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, "").replace(/(?![\n\t])[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, code);
}

/** @param {any} line */
function element(line) {
  const template = /** @type {HTMLTemplateElement} */ (document.getElementById("log-line"));
  const row = /** @type {HTMLElement} */ (template.content.firstElementChild?.cloneNode(true));
  row.classList.add(`level-${line.level}`);
  row.dataset.id = line.id;
  const [time, component, level, message] = row.children;
  time.textContent = new Date(line.t * 1000).toISOString().slice(11, 23);
  component.textContent = visible(line.component);
  level.textContent = line.level;
  message.textContent = visible(line.message);
  return row;
}

/** @param {any[]} lines */
function append(lines) {
  const known = Number(/** @type {HTMLElement | null} */ ([...log.querySelectorAll(".line")].at(-1))?.dataset.id ?? 0);
  const fresh = lines.filter((line) => line.id > known && passes(line));
  if (!fresh.length) return;
  log.querySelector(".empty")?.remove();
  log.append(...fresh.map(element));
  const all = log.querySelectorAll(".line");
  for (let at = 0; at < all.length - MOST_LINES; at += 1) all[at].remove();
  if (following) log.scrollTop = log.scrollHeight;
}

const reread = () => htmx.trigger(filters, "submit");

log.addEventListener("scroll", () => {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  if (atEnd !== following) follow(atEnd);
});
button.addEventListener("click", () => follow(!following));
document.addEventListener("htmx:afterSwap", (event) => event.target === log && follow(true));
follow(true);
if (run.live) {
  live.subscribe({ topic: "run", run: run.id, cursor: run.cursor, series: [], logs: true }, {
    frame: (frame) => {
      if (frame.logs_skipped) reread();
      else append(frame.logs ?? []);
      onRunFrame(frame);
    },
    reset: reread,
    poll: reread,
  });
}
