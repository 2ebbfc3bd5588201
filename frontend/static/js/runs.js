/** The live list of runs: changed rows are patched in place and never move; a pill offers to re-read the order. */

import { announce } from "assay/announce.js";
import { live } from "assay/live.js";
import { ask } from "assay/session.js";
import { select, selection, showSelection, startTable } from "assay/table.js";

const PATCH_EVERY = 1000;

/** @type {Set<string>} */
const stale = new Set();
/** @type {Set<string>} */
const unseen = new Set();
let scheduled = false;

const shown = () => [...document.querySelectorAll("tr[data-run]")].map((row) => row.id.slice(4));

/** @param {string[]} ids none: anything may have changed while nobody listened */
function onChanged(ids) {
  if (!ids.length) ids = shown();
  for (const id of ids) {
    if (document.getElementById(`run-${id}`)) stale.add(id);
    else unseen.add(id);
  }
  showUpdates();
  if (scheduled || !stale.size) return;
  scheduled = true;
  setTimeout(patch, PATCH_EVERY);
}

async function patch() {
  scheduled = false;
  const url = document.querySelector("[data-live-list]")?.getAttribute("data-rows-url");
  if (!url || document.hidden) return;
  const ids = [...stale];
  stale.clear();
  const response = await ask(`${url}&ids=${ids.join(",")}`).catch(() => null);
  if (!response?.ok) return;
  const table = document.createElement("table");
  table.innerHTML = await response.text();
  for (const fresh of table.querySelectorAll("tr")) replaceRow(fresh);
  showSelection();
}

/** @param {HTMLTableRowElement} fresh */
function replaceRow(fresh) {
  const old = document.getElementById(fresh.id);
  if (!old) return;
  const focused = old.contains(document.activeElement);
  if (old.classList.contains("current")) fresh.classList.add("current");
  if (old.innerHTML !== fresh.innerHTML) fresh.classList.add("changed");
  old.replaceWith(fresh);
  if (focused) /** @type {HTMLElement | null} */ (fresh.querySelector("a[data-open]"))?.focus({ preventScroll: true });
}

function showUpdates() {
  const pill = /** @type {HTMLElement | null} */ (document.querySelector("[data-updates]"));
  if (!pill) return;
  pill.hidden = !unseen.size;
  pill.textContent = `${unseen.size} update${unseen.size === 1 ? "" : "s"}: show`;
  if (unseen.size) announce(`${unseen.size} runs changed that are not in this list`);
}

/** @param {CustomEvent<string[]>} event */
function onSelection(event) {
  const bar = /** @type {HTMLFormElement | null} */ (document.querySelector("[data-bulk]"));
  if (!bar) return;
  const ids = event.detail;
  bar.hidden = !ids.length;
  /** @type {HTMLInputElement} */ (bar.elements.namedItem("ids")).value = ids.join(",");
  const count = bar.querySelector("[data-bulk-count]");
  if (count) count.textContent = `${ids.length} picked`;
  const compare = /** @type {HTMLAnchorElement} */ (bar.querySelector("[data-compare]"));
  const most = Number(compare.dataset.most);
  compare.setAttribute("aria-disabled", String(ids.length < 2 || ids.length > most));
  compare.title = ids.length < 2 ? "Pick at least two runs" : ids.length > most ? `Pick at most ${most} runs` : "";
  compare.search = `runs=${ids.join(",")}`;
}

/** The dialog keeps what the page shows now: filters may have changed since it was sent. */
function fillView() {
  const query = new URL(location.href).searchParams;
  for (const name of ["cursor", "selected"]) query.delete(name);
  const dialog = /** @type {HTMLElement} */ (document.getElementById("save-view"));
  /** @type {HTMLInputElement} */ (dialog.querySelector("[name=query]")).value = query.toString();
  /** @type {HTMLElement} */ (dialog.querySelector("[data-view-query]")).textContent = query.toString() || "every run";
}

/** The usual columns need no mention in an address. @param {any} event */
function onRequest(event) {
  const { parameters } = event.detail;
  const usual = document.querySelector("[data-usual]")?.getAttribute("data-usual");
  if (parameters.column && [parameters.column].flat().join(",") === usual) delete parameters.column;
}

/** @param {MouseEvent} event */
function onClick(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (target.closest("[data-save-view]")) fillView();
  if (target.closest("[data-updates]")) location.reload();
  if (target.closest("[data-bulk-clear]")) select([]);
  if (target.closest('[aria-disabled="true"]')) event.preventDefault();
}

/** An open facet stays open while its counts are replaced. @type {string[]} */
let open = [];
document.addEventListener("htmx:oobBeforeSwap", () => (open = [...document.querySelectorAll("details.facet[open]")].map((facet) => facet.id)));
document.addEventListener("htmx:oobAfterSwap", () => open.forEach((id) => document.getElementById(id)?.setAttribute("open", "")));

document.addEventListener("assay:selection", /** @type {EventListener} */ (onSelection));
document.addEventListener("click", onClick);
document.addEventListener("htmx:configRequest", onRequest);
document.addEventListener("visibilitychange", () => !document.hidden && stale.size && patch());
startTable();
if (selection().length) showSelection();
live.subscribe({ topic: "runs" }, { changed: onChanged, poll: () => onChanged([]) });
