/** Forms on their way to the server: one wish is sent once, and known as the same one when the browser comes back to it. */

/** @type {WeakSet<EventTarget>} */
let sent = new WeakSet();

/** A second click before the answer is the same wish, not another one. @param {SubmitEvent} event */
function sendOnce(event) {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (event.defaultPrevented || form.method !== "post") return;
  if (sent.has(form)) event.preventDefault();
  sent.add(form);
  const token = tokenOf(form);
  if (token) history.replaceState({ ...history.state, sent: { ...history.state?.sent, [nameOf(form)]: token.value } }, "");
}

/** @param {Element} form @returns {HTMLInputElement | null} */
function tokenOf(form) {
  return form.querySelector("input[name=token]");
}

/** What tells a page's forms apart: where each goes, and what it says of itself. @param {HTMLFormElement} form */
function nameOf(form) {
  const told = /** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("input[type=hidden]:not([name=token], [name=csrfmiddlewaretoken])"));
  return [form.action, ...[...told].map((input) => `${input.name}=${input.value}`)].join(" ");
}

/** Back may bring a fresh page for the one that was left. What was sent from that one keeps its token; a reload is a new wish. */
function bringBack() {
  const [opened] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  if (opened?.type !== "back_forward") return;
  for (const form of document.forms) {
    const token = tokenOf(form), kept = history.state?.sent?.[nameOf(form)];
    if (token && kept) token.value = kept;
  }
}

/** A part of the page that is read anew keeps its tokens, in their order. @param {Element} now @param {Element} next */
export function keepTokens(now, next) {
  const kept = [...now.querySelectorAll("input[name=token]")];
  next.querySelectorAll("input[name=token]").forEach((token, place) => {
    const value = kept[place]?.getAttribute("value");
    if (value) token.setAttribute("value", value);
  });
}

export function startSending() {
  bringBack();
  document.addEventListener("submit", sendOnce);
  addEventListener("pageshow", () => (sent = new WeakSet()));
}
