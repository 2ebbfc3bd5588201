/** Short notices in the corner. Errors stay until dismissed. */

const LINGER = 6000;

/** @param {string} text @param {"success" | "error" | "warning" | ""} [level] */
export function toast(text, level = "") {
  const template = /** @type {HTMLTemplateElement} */ (document.getElementById("toast"));
  const element = /** @type {HTMLElement} */ (template.content.firstElementChild?.cloneNode(true));
  if (level) element.classList.add(level);
  const message = element.querySelector(".message");
  if (message) message.textContent = text;
  // A server that is away fails every request alike: once is enough.
  for (const other of document.querySelectorAll("[data-toast]")) if (other.querySelector(".message")?.textContent === text) other.remove();
  document.querySelector("[data-toasts]")?.append(element);
  expire(element);
}

/** @param {Element} element */
function expire(element) {
  if (!element.classList.contains("error")) setTimeout(() => element.remove(), LINGER);
}

export function startToasts() {
  document.querySelectorAll("[data-toast]").forEach(expire);
  document.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("[data-dismiss]");
    button?.closest("[data-toast]")?.remove();
  });
}
