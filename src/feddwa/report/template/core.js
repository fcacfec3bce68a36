"use strict";
// What all charts share: the data, light and dark, tooltips, redrawing. ECharts does the drawing.

let data; // what collect.py made
const drawn = []; // {chart, option}: every chart and the function that says what is on it

const $ = (id) => document.getElementById(id);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = () => document.documentElement.dataset.theme === "dark";
const percent = (value, digits = 1) => (value === null ? "–" : `${value.toFixed(digits)} %`);
// Values of what methods are compared by: accuracy in percent, or a loss.
const signed = (value, digits = 1) => `${value > 0 ? "+" : ""}${value.toFixed(digits)}`;
const written = (value) => (data.measure.unit ? value.toFixed(1) : String(Number(value.toPrecision(4))));
const reading = (value) => (value === null ? "–" : `${written(value)}${data.measure.unit}`);
const gained = (value) => `${value > 0 ? "+" : ""}${written(value)}${data.measure.sign > 0 ? " points" : " of loss"}`;
const hue = (method) => (dark() ? method.dark : method.light);
const seeds = () => new Set(data.runs.map((run) => run.seed)).size;
const nameOf = (run) => data.methods[run.method].name + (seeds() > 1 ? `, seed ${run.seed}` : "");
const GROUPS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8b6fc9", "#8a8f98"];
const groupHue = (group) => GROUPS[group % GROUPS.length];
const ramp = () =>
  dark() ? ["#1d2632", "#1f4e79", "#2f7fb9", "#6db8e8", "#e6f4ff"] : ["#f2f5f9", "#b9d6ea", "#6aaed6", "#2f7fb9", "#08306b"];

async function load() {
  const bytes = Uint8Array.from(atob($("payload").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function draw(id, option) {
  const chart = echarts.init($(id));
  const entry = { chart, option };
  drawn.push(entry);
  new ResizeObserver(() => chart.resize()).observe($(id));
  redraw(entry);
  return { chart, redraw: () => redraw(entry) };
}

function redraw(entry) {
  entry.chart.setOption({ ...base(), ...entry.option(entry.chart) }, { notMerge: true });
}

function base() {
  return {
    animation: false,
    textStyle: { color: style("--ink"), fontFamily: getComputedStyle(document.body).fontFamily },
  };
}

function tooltip(more) {
  return {
    backgroundColor: style("--paper"), borderColor: style("--line"), textStyle: { color: style("--ink"), fontSize: 13 },
    confine: true, transitionDuration: 0, ...more,
  };
}

function axis(more) {
  const { axisLabel, ...rest } = more;
  return {
    nameTextStyle: { color: style("--soft"), fontSize: 12 },
    axisLine: { lineStyle: { color: style("--line") } },
    axisTick: { show: false },
    splitLine: { lineStyle: { color: style("--line") } },
    axisLabel: { color: style("--soft"), fontSize: 12, hideOverlap: true, ...axisLabel },
    ...rest,
  };
}

// Lines over a heat map: between columns and rows (counted from the top), and a frame around some squares.
function frames(columns, rows, box) {
  const renderItem = (params, api) => {
    const { x, y, width, height } = params.coordSys, [wide, high] = api.size([1, 1]);
    const line = (x1, y1, x2, y2) => ({ type: "line", silent: true, shape: { x1, y1, x2, y2 }, style: { stroke: style("--soft"), lineWidth: 1 } });
    const children = columns.map((i) => line(x + i * wide, y, x + i * wide, y + height));
    children.push(...rows.map((i) => line(x, y + i * high, x + width, y + i * high)));
    if (box) {
      const shape = { x: x + box.x * wide, y: y + height - (box.y + box.height) * high, width: box.width * wide, height: box.height * high };
      children.push({ type: "rect", silent: true, shape, style: { fill: "none", stroke: style("--bad"), lineWidth: 2 } });
    }
    return { type: "group", children };
  };
  return { type: "custom", renderItem, data: [[0, 0]], silent: true, z: 10, tooltip: { show: false } };
}

const below = { nameLocation: "middle", nameGap: 28 };

function tip(title, rows) {
  const lines = rows.map(([colour, name, value]) => {
    const dot = colour ? `<span class="dot" style="background:${colour}"></span>` : "";
    return `<div class="row"><span>${dot}${escape(name)}</span><b>${value}</b></div>`;
  });
  return `<div class="tip"><b>${escape(title)}</b>${lines.join("")}</div>`;
}

function escape(text) {
  return String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

function fill(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
  const label = select.closest("label");
  if (label) label.hidden = entries.length < 2;
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) (value /= 1024), unit++;
  return `${unit ? Number(value.toPrecision(3)) : value} ${units[unit]}`;
}

function flops(value) {
  const units = ["", "k", "M", "G", "T", "P", "E"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) (value /= 1000), unit++;
  return `${Number(value.toPrecision(3))} ${units[unit]}FLOP`;
}

const time = (value) => (value < 120 ? `${Number(value.toPrecision(3))} s` : `${Number((value / 60).toPrecision(3))} min`);

// What a client is called: its name in the data, or its number.
function nameOfClient(client, partition) {
  return partition ? partition.names[client] : String(client);
}

// A client in words: its name, its true group, how its images are turned.
function clientName(client, partition) {
  const name = `client ${nameOfClient(client, partition)}`;
  if (!partition || !partition.groups) return name;
  const turn = partition.degrees ? `, images turned by ${partition.degrees[client]}°` : "";
  return `${name} (group ${partition.groups[client] + 1}${turn})`;
}

// The labels of an axis whose categories are clients' numbers, and the room that the longest of them takes beside it.
function clientLabels(partition) {
  const longest = partition ? Math.max(...partition.names.map((name) => name.length)) : 0;
  return {
    label: { formatter: (value) => nameOfClient(Number(value), partition), width: 110, overflow: "truncate" },
    room: Math.min(110, Math.max(0, 6 * (longest - 3))),
  };
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  drawn.forEach(redraw);
}

function themes() {
  const wish = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("feddwa-theme"); } catch { /* some browsers keep nothing for files */ }
  document.documentElement.dataset.theme = kept || (wish.matches ? "dark" : "light");
  wish.addEventListener("change", () => theme(wish.matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => {
    theme(dark() ? "light" : "dark");
    try { localStorage.setItem("feddwa-theme", document.documentElement.dataset.theme); } catch { /* as above */ }
  });
}
