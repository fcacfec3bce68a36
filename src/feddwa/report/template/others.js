// The gain of every client, who has which data, and what accuracy costs.

function gain() {
  const compared = data.runs.filter((run) => run.gain);
  if (!compared.length) {
    $("gain-note").textContent = "There is nothing to compare: of the same seed, a run of Local (each client trains alone) and one of another method are needed, and neither may have failed. feddwa compare --algorithms local … makes them.";
    $("gain-chart").hidden = true;
    $("gain-run").closest(".controls").hidden = true;
    return;
  }
  const main = compared.find((run) => run.method === data.lead) || compared[0];
  fill($("gain-run"), compared.map((run) => [data.runs.indexOf(run), nameOf(run)]), data.runs.indexOf(main));
  const view = draw("gain-chart", () => {
    const run = data.runs[$("gain-run").value], partition = data.partitions[run.seed];
    const order = [...run.gain.keys()].sort((one, two) => run.gain[two] - run.gain[one] || one - two);
    const count = (test) => run.gain.filter(test).length;
    const [better, worse] = [count((each) => each > data.measure.level), count((each) => each < -data.measure.level)];
    $("gain-note").textContent =
      `${data.measure.name[0].toUpperCase()}${data.measure.name.slice(1)} after the last round, compared with the same client training alone. With ${nameOf(run)}, ${better} of ${run.gain.length} clients gained, ` +
      `${worse} lost and ${run.gain.length - better - worse} stayed level. A client with few test samples moves in big steps.`;
    const { label, room } = clientLabels(partition);
    return {
      grid: { left: 52, right: 18, top: 30, bottom: 46 + room },
      xAxis: axis({ type: "category", data: order.map(String), axisLabel: { ...label, rotate: room ? 90 : 0 }, name: "client, from the one that gained most", ...below, nameGap: 28 + room }),
      yAxis: axis({ type: "value", name: data.measure.gains, nameTextStyle: { align: "left", color: style("--soft") } }),
      tooltip: tooltip({ trigger: "axis", axisPointer: { type: "shadow" }, formatter: ([point]) => {
        const client = Number(point.name), local = run.scores[client].at(-1) - data.measure.sign * run.gain[client];
        return tip(clientName(client, partition), [["", nameOf(run), reading(run.scores[client].at(-1))], ["", "alone", reading(local)], ["", "difference", gained(run.gain[client])]]);
      } }),
      series: [{ type: "bar", barCategoryGap: "30%", data: order.map((client) => ({ value: run.gain[client], itemStyle: { color: style(run.gain[client] < 0 ? "--bad" : "--good") } })) }],
    };
  });
  $("gain-run").addEventListener("change", view.redraw);
}

function partitions() {
  const known = Object.keys(data.partitions);
  if (!known.length) {
    $("data").hidden = true;
    return;
  }
  fill($("data-seed"), known.map((seed) => [seed, seed]), known[0]);
  const { counts } = data.partitions[known[0]];
  $("data-chart").style.height = `${Math.min(760, 130 + 16 * counts.length)}px`;
  const view = draw("data-chart", () => {
    const part = data.partitions[$("data-seed").value];
    const order = [...part.counts.keys()];
    if (part.groups) order.sort((one, two) => part.groups[one] - part.groups[two] || one - two);
    const most = Math.max(...part.counts.flat());
    const last = order.length - 1;
    const cells = order.flatMap((client, i) => part.counts[client].map((count, x) => [x, last - i, count]));
    const cuts = part.groups ? order.map((_, i) => i).filter((i) => i > 0 && part.groups[order[i]] !== part.groups[order[i - 1]]) : [];
    const { label, room } = clientLabels(part);
    return {
      grid: { left: 52 + room, right: 12, top: 12, bottom: 96 },
      xAxis: axis({ type: "category", data: part.classes, name: "class", ...below, splitLine: { show: false } }),
      yAxis: axis({ type: "category", data: order.map(String).reverse(), axisLabel: label, name: "client", nameLocation: "middle", nameGap: 34 + room, splitLine: { show: false } }),
      visualMap: { min: 0, max: most, orient: "horizontal", left: "center", bottom: 0, itemHeight: 140, itemWidth: 10, calculable: false, hoverLink: false,
        text: [`${most} samples`, "0"], textStyle: { color: style("--soft") }, inRange: { color: ramp() } },
      tooltip: tooltip({ formatter: ({ value }) => {
        const client = order[last - value[1]];
        return tip(clientName(client, part), [["", `samples of ${part.classes.length > 1 ? "class " : ""}${part.classes[value[0]]}`, value[2]], ["", "of", `${part.train[client]} to train, ${part.test[client]} to test`]]);
      } }),
      series: [{ type: "heatmap", data: cells, itemStyle: { borderColor: style("--paper"), borderWidth: 1 }, progressive: 0 }, frames([], cuts)],
    };
  });
  $("data-seed").addEventListener("change", view.redraw);
}

