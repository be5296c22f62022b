// What every page needs beyond links, forms and htmx: clocks that tick, polling that pauses, questions before acts.
"use strict";

const units = document.documentElement.dataset.units.split(",");

/** A duration in words, as portal/web/formats.py writes it. */
function duration(seconds) {
  let whole = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [index, length] of [86400, 3600, 60, 1].entries()) {
    const count = Math.floor(whole / length);
    whole %= length;
    if (parts.length || count) parts.push([count, units[index]]);
    if (parts.length === 2) break;
  }
  if (parts.length === 2 && parts[1][0] === 0) parts.pop();
  return parts.map((part) => part.join(" ")).join(" ") || `0 ${units[3]}`;
}

function tick() {
  for (const clock of document.querySelectorAll("time[data-since]")) {
    const text = duration((Date.now() - Date.parse(clock.dateTime)) / 1000);
    if (clock.textContent !== text) clock.textContent = text;
  }
}
setInterval(tick, 1000);

/** Show a sentence in the corner; it goes away by itself, an error stays longer. */
function toast(text, kind = "error") {
  const box = document.createElement("div");
  box.className = `note note-${kind} toast`;
  box.textContent = text;
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), kind === "error" ? 9000 : 4000);
}

// Polled parts: not while nobody looks, and only what changed since the last answer.
const etags = new WeakMap();
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.elt.hasAttribute("data-poll")) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const part of document.querySelectorAll("[data-poll]")) htmx.trigger(part, "wake");
});
document.addEventListener("htmx:configRequest", (event) => {
  const element = event.detail.elt;
  if (!element.hasAttribute("data-poll")) return;
  if (etags.has(element)) event.detail.headers["If-None-Match"] = etags.get(element);
  const parts = [...document.querySelectorAll("[data-part]")].map((p) => `${p.dataset.part}=${p.dataset.digest}`);
  if (parts.length) event.detail.headers["X-Parts"] = parts.join(";");
});
document.addEventListener("htmx:afterRequest", (event) => {
  const element = event.detail.elt, tag = event.detail.xhr.getResponseHeader("ETag");
  if (element.hasAttribute("data-poll") && tag) etags.set(element, tag);
});
document.addEventListener("htmx:afterSettle", (event) => {
  tick();
  const news = document.querySelector("[data-announce]");
  const voice = document.getElementById("announce");
  if (news && voice.textContent !== news.dataset.announce) voice.textContent = news.dataset.announce;
});

// A refusal of a part's request is shown, not swallowed. A portal that is away is told once, not each second.
let away = false;
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.elt.hasAttribute("data-poll") && event.detail.xhr.status >= 500) return;
  const answer = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
  const sentence = answer.querySelector("[data-refusal-text]");
  if (sentence) toast(sentence.textContent.trim());
});
document.addEventListener("htmx:sendError", () => { away = true; document.body.classList.add("away"); });
document.addEventListener("htmx:afterOnLoad", () => { if (away) { away = false; document.body.classList.remove("away"); } });

// Acts that cannot be taken back ask first; a form that was sent is not sent twice.
document.addEventListener("submit", (event) => {
  const form = event.target, button = event.submitter;
  const question = button?.dataset.confirm || form.dataset.confirm;
  if (question && !form.dataset.confirmed) {
    event.preventDefault();
    const dialog = document.getElementById("confirm");
    document.getElementById("confirm-text").textContent = question;
    document.getElementById("confirm-yes").textContent = button.textContent.trim();
    dialog.onclose = () => {
      if (dialog.returnValue !== "yes") return;
      form.dataset.confirmed = "1";
      form.requestSubmit(button);
      delete form.dataset.confirmed;
    };
    dialog.returnValue = "";
    dialog.showModal();
    return;
  }
  if (form.hasAttribute("data-once")) {
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "1";
    for (const each of form.querySelectorAll("button")) each.setAttribute("aria-disabled", "true");
  }
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    for (const each of form.querySelectorAll("button")) each.removeAttribute("aria-disabled");
  }
});

// "/" goes to the search box; filters act when they are chosen; text is copied by its button.
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const box = document.querySelector("[data-search]");
  if (box) { event.preventDefault(); box.focus(); box.select(); }
});
document.addEventListener("change", (event) => {
  if (event.target.matches("form[data-auto] :is(select, input[type=checkbox], input[type=radio])")) event.target.form.requestSubmit();
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  toast(button.dataset.done, "success");
});
tick();

// On a narrow screen the rail scrolls sideways: the current section is brought into view.
document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
