// Whose updates counted, round by round, and who was late, offline or refused.

function presence() {
  const known = data.runs.filter((run) => run.presence);
  $("presence").hidden = !known.length;
  if (!known.length) return;
  const COLOURS = ["#e69f00", "#d55e00", "#cc79a7", "#8b6fc9", "#56b4e9"];
  fill($("presence-run"), known.map((run) => [nameOf(run), called(run)]), nameOf(known[0]));
  const view = draw("presence-chart", option, rows);
  on("presence-run", "change", () => (view.redraw(), last()));
  last();

  function run() { return runOf($("presence-run").value); }

  function last() {
    const { presence: own } = run(), name = (client) => nameOfClient(client, data.partitions[run().seed]);
    const missing = Object.values(own.last).reduce((sum, clients) => sum + clients.length, 0);
    $("presence-note").textContent = `Updates that counted, and those that did not, by reason. In round ${own.rounds.at(-1)}, the last that is known, ${own.counted.at(-1)} counted and ${missing} did not.`;
    $("presence-last").replaceChildren(...Object.entries(own.last).map(([why, clients]) => {
      const item = document.createElement("li"), few = clients.slice(0, 20).map(name).join(", ");
      item.textContent = `${why}: ${clients.length === 1 ? "client" : "clients"} ${few}${clients.length > 20 ? ` and ${clients.length - 20} more` : ""}`;
      return item;
    }));
  }

  function option() {
    const { presence: own } = run();
    const parts = [["counted", own.counted, style("--accent")], ...Object.entries(own.missing).map(([why, counts], i) => [why, counts, COLOURS[i % COLOURS.length]])];
    return {
      legend: { type: "scroll", top: 0, left: 44, itemWidth: 12, itemHeight: 12, icon: "roundRect", textStyle: { color: style("--soft") }, selectedMode: false },
      grid: { left: 52, right: 18, top: 30, bottom: 42 },
      xAxis: axis({ type: "category", data: own.rounds, name: "round", ...below, nameGap: 24, splitLine: { show: false } }),
      yAxis: axis({ type: "value", minInterval: 1 }),
      tooltip: tooltip({ trigger: "axis", axisPointer: { type: "shadow" }, formatter: (points) => tip(`round ${points[0].axisValue}`, points.map((point) => [point.color, point.seriesName, String(point.value)])) }),
      series: parts.map(([name, counts, color]) => ({ name, type: "bar", stack: "all", color, data: counts, barCategoryGap: "10%", emphasis: { disabled: true } })),
    };
  }

  function rows() {
    const { presence: own } = run(), reasons = Object.keys(own.missing);
    return [["run", "round", "counted", ...reasons], ...own.rounds.map((round, i) => [nameOf(run()), round, own.counted[i], ...reasons.map((why) => own.missing[why][i])])];
  }
}
