// Which clients gained by joining, and which lost.

function gain() {
  const compared = data.runs.filter((run) => run.gain);
  $("gain-chart").hidden = $("gain-run").closest(".controls").hidden = !compared.length;
  if (!compared.length) {
    $("gain-note").textContent = "There is nothing to compare: of the same seed, a run of Local (each client trains alone) and one of another method are needed, and neither may have failed. feddwa compare --algorithms local … makes them.";
    return;
  }
  const main = compared.find((run) => run.method === data.lead) || compared[0];
  fill($("gain-run"), compared.map((run) => [nameOf(run), called(run)]), nameOf(main));
  const view = draw("gain-chart", () => {
    const run = runOf($("gain-run").value), partition = data.partitions[run.seed], order = ordered(run);
    const count = (test) => run.gain.filter(test).length;
    const [better, worse] = [count((each) => each > data.measure.level), count((each) => each < -data.measure.level)];
    $("gain-note").textContent =
      `${data.measure.name[0].toUpperCase()}${data.measure.name.slice(1)} after the last round, compared with the same client training alone. With ${nameOf(run)}, ${better} of ${run.gain.length} clients gained, ` +
      `${worse} lost and ${run.gain.length - better - worse} stayed level. A client with few test samples moves in big steps.`;
    const { label, room, every } = clientLabels(partition);
    return {
      grid: { left: 52, right: 18, top: 30, bottom: 46 + room },
      xAxis: axis({ type: "category", data: order.map(String), axisLabel: { ...label, rotate: room ? 90 : 0, interval: every(order.length, $("gain-chart").clientWidth / 22) }, name: "client, from the one that gained most", ...below, nameGap: 28 + room }),
      yAxis: axis({ type: "value", name: data.measure.gains, nameTextStyle: { align: "left", color: style("--soft") } }),
      tooltip: tooltip({ trigger: "axis", axisPointer: { type: "shadow" }, formatter: ([point]) => {
        const client = Number(point.name), local = run.final[client] - data.measure.sign * run.gain[client];
        return tip(clientName(client, partition), [["", nameOf(run), reading(run.final[client])], ["", "alone", reading(local)], ["", "difference", gained(run.gain[client])]]);
      } }),
      series: [{ type: "bar", barCategoryGap: "30%", data: order.map((client) => ({ value: run.gain[client], itemStyle: { color: style(run.gain[client] < 0 ? "--bad" : "--good") } })) }],
    };
  }, rows);
  view.chart.on("click", ({ name }) => choose(Number(name)));
  on("gain-run", "change", view.redraw);

  function ordered(run) { return [...run.gain.keys()].sort((one, two) => run.gain[two] - run.gain[one] || one - two); }

  function rows() {
    const run = runOf($("gain-run").value);
    return [["run", "client", data.measure.gains], ...ordered(run).map((client) => [nameOf(run), nameOfClient(client, data.partitions[run.seed]), run.gain[client]])];
  }
}
