/**
 * Keyboard shortcuts. A shortcut is an element with `data-key`, which it clicks or focuses, or a binding made by a module.
 * `data-key="2|g e"`: either will do.
 */

const PATIENCE = 900;

/** @typedef {{keys: string, label: string, group: string, run: () => void}} Binding */

/** @type {Map<string, Binding>} */
const bindings = new Map();
let pending = "";
let timer = 0;

/** @param {string} keys one key, or two separated by a space @param {string} label @param {string} group @param {() => void} run */
export function bind(keys, label, group, run) {
  bindings.set(keys, { keys, label, group, run });
}

/** @param {HTMLElement} element */
function activate(element) {
  if (element.matches("input, select, textarea")) {
    element.focus();
    if (element instanceof HTMLInputElement) element.select();
  } else element.click();
}

/** @returns {Map<string, Binding>} those of modules and those that the page declares now */
function current() {
  const all = new Map(bindings);
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-key]"))) {
    const { key = "", keyLabel = "", keyGroup = "This page" } = element.dataset;
    if (element.offsetParent === null) continue;
    for (const keys of key.split("|")) all.set(keys, { keys, label: keyLabel, group: keyGroup, run: () => activate(element) });
  }
  return all;
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox]):not([type=radio]):not([type=range])"));
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  // What has the focus answers to Enter itself.
  if (event.key === "Enter" && event.target instanceof Element && event.target.closest("a[href], button, summary, input")) return;
  const all = current();
  const typed = pending ? `${pending} ${event.key}` : event.key;
  const binding = all.get(typed) ?? all.get(event.key);
  clearTimeout(timer);
  pending = "";
  if (binding) {
    event.preventDefault();
    binding.run();
  } else if ([...all.keys()].some((keys) => keys.startsWith(`${event.key} `))) {
    pending = event.key;
    timer = window.setTimeout(() => (pending = ""), PATIENCE);
  }
}

/** @param {Binding} binding */
function row(binding) {
  const line = document.createElement("div");
  const label = document.createElement("span");
  label.textContent = binding.label;
  const keys = document.createElement("span");
  for (const key of binding.keys.split(" ")) {
    const cap = document.createElement(key === "|" ? "span" : "kbd");
    cap.textContent = key === "|" ? "or" : key;
    keys.append(cap, " ");
  }
  line.append(label, keys);
  return line;
}

function openSheet() {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("keys"));
  /** @type {Map<string, Binding[]>} */
  const groups = new Map();
  for (const binding of current().values()) {
    const members = groups.get(binding.group) ?? [];
    const same = members.find((other) => other.label === binding.label);
    if (same) same.keys += ` | ${binding.keys}`;
    else groups.set(binding.group, [...members, { ...binding }]);
  }
  const sections = [...groups].map(([name, members]) => {
    const section = document.createElement("section");
    const title = document.createElement("h3");
    title.textContent = name;
    section.append(title, ...members.map(row));
    return section;
  });
  dialog.querySelector(".keys")?.replaceChildren(...sections);
  dialog.showModal();
}

/** An open menu closes; else the last link of the breadcrumb is where this page came from. */
function goUp() {
  const menu = document.querySelector("details.menu[open]");
  if (menu) return menu.removeAttribute("open");
  const above = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".crumbs a"));
  above[above.length - 1]?.click();
}

export function startKeys() {
  bind("?", "Show this sheet", "Everywhere", openSheet);
  bind("Escape", "Back to the page above", "Everywhere", goUp);
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => {
    if (/** @type {HTMLElement} */ (event.target).closest("[data-keys-open]")) openSheet();
  });
}