function pareto(id, cost, title, unit) {
  if (!data.methods.some((method) => method.sound)) {
    $(id).hidden = true;
    return;
  }
  draw(id, (chart) => {
    const points = data.methods.filter((method) => method.sound).map((method) => ({ method, x: method[cost], y: method.mean.filter((each) => each !== null).at(-1) }));
    const least = Math.min(...points.filter(({ x }) => x > 0).map(({ x }) => x)), most = Math.max(...points.map(({ x }) => x));
    const free = least / Math.max(2, (most / least) ** 0.35); // where what costs nothing is drawn, for a logarithm has no zero
    points.forEach((point) => (point.at = point.x > 0 ? point.x : free));
    const front = [...points].sort((one, two) => one.at - two.at || data.measure.sign * (two.y - one.y))
      .filter((point, i, sorted) => sorted.slice(0, i).every((other) => data.measure.sign * (point.y - other.y) > 0));
    const nothing = points.some(({ x }) => !x);
    const room = (most / (nothing ? free : least)) ** 0.12 || 1.2;
    const narrow = points.length > 6; // names of those on the line only; the others are told by pointing at them
    return {
      title: { text: title, left: 0, textStyle: { color: style("--soft"), fontSize: 13, fontWeight: 600 } },
      grid: { left: 40, right: 16, top: 44, bottom: 34 },
      xAxis: axis({ type: "log", min: (nothing ? free : least) / room, max: most * room, axisLabel: {
        formatter: unit, customValues: ticks(nothing ? free : null, least, most), hideOverlap: true, ...(nothing ? { formatter: (value) => (value <= free * 1.001 ? "0" : unit(value)) } : {}) },
        splitLine: { show: false } }),
      yAxis: axis({ type: "value", scale: true, boundaryGap: ["8%", "8%"], axisLabel: { formatter: `{value}${data.measure.unit}` } }),
      tooltip: tooltip({ formatter: ({ data: item }) => item.method && tip(item.method.name, [["", data.measure.name, reading(item.value[1])], ["", title, unit(item.x)]]) }),
      series: [
        { type: "line", data: front.map(({ at, y }) => [at, y]), showSymbol: false, silent: true, color: style("--soft"), lineStyle: { width: 1, type: "dotted" }, z: 1 },
        { type: "scatter", symbolSize: 12, data: points.map(({ method, x, y, at }) => ({
          value: [at, y], method, x, itemStyle: { color: hue(method) },
          label: { show: !narrow || front.some((each) => each.method === method), formatter: method.name, position: at > most / room ** 3 ? "left" : "right", color: style("--ink"), fontSize: 11 },
        })), labelLayout: { hideOverlap: true, moveOverlap: "shiftY" } },
      ],
    };
  });

  function ticks(free, least, most) {
    const middle = Math.sqrt(least * most);
    const inner = most / least > 3 ? [least, middle, most] : [least, most];
    return free === null ? inner : [free, ...inner];
  }
}

function copying() {
  document.querySelectorAll("button[data-copy]").forEach((button) =>
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText($(button.dataset.copy).textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren($(button.dataset.copy)); // no clipboard for files in some browsers
      }
    }));
}

themes();
load().then((loaded) => {
  data = loaded;
  curves();
  explorer();
  gain();
  partitions();
  pareto("pareto-bytes", "bytes", "traffic in all", bytes);
  pareto("pareto-flops", "flops", "compute in all", flops);
  pareto("pareto-seconds", "seconds", "time in all", time);
  copying();
  document.documentElement.dataset.ready = "yes";
});
