// What all charts share: the data, light and dark, tooltips, redrawing. ECharts does the drawing.

let data; // what collect.py made
const drawn = new Map(); // id -> {chart, option, table}: every chart, and the functions that say what is on it
let again = false; // whether new numbers replace old ones (live.js): then what was chosen stays chosen

const $ = (id) => document.getElementById(id);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = () => document.documentElement.dataset.theme === "dark";
const hue = (method) => (dark() ? method.dark : method.light);
const seeds = () => new Set(data.runs.map((run) => run.seed)).size;
const nameOf = (run) => data.methods[run.method].name + (seeds() > 1 ? `, seed ${run.seed}` : "");
const called = (run) => nameOf(run) + (marked(data.methods[run.method]) ? ` (${data.methods[run.method].mark})` : "");
const marked = (method) => Boolean(method.mark);
const titled = (method) => method.name + (marked(method) ? ` (${method.mark})` : "");
const runOf = (name) => data.runs.find((run) => nameOf(run) === name);
const GROUPS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8b6fc9", "#8a8f98"];
const groupHue = (group) => GROUPS[group % GROUPS.length];
const ramp = () =>
  dark() ? ["#1d2632", "#1f4e79", "#2f7fb9", "#6db8e8", "#e6f4ff"] : ["#f2f5f9", "#b9d6ea", "#6aaed6", "#2f7fb9", "#08306b"];

async function load() {
  const bytes = Uint8Array.from(atob($("payload").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// A chart in the element of this id; option: what is on it, table: the same as rows for a CSV file.
function draw(id, option, table) {
  if (drawn.has(id)) drawn.get(id).chart.dispose();
  else new ResizeObserver(() => drawn.get(id).chart.resize()).observe($(id));
  const chart = echarts.init($(id)), entry = { chart, option, table };
  drawn.set(id, entry);
  redraw(entry);
  offer(id);
  return { chart, redraw: () => redraw(entry) };
}

function redraw(entry) {
  entry.chart.setOption({ ...base(), ...entry.option(entry.chart) }, { notMerge: true });
}

// One listener an element and event, however often the page is drawn anew.
function on(id, event, listener) { $(id)[`on${event}`] = listener; }

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

// Lines over a map of squares: between columns and between rows, and a frame around one row; rows count from the top.
function frames(columns, rows, total, framed) {
  const renderItem = (params, api) => {
    const { x, y, width, height } = params.coordSys, [wide, high] = api.size([1, 1]);
    const [left, top] = api.coord([0, total - 1]).map((middle, i) => middle - (i ? high : wide) / 2);
    const line = (x1, y1, x2, y2) => ({ type: "line", silent: true, shape: { x1, y1, x2, y2 }, style: { stroke: style("--soft"), lineWidth: 1 } });
    const children = columns.map((i) => line(left + i * wide, y, left + i * wide, y + height));
    children.push(...rows.map((i) => line(x, top + i * high, x + width, top + i * high)));
    if (framed !== undefined) {
      const shape = { x, y: top + framed * high, width, height: Math.max(2, high) };
      children.push({ type: "rect", silent: true, shape, style: { fill: "none", stroke: style("--bad"), lineWidth: 2 } });
    }
    return { type: "group", children };
  };
  return { type: "custom", renderItem, data: [[0, 0]], silent: true, clip: true, z: 10, tooltip: { show: false } };
}

// A tooltip that a chart's own squares do not bring along.
function tipBox(chart) {
  const box = document.createElement("div");
  box.className = "float";
  box.hidden = true;
  chart.append(box);
  return {
    show: (html, x, y) => {
      box.innerHTML = html;
      box.hidden = false;
      box.style.left = `${Math.max(0, Math.min(x + 14, chart.clientWidth - box.offsetWidth))}px`;
      box.style.top = `${y + 18 + box.offsetHeight > chart.clientHeight ? y - 10 - box.offsetHeight : y + 18}px`;
    },
    hide: () => (box.hidden = true),
  };
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
  if (again && entries.some(([value]) => String(value) === select.value)) chosen = select.value;
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
  const label = select.closest("label");
  if (label) label.hidden = entries.length < 2;
}

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
    every: (clients, places) => (clients > places ? Math.ceil(clients / places) - 1 : "auto"), // so few labels that none touch
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

// Paper is white, and narrower than a screen: charts are drawn anew for it.
function printing() {
  let before = null;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.classList.add("printing");
    theme("light");
    drawn.forEach(({ chart }) => chart.resize());
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    theme(before);
    drawn.forEach(({ chart }) => chart.resize());
  });
}
