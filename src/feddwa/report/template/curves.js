// Accuracy, the loss or a metric over the rounds: a line per method, a band over seeds or clients, a button per method.

function curves() {
  const FEW = 6;
  const yardstick = (method) => /^(Local|FedAvg)$/.test(method.name);
  const shown = new Set(data.methods.map((method, i) => (i < FEW - 2 || data.methods.length <= FEW || yardstick(method) ? i : -1)));
  const bands = [["none", "none"], ["spread", "most clients (10th to 90th percentile)"]];
  if (seeds() > 1) bands.splice(1, 0, ["seeds", "seeds (lowest to highest)"]);
  fill($("band"), bands, seeds() > 1 ? "seeds" : "none");
  const metrics = Object.keys(data.methods[0].metrics).filter((name) => data.methods.every((method) => name in method.metrics));
  fill($("shown"), [["", data.measure.name], ...metrics.map((name) => [name, name])], "");
  $("shown-label").hidden = !metrics.length;

  const view = draw("curves-chart", () => option());
  $("band").addEventListener("change", view.redraw);
  $("shown").addEventListener("change", () => {
    $("band").disabled = $("shown").value !== "";
    view.redraw();
  });
  $("methods").replaceChildren(...data.methods.map(chip));
  const all = document.createElement("button");
  all.type = "button";
  all.id = "all-methods";
  $("methods").append(all);
  all.addEventListener("click", () => {
    const full = shown.size - shown.has(-1) === data.methods.length;
    shown.clear();
    if (!full) data.methods.forEach((_, i) => shown.add(i));
    refresh();
  });
  refresh();

  function chip(method, i) {
    const button = document.createElement("button");
    button.type = "button";
    const swatch = document.createElement("i");
    swatch.style.borderTopStyle = method.dash;
    button.append(swatch, method.name);
    button.addEventListener("click", () => {
      shown.has(i) ? shown.delete(i) : shown.add(i);
      refresh();
    });
    return button;
  }

  function refresh() {
    data.methods.forEach((_, i) => $("methods").children[i].setAttribute("aria-pressed", shown.has(i)));
    all.textContent = shown.size - shown.has(-1) === data.methods.length ? "None" : "All";
    view.redraw();
  }

  function option() {
    data.methods.forEach((method, i) => ($("methods").children[i] ? ($("methods").children[i].firstChild.style.color = hue(method)) : 0));
    const band = $("shown").value ? "none" : $("band").value;
    const series = data.methods.flatMap((method, i) => (shown.has(i) ? lines(method, band, i === data.lead) : []));
    const x = axis({ type: "value", name: "finished rounds", ...below, min: 0, max: "dataMax", minInterval: 1 });
    const longest = Math.max(...data.methods.map((method) => method.mean.length)) - 1;
    return {
      grid: { left: 52, right: 18, top: 30, bottom: 46 },
      xAxis: { ...x, max: longest, splitLine: { show: false } },
      yAxis: axis({ type: "value", name: $("shown").value || data.measure.head, nameTextStyle: { align: "left", color: style("--soft") }, scale: true }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => hover(points, band) }),
      series,
    };
  }

  function lines(method, band, leads) {
    const colour = hue(method);
    const main = {
      name: method.name, type: "line", showSymbol: false, z: leads ? 5 : 3, color: colour,
      lineStyle: { width: leads ? 3 : 2, type: method.dash }, connectNulls: true,
      data: ($("shown").value ? method.metrics[$("shown").value] : method.mean).map((y, x) => [x, y]),
      emphasis: { disabled: true },
    };
    if (band === "none") return [main];
    const [low, high] = method[band];
    const edge = { type: "line", stack: `band ${method.name}`, stackStrategy: "all", symbol: "none", silent: true,
      lineStyle: { opacity: 0 }, emphasis: { disabled: true }, z: 1, color: colour, connectNulls: true };
    return [
      { ...edge, name: "band", data: low.map((y, x) => [x, y]) },
      { ...edge, name: "band", areaStyle: { opacity: 0.16 }, data: high.map((y, x) => [x, y === null ? null : y - low[x]]) },
      main,
    ];
  }

  function hover(points, band) {
    const round = points[0].axisValue;
    const rows = points
      .filter((point) => point.seriesName !== "band" && point.value[1] !== null && point.value[1] !== undefined)
      .sort((one, two) => data.measure.sign * (two.value[1] - one.value[1]))
      .map((point) => {
        const method = data.methods.find((each) => each.name === point.seriesName);
        const range = band === "none" ? "" : ` (${method[band].map((side) => written(side[round])).join(" to ")})`;
        return [point.color, point.seriesName, ($("shown").value ? String(point.value[1]) : reading(point.value[1])) + range];
      });
    return tip(round === 0 ? "before the first round" : `after round ${round}`, rows);
  }
}
