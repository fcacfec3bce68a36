// The index: a row a method of a setting; rows are filtered, and those that are ticked are drawn together.

const ticked = new Set(); // "setting, method"
const KINDS = ["dataset", "setting", "method"];
const entryOf = (box) => data.methods[box.value];
const keyOf = (entry) => `${entry.setting}, ${entry.name}`;

function start(loaded) {
  data = loaded;
  const lines = [...document.querySelectorAll("#listing tbody tr")], boxes = lines.map((line) => line.querySelector("input"));
  KINDS.forEach((kind) => {
    fill($(`by-${kind}`), ["", ...new Set(lines.map((line) => line.dataset[kind]))].map((name) => [name, name || "all"]), "");
    on(`by-${kind}`, "change", filter);
  });
  boxes.forEach((box) => {
    box.checked = ticked.has(keyOf(entryOf(box)));
    box.onchange = () => tick([box], box.checked);
  });
  on("all-shown", "click", () => tick(boxes.filter((box) => !box.closest("tr").hidden), true));
  on("none", "click", () => tick(boxes, false));
  const view = draw("compared-chart", option, rows);
  filter();
  note();
  document.documentElement.dataset.ready = "yes";

  function filter() {
    lines.forEach((line) => (line.hidden = KINDS.some((kind) => $(`by-${kind}`).value && $(`by-${kind}`).value !== line.dataset[kind])));
  }

  function tick(some, on) {
    some.forEach((box) => {
      box.checked = on;
      ticked[on ? "add" : "delete"](keyOf(entryOf(box)));
    });
    view.redraw();
    note();
  }

  // What is drawn: of what is ticked all that is measured like the first.
  function compared() {
    const found = data.methods.filter((entry) => ticked.has(keyOf(entry)));
    return found.filter((entry) => entry.unit === found[0].unit);
  }

  function note() {
    const count = data.methods.filter((entry) => ticked.has(keyOf(entry))).length, left = count - compared().length;
    $("compared-note").textContent = count
      ? `Means over clients and seeds. ${left ? `${left} of them are measured otherwise and not drawn. ` : ""}Methods of different settings had different tasks: compare how they run, not who is higher.`
      : "Tick methods in the table above.";
  }

  function option() {
    const entries = compared(), places = [...new Set(entries.map((entry) => entry.setting))];
    return {
      legend: { type: "scroll", top: 0, left: 44, right: 10, textStyle: { color: style("--soft") }, selectedMode: false },
      grid: { left: 52, right: 24, top: 60, bottom: 46 },
      xAxis: axis({ type: "value", name: "finished rounds", ...below, min: 0, max: "dataMax", minInterval: 1, splitLine: { show: false } }),
      yAxis: axis({ type: "value", name: entries.length ? entries[0].unit : "", nameTextStyle: { align: "left", color: style("--soft") }, scale: true }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => tip(`after round ${points[0].axisValue}`, points.map((point) => [point.color, point.seriesName, plain(point.value[1])])) }),
      series: entries.map((entry) => ({
        name: `${titled(entry)}: ${entry.setting}`, type: "line", showSymbol: true, connectNulls: true, color: hue(entry), emphasis: { disabled: true },
        symbol: ["circle", "rect", "triangle", "diamond", "pin", "arrow"][places.indexOf(entry.setting) % 6], symbolSize: 7,
        lineStyle: { width: 2, type: entry.dash }, data: Object.values(entry.curves)[0][0].map((y, x) => [x, y]),
      })),
    };
  }

  function rows() {
    return [["setting", "method", "finished rounds", "value"], ...compared().flatMap((entry) => Object.values(entry.curves)[0][0].map((value, x) => [entry.setting, titled(entry), x, value]))];
  }
}

themes();
printing();
load().then(start);
