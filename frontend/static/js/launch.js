/**
 * The launch page: ask the server to check while the form is filled in, and show each problem at its field.
 *
 * What was filled in is kept with the page's place in the browser's history, so that Back and a reload bring it back, stages and variants
 * among it. The form's token is part of it: sent again unchanged, it leads to the run it already made.
 */

import { announce } from "assay/announce.js";
import { csrfToken } from "assay/app.js";
import { ask } from "assay/session.js";
import { toast } from "assay/toasts.js";

const form = /** @type {HTMLFormElement} */ (document.getElementById("launch-form"));
const fields = /** @type {HTMLElement} */ (document.getElementById("launch-fields"));
const text = /** @type {HTMLElement} */ (document.getElementById("launch-text"));
const button = /** @type {HTMLButtonElement} */ (document.querySelector("[data-launch]"));
const QUIET_MS = 350;
const OPEN_ON_A_PHONE = 2;
let timer = 0;
/** Names of the inputs that somebody changed or left: only they are found fault with, until the whole form was sent. @type {Set<string>} */
const touched = new Set();
const advanced = /** @type {HTMLInputElement} */ (form.querySelector("[data-advanced]"));
let restoring = false;

function askForCheck() {
  clearTimeout(timer);
  timer = window.setTimeout(() => {
    keep();
    document.body.dispatchEvent(new CustomEvent("assay:check"));
  }, QUIET_MS);
}

/** @typedef {{entries: [string, string][], touched: string[], advanced: boolean}} Draft */

function keep() {
  if (restoring) return;
  const entries = [...new FormData(form)].filter(([name]) => name !== "csrfmiddlewaretoken");
  history.replaceState({ ...history.state, launch: { entries, touched: [...touched], advanced: advanced.checked } }, "");
}

/** Until it is back nothing can be launched: it would be the preset instead. @param {Draft} draft */
async function restore(draft) {
  restoring = button.disabled = true;
  const options = { method: "POST", headers: { "X-CSRFToken": csrfToken() }, body: new URLSearchParams(draft.entries) };
  const answer = await ask(form.dataset.restore ?? "", options).catch(() => null);
  if (!answer?.ok) return toast("What you had filled in could not be brought back. Reload the page to try again.", "error");
  fields.innerHTML = await answer.text();
  htmx.process(fields);
  draft.touched.forEach((name) => touched.add(name));
  const token = draft.entries.find(([name]) => name === "token");
  if (token) /** @type {HTMLInputElement} */ (form.elements.namedItem("token")).value = token[1];
  advanced.checked = draft.advanced;
  form.classList.toggle("advanced", draft.advanced);
  restoring = button.disabled = false;
  foldSections();
  askForCheck();
}

let verdict = "";
function announceVerdict() {
  const now = document.getElementById("rail-verdict")?.textContent?.trim() ?? "";
  if (now !== verdict) announce(now);
  verdict = now;
}

/** @param {{ pointer: string, missing: boolean }} found whether to say it at its field yet */
function isDue({ pointer, missing }) {
  return "refused" in form.dataset || touched.has(pointer) || (touched.size > 0 && !missing);
}

/** Writes the server's findings beside the fields they name, or beside the nearest field above. */
function showProblems() {
  const found = JSON.parse(document.getElementById("launch-problems")?.textContent ?? "[]");
  for (const place of fields.querySelectorAll("[data-problem]")) setProblem(/** @type {HTMLElement} */ (place), "");
  document.getElementById("launch-rail")?.classList.toggle("untouched", !touched.size && !("refused" in form.dataset));
  for (const problem of found.filter(isDue)) {
    const place = placeOf(problem.pointer);
    if (place) setProblem(place, problem.message);
  }
}

/** On a phone only the first sections and those with a problem stand open: the form is long. */
function foldSections() {
  if (!matchMedia("(max-width: 900px)").matches) return;
  const sections = /** @type {HTMLDetailsElement[]} */ ([...fields.querySelectorAll("[data-section]")]);
  sections.slice(OPEN_ON_A_PHONE).forEach((section) => (section.open = Boolean(section.querySelector(".problem:not([hidden])"))));
}

/** @param {string} pointer @returns {HTMLElement | null} */
function placeOf(pointer) {
  for (let path = pointer; path; path = path.slice(0, path.lastIndexOf("/"))) {
    const place = fields.querySelector(`[data-problem="${CSS.escape(path)}"]`);
    if (place) return /** @type {HTMLElement} */ (place);
  }
  return null;
}

/** @param {HTMLElement} place @param {string} message */
function setProblem(place, message) {
  place.textContent = message;
  place.hidden = !message;
  if (message) place.closest("details")?.setAttribute("open", "");
  const input = place.parentElement?.matches(".input") ? place.parentElement.querySelector("input, select, textarea") : null;
  if (message) input?.setAttribute("aria-invalid", "true");
  else input?.removeAttribute("aria-invalid");
}

/** @param {HTMLElement} button */
function openDoor(button) {
  const isForm = button.dataset.door === "form";
  fields.hidden = !isForm;
  text.hidden = isForm;
  for (const other of form.querySelectorAll("[data-door]")) {
    other.setAttribute("aria-selected", String(other === button));
  }
}

/** @param {MouseEvent} event */
function onClick(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const door = /** @type {HTMLElement | null} */ (target.closest("[data-door]"));
  if (door) openDoor(door);
  const link = /** @type {HTMLElement | null} */ (target.closest("[data-goto]"));
  if (!link) return;
  event.preventDefault();
  const place = placeOf(link.dataset.goto ?? "");
  place?.closest("details")?.setAttribute("open", "");
  place?.scrollIntoView({ block: "center" });
  /** @type {HTMLElement | null | undefined} */ (place?.parentElement?.querySelector("input, select, textarea"))?.focus();
}

form.addEventListener("input", (event) => {
  const box = /** @type {HTMLInputElement} */ (event.target);
  if (box === advanced) form.classList.toggle("advanced", box.checked);
  else touched.add(box.name);
  askForCheck();
});
fields.addEventListener("focusout", (event) => {
  touched.add(/** @type {HTMLInputElement} */ (event.target).name);
  showProblems();
});
form.addEventListener("submit", (event) => {
  // Enter in a field sends the form too, whether or not the button may be pressed.
  if (button.disabled) return event.preventDefault();
  keep();
  button.disabled = true;
});
/** A link to this page's own address starts anew, though the browser may hand it the state of the entry it replaces. */
function isComeBack() {
  const [navigation] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  return navigation.type !== "navigate";
}

foldSections();
if (history.state?.launch && isComeBack()) restore(history.state.launch);
window.addEventListener("pageshow", () => (button.disabled = restoring));
document.addEventListener("click", onClick);
document.addEventListener("htmx:afterSwap", (event) => {
  if (/** @type {HTMLElement} */ (event.target).id === "launch-rail") {
    showProblems();
    announceVerdict();
  } else if (fields.contains(/** @type {HTMLElement} */ (event.target))) askForCheck();
});
