// Loss and throughput: series thinned by the server, drawn with uPlot, renewed while the job runs.
"use strict";

const box = document.getElementById("plots");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plots = {};
let logScale = false;

/** Series as one table over all steps: a row of steps, then one row a series with null where it has no value. */
function table(series, names) {
  const steps = [...new Set(names.flatMap((n) => (series[n] || []).map((p) => p[0])))].sort((a, b) => a - b);
  const place = new Map(steps.map((s, i) => [s, i]));
  const rows = names.map((name) => {
    const row = new Array(steps.length).fill(null);
    for (const point of series[name] || []) row[place.get(point[0])] = point[3];
    return row;
  });
  return [steps, ...rows];
}

function axes(yFormat) {
  const look = { stroke: colour("--faint"), grid: { stroke: colour("--plot-grid"), width: 1 }, ticks: { stroke: colour("--plot-grid"), width: 1 }, font: "11px system-ui" };
  return [{ ...look, label: box.dataset.step, labelSize: 16, labelFont: "11px system-ui", size: 36 }, { ...look, size: 56, values: (_, ticks) => ticks.map(yFormat) }];
}
const short = (value) => value === null ? "" : Math.abs(value) >= 10000 ? `${(value / 1000).toFixed(0)}k` : String(+value.toPrecision(4));

function draw(id, data, series, key) {
  const target = document.getElementById(id);
  if (!data[0].length) return;
  if (plots[id] && plots[id].key === key) { plots[id].plot.setData(data); return; }
  plots[id]?.plot.destroy();
  target.querySelector(".wait")?.remove();
  const options = {
    width: target.clientWidth, height: 236 - 26, series, axes: axes(short), legend: { live: true }, cursor: { drag: { x: true, y: false } },
    scales: { x: { time: false }, y: logScale && id === "plot-loss" ? { distr: 3 } : {} },
  };
  plots[id] = { plot: new uPlot(options, data, target), key };
}

const line = (label, stroke, more = {}) => ({ label, stroke, width: 1.5, spanGaps: true, points: { show: false }, value: (_, v) => v === null || v === undefined ? "–" : String(+v.toPrecision(5)), ...more });

async function renew() {
  const answer = await fetch(`${box.dataset.source}?names=loss,val_loss,tokens_per_s,step_s&points=600`, { headers: { Accept: "application/json" } });
  if (!answer.ok) return;
  const { series } = await answer.json();
  const theme = colour("--ground") + logScale;
  const x = { label: box.dataset.step };
  draw("plot-loss", table(series, ["loss", "val_loss"]), [x, line(box.dataset.loss, colour("--plot-1")),
    line(box.dataset.val, colour("--plot-2"), { points: { show: true, size: 7, fill: colour("--plot-2") } })], theme);
  const rate = (series.tokens_per_s || []).length ? ["tokens_per_s", box.dataset.rate] : ["step_s", box.dataset.pace];
  draw("plot-rate", table(series, [rate[0]]), [x, line(rate[1], colour("--plot-1"))], theme + rate[0]);
}

async function loop() {
  if (!document.hidden) {
    try { await renew(); } catch { /* the portal is away: the next round tries again */ }
  }
  const over = box.dataset.ended || document.querySelector("#part-state .state")?.matches(".state-succeeded, .state-failed, .state-cancelled");
  if (!over) setTimeout(loop, 2000);
  else if (!box.dataset.ended) { box.dataset.ended = "1"; setTimeout(loop, 2000); }
}

if (box) {
  for (const choice of document.querySelectorAll("[name=scale]")) choice.addEventListener("change", () => { logScale = choice.value === "log" && choice.checked; renew(); });
  new ResizeObserver(() => {
    for (const [id, { plot }] of Object.entries(plots)) plot.setSize({ width: document.getElementById(id).clientWidth, height: 210 });
  }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", renew);
  loop();
}
