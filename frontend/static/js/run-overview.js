/** The overview of a run: its charts live, its header, and the way from a health tile to its chart. */

import { startDashboard } from "assay/dashboard.js";
import { onRunFrame, refreshHeader } from "assay/run.js";

const search = /** @type {HTMLInputElement} */ (document.getElementById("metric-search"));

/** New names: the groups are read again unless the reader is in the middle of them. @param {string[]} names */
function onNames(names) {
  if (!names.length || search.value || document.querySelector(".groups details[open]")) return;
  htmx.trigger(/** @type {HTMLFormElement} */ (search.form), "submit");
}

/** @param {string} metric */
function showMetric(metric) {
  const figures = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("figure[data-lines]"));
  const figure = [...figures].find((candidate) => candidate.dataset.lines?.includes(JSON.stringify(metric)));
  if (figure) {
    figure.scrollIntoView({ block: "center" });
    figure.classList.add("found");
    setTimeout(() => figure.classList.remove("found"), 1500);
    return;
  }
  search.value = metric;
  htmx.trigger(/** @type {HTMLFormElement} */ (search.form), "submit");
  search.scrollIntoView({ block: "start" });
}

document.addEventListener("click", (event) => {
  const tile = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest("[data-metric]"));
  if (!tile?.dataset.metric) return;
  event.preventDefault();
  showMetric(tile.dataset.metric);
});

startDashboard((frame) => {
  onRunFrame(frame);
  onNames(frame.names ?? []);
});
setInterval(() => !document.hidden && document.querySelector('.run-head[data-state="active"]') && refreshHeader(), 15_000);
