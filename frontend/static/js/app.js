/** What every page does: copy buttons, dialogs, menus, theme, ages, toasts, keys. */

import { startKeys } from "assay/keys.js";
import { startSending } from "assay/sending.js";
import { ask, startSession } from "assay/session.js";
import { toast, startToasts } from "assay/toasts.js";

const MINUTE = 60, HOUR = 3600, DAY = 86400;

/** @param {string} iso @returns {string} how long ago, in the words of the server's `age` filter */
function ago(iso) {
  const seconds = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  if (seconds >= DAY) return `${Math.floor(seconds / DAY)} d ago`;
  if (seconds >= HOUR) return `${Math.floor(seconds / HOUR)} h ago`;
  if (seconds >= MINUTE) return `${Math.floor(seconds / MINUTE)} min ago`;
  return "just now";
}

function refreshAges() {
  for (const element of document.querySelectorAll("time[data-age]")) {
    element.textContent = ago(element.getAttribute("datetime") ?? "");
  }
}

/** @param {HTMLElement} button */
async function copy(button) {
  const source = button.dataset.copyFrom ? document.querySelector(button.dataset.copyFrom) : null;
  const text = source ? source.textContent ?? "" : button.dataset.copy || location.href;
  const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false) || copySelected(text);
  if (copied) toast("Copied", "success");
  else toast("The browser refused to copy; select the text and copy it by hand", "error");
}

/** The way of pages that came over plain http from another machine: browsers give those no clipboard. @param {string} text */
function copySelected(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}

/** @param {HTMLElement} button */
async function setTheme(button) {
  const theme = button.dataset.themeSet ?? "system";
  document.documentElement.dataset.theme = theme;
  for (const other of document.querySelectorAll("[data-theme-set]")) {
    other.setAttribute("aria-pressed", String(other.getAttribute("data-theme-set") === theme));
  }
  document.dispatchEvent(new CustomEvent("assay:theme"));
  await ask(button.dataset.url ?? "", { method: "POST", headers: { "X-CSRFToken": csrfToken() }, body: new URLSearchParams({ theme }) });
}

/** @returns {string} the token that Django expects with every POST of this page */
export function csrfToken() {
  return JSON.parse(document.body.getAttribute("hx-headers") ?? "{}")["X-CSRFToken"] ?? "";
}

/** @param {MouseEvent} event */
function onClick(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const button = /** @type {HTMLElement | null} */ (target.closest("[data-copy], [data-copy-from], [data-dialog], [data-close], [data-theme-set]"));
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target)) menu.removeAttribute("open");
  }
  if (!button) return;
  if ("copy" in button.dataset || "copyFrom" in button.dataset) copy(button);
  if (button.dataset.dialog) openDialog(button.dataset.dialog);
  if ("close" in button.dataset) button.closest("dialog")?.close();
  if (button.dataset.themeSet) setTheme(button);
}

/** @param {string} selector */
function openDialog(selector) {
  const dialog = /** @type {HTMLDialogElement | null} */ (document.querySelector(selector));
  dialog?.showModal();
}

/** A form with `data-typed` is sent only after that word was typed. @param {SubmitEvent} event */
function onSubmit(event) {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (!form.dataset.typed) return;
  event.preventDefault();
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("confirm"));
  const field = /** @type {HTMLInputElement} */ (dialog.querySelector("input"));
  const button = /** @type {HTMLButtonElement} */ (dialog.querySelector("button.danger"));
  const [why, word] = dialog.querySelectorAll("[data-why], [data-word]");
  why.textContent = form.dataset.why ?? "";
  word.textContent = form.dataset.typed;
  field.value = "";
  button.disabled = true;
  field.oninput = () => (button.disabled = field.value.trim() !== form.dataset.typed);
  button.onclick = () => form.submit();
  dialog.showModal();
}

/** @param {Event} event */
function onChange(event) {
  const field = /** @type {HTMLInputElement} */ (event.target);
  if ("submit" in field.dataset) field.form?.requestSubmit();
  if ("chooses" in field.dataset) showChosen(/** @type {HTMLSelectElement} */ (event.target));
}

/** Of the form's parts with `data-when` only those stay that name the choice; the inputs of the others are not sent. @param {HTMLSelectElement} select */
function showChosen(select) {
  for (const part of /** @type {NodeListOf<HTMLElement>} */ (select.form?.querySelectorAll("[data-when]") ?? [])) {
    part.hidden = !part.dataset.when?.split(" ").includes(select.value);
    for (const input of part.querySelectorAll("input")) input.disabled = part.hidden;
  }
}

/** @param {any} event */
function onRequestFailed(event) {
  const request = event.detail.xhr;
  const id = request?.getResponseHeader?.("X-Request-ID");
  const said = request?.getResponseHeader?.("Content-Type")?.startsWith("text/plain") ? request.responseText : `The server answered ${request?.status}`;
  toast(request?.status ? `${said}${id ? ` (request ${id})` : ""}` : "The server did not answer", "error");
}

/** Blank fields stay out of addresses. @param {any} event */
function onRequest(event) {
  const { parameters, verb } = event.detail;
  if (verb !== "get") return;
  for (const name of Object.keys(parameters)) if (parameters[name] === "") delete parameters[name];
}

/** What scrolls must be reached by the keyboard, and what does not scroll must not be in its way. */
function markScrollers() {
  for (const box of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".table-wrap:not([tabindex]), pre:not([tabindex]), [data-scroller]"))) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    box.toggleAttribute("data-scroller", scrolls);
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

document.addEventListener("click", onClick);
document.addEventListener("submit", onSubmit);
document.addEventListener("change", onChange);
document.addEventListener("htmx:configRequest", onRequest);
document.addEventListener("htmx:responseError", onRequestFailed);
document.addEventListener("htmx:sendError", onRequestFailed);
setInterval(refreshAges, 20_000);
addEventListener("resize", markScrollers);
document.addEventListener("htmx:afterSettle", markScrollers);
document.addEventListener("toggle", markScrollers, true);
const showAllChosen = () => /** @type {NodeListOf<HTMLSelectElement>} */ (document.querySelectorAll("select[data-chooses]")).forEach(showChosen);
showAllChosen();
// Back brings a form as it was filled in, after this module ran.
addEventListener("pageshow", showAllChosen);
/** What was shown once must not be asked for again by a reload. */
const once = /** @type {HTMLElement | null} */ (document.querySelector("[data-address]"));
if (once) history.replaceState(history.state, "", once.dataset.address);
markScrollers();
startToasts();
startSending();
startSession();
startKeys();
