// How a method serves its clients: all of them, from the worst served to the best, a line per method.

function clients() {
  $("clients-note").textContent =
    `${data.measure.head[0].toUpperCase()}${data.measure.head.slice(1)} of every client after the last round, from the worst served to the best: at 10, the value that a tenth of the clients do not reach. ` +
    "A line that lies higher serves everybody better; a steep one serves clients unequally. Methods are switched above.";
  draw("clients-chart", option, rows);

  // Of all clients of all seeds the values, worst first.
  function values(method) {
    const own = data.runs.filter((run) => data.methods[run.method] === method).flatMap((run) => run.final.filter((each) => each !== null));
    return own.sort((one, two) => data.measure.sign * (one - two));
  }

  function option() {
    const series = data.methods.filter(({ name }) => shown.has(name)).map((method) => {
      const sorted = values(method);
      return { name: titled(method), type: "line", step: "middle", showSymbol: false, color: hue(method), lineStyle: { width: data.methods.indexOf(method) === data.lead ? 3 : 2, type: method.dash },
        emphasis: { disabled: true }, data: sorted.map((value, i) => [(100 * (i + 0.5)) / sorted.length, value]) };
    });
    return {
      grid: { left: 52, right: 24, top: 30, bottom: 46 },
      xAxis: axis({ type: "value", name: "percent of clients, worst served first", ...below, min: 0, max: 100, splitLine: { show: false } }),
      yAxis: axis({ type: "value", name: data.measure.head, nameTextStyle: { align: "left", color: style("--soft") }, scale: !data.measure.unit }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => tip(`${fixed(points[0].axisValue, 0)} % of clients have at most`, points.map((point) => [point.color, point.seriesName, reading(point.value[1])])) }),
      series,
    };
  }

  function rows() {
    const named = (run, client) => nameOfClient(client, data.partitions[run.seed]);
    return [["method", "seed", "client", data.measure.name, "over Local"],
      ...data.runs.flatMap((run) => run.final.map((value, client) => [titled(data.methods[run.method]), run.seed, named(run, client), value, run.gain?.[client]]))];
  }
}
