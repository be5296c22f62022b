// The log of one rank: its end at first, then what is written after it; other files by the selections above it.
"use strict";

const tools = document.getElementById("log-tools"), view = document.getElementById("log");
const MAX_LINES = 5000;
let place = null, running = 0;

function choice() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(tools)) if (name !== "follow" && value) query.set(name, value);
  return query;
}

function show(lines, append) {
  const atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
  if (!append) view.replaceChildren();
  const text = lines.length ? lines.join("\n") + "\n" : "";
  if (text) {
    if (view.dataset.empty) { view.replaceChildren(); delete view.dataset.empty; }
    view.append(document.createTextNode(text));
    while (view.childNodes.length > 200 || view.textContent.length > MAX_LINES * 400) view.firstChild.remove();
  } else if (!append) {
    view.dataset.empty = "1";
    view.textContent = view.dataset.none;
  }
  if (!append || (atEnd && tools.follow.checked)) view.scrollTop = view.scrollHeight;
}

/** New attempts, restarts and ranks become choices; what is chosen stays. */
function offer(choices) {
  for (const [name, numbers] of Object.entries(choices)) {
    const select = tools.elements[name], known = new Set([...select.options].map((o) => o.value));
    for (const n of numbers) if (!known.has(String(n))) select.add(new Option(`${tools.dataset[name]} ${n}`, n));
  }
}

async function read(mine) {
  const query = choice();
  document.getElementById("log-file").href = `${tools.dataset.file}?${query}`;
  if (place) { query.set("after", place.after); query.set("file", place.file); }
  const answer = await fetch(`${tools.dataset.source}?${query}`, { headers: { Accept: "application/json" } });
  if (mine !== running) return false;
  if (!answer.ok) return false;
  const found = await answer.json();
  if (mine !== running) return false;
  offer(found.choices);
  if (!place || found.lines.length || !found.more) show(found.lines, found.more);
  place = found.file ? { after: found.after, file: found.file } : null;
  return found.ended;
}

async function follow(mine) {
  let ended = false;
  if (!document.hidden && (tools.follow.checked || !place)) {
    try { ended = await read(mine); } catch { /* the portal is away: the next round tries again */ }
  }
  if (mine === running && !ended) setTimeout(follow, 1000, mine);
}

function begin() { place = null; running += 1; follow(running); }
let timer = 0;
tools?.addEventListener("input", (event) => {
  if (event.target.name === "follow") return;
  clearTimeout(timer);
  timer = setTimeout(begin, event.target.name === "q" ? 300 : 0);
});
tools?.addEventListener("submit", (event) => event.preventDefault());
if (tools) begin();
