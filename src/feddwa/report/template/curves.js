// Accuracy, the loss or a metric over rounds or costs: a line per method, a band over seeds, a button per method.

const shown = new Set(); // names of the methods that are drawn

function curves() {
  const FEW = 6;
  const axes = {
    rounds: ["finished rounds", String], bytes: ["traffic so far, all clients", bytes],
    flops: ["compute so far, all clients", flops], seconds: ["time so far", time],
  };
  if (!again) data.methods.filter(usual).forEach((method) => shown.add(method.name));
  const names = Object.keys(data.methods[0].curves).filter((name) => data.methods.every((method) => name in method.curves));
  fill($("shown"), names.map((name) => [name, name]), data.measure.name);
  fill($("against"), [["rounds", "rounds"], ["bytes", "traffic"], ["flops", "compute"], ["seconds", "time"]], "rounds");
  fill($("band"), seeds() > 1 ? [["none", "none"], ["seeds", "seeds (lowest to highest)"]] : [["none", "none"]], seeds() > 1 ? "seeds" : "none");
  const all = document.createElement("button");
  $("methods").replaceChildren(...data.methods.map(chip), all);
  const view = draw("curves-chart", option, rows);
  ["shown", "against", "band"].forEach((id) => on(id, "change", view.redraw));
  all.type = "button";
  all.id = "all-methods";
  all.addEventListener("click", () => {
    const full = data.methods.every(({ name }) => shown.has(name));
    data.methods.forEach(({ name }) => (full ? shown.delete(name) : shown.add(name)));
    refresh();
  });
  refresh();

  function usual(method, i) { return i < FEW - 2 || data.methods.length <= FEW || /^(Local|FedAvg)$/.test(method.name); }

  function chip(method) {
    const button = document.createElement("button");
    button.type = "button";
    const swatch = document.createElement("i");
    swatch.style.borderTopStyle = method.dash;
    button.append(swatch, titled(method));
    button.addEventListener("click", () => {
      shown.has(method.name) ? shown.delete(method.name) : shown.add(method.name);
      refresh();
    });
    return button;
  }

  function refresh() {
    data.methods.forEach(({ name }, i) => $("methods").children[i].setAttribute("aria-pressed", shown.has(name)));
    all.textContent = data.methods.every(({ name }) => shown.has(name)) ? "None" : "All";
    view.redraw();
    drawn.has("clients-chart") && redraw(drawn.get("clients-chart"));
  }

  function told(value) {
    const own = $("shown").value === data.measure.name || $("shown").value.endsWith(` ${data.measure.name}`);
    return value === null || value === undefined ? "–" : own ? reading(value) : plain(value);
  }

  // [x, y] of every round; what costs nothing has no place on an axis of costs but its last value.
  function points(method, values) {
    const spent = method.spent[$("against").value];
    return values.map((y, x) => [spent ? spent[x] : x, y]);
  }

  function option() {
    data.methods.forEach((method, i) => ($("methods").children[i].firstChild.style.color = hue(method)));
    const drawnNow = data.methods.filter(({ name }) => shown.has(name)), cost = $("against").value !== "rounds";
    const [name, unit] = axes[$("against").value];
    const longest = Math.max(1, ...data.methods.map((method) => method.curves[$("shown").value][0].length - 1));
    const chance = $("shown").value === data.measure.name ? data.chance : null;
    return {
      grid: { left: 52, right: 24, top: 30, bottom: 46 },
      xAxis: axis({ type: "value", name, ...below, min: 0, max: cost ? "dataMax" : longest, minInterval: cost ? 0 : 1, splitLine: { show: false }, axisLabel: { formatter: unit } }),
      yAxis: axis({ type: "value", name: $("shown").value === data.measure.name ? data.measure.head : $("shown").value, nameTextStyle: { align: "left", color: style("--soft") }, scale: true }),
      tooltip: tooltip({ trigger: cost ? "item" : "axis", formatter: (found) => hover([found].flat()) }),
      series: [...drawnNow.flatMap((method) => lines(method)), ...(chance === null || !drawnNow.length ? [] : [guessing(chance)])],
    };
  }

  function guessing(chance) {
    return { name: "guessing", type: "line", data: [], silent: true, markLine: { silent: true, symbol: "none", data: [{ yAxis: chance }],
      label: { formatter: `guessing ${percent(chance)}`, position: "insideEndTop", color: style("--soft") }, lineStyle: { color: style("--soft"), type: "dotted", width: 1.5 } } };
  }

  function lines(method) {
    const colour = hue(method), leads = data.methods.indexOf(method) === data.lead, cost = $("against").value !== "rounds";
    const [mean, low, high] = method.curves[$("shown").value], place = mean.findLastIndex((each) => each !== null);
    const ends = points(method, mean)[place];
    const main = {
      name: method.name, type: "line", showSymbol: cost, symbolSize: 5, z: leads ? 5 : 3, color: colour,
      lineStyle: { width: leads ? 3 : 2, type: method.dash }, connectNulls: true, data: points(method, mean), emphasis: { disabled: true },
      markPoint: marked(method) && ends ? { silent: true, symbol: "circle", symbolSize: 9, data: [{ coord: ends }], itemStyle: { color: style("--paper"), borderColor: colour, borderWidth: 2 },
        label: { formatter: method.mark, position: data.methods.indexOf(method) % 2 ? "bottom" : "top", color: style("--ink"), fontSize: 11, align: place > mean.length / 2 ? "right" : "left" } } : undefined,
    };
    if ($("band").value === "none" || !low || cost) return [main];
    const edge = { type: "line", name: "band", stack: `band ${method.name}`, stackStrategy: "all", symbol: "none", silent: true,
      lineStyle: { opacity: 0 }, emphasis: { disabled: true }, z: 1, color: colour, connectNulls: true };
    return [
      { ...edge, data: points(method, low) },
      { ...edge, areaStyle: { opacity: 0.16 }, data: points(method, high.map((y, x) => (y === null ? null : y - low[x]))) },
      main,
    ];
  }

  function hover(found) {
    const [round, cost] = [found[0].dataIndex, axes[$("against").value]];
    const rows = found
      .filter((point) => point.seriesName !== "band" && point.value[1] !== null && point.value[1] !== undefined)
      .sort((one, two) => data.measure.sign * (two.value[1] - one.value[1]))
      .map((point) => {
        const method = data.methods.find((each) => each.name === point.seriesName), [, low, high] = method.curves[$("shown").value];
        const range = low && $("band").value !== "none" ? ` (${told(low[round])} to ${told(high[round])})` : "";
        return [point.color, titled(method), told(point.value[1]) + range];
      });
    if ($("against").value !== "rounds") rows.push(["", cost[0], cost[1](found[0].value[0])]);
    return tip(round === 0 ? "before the first round" : `after round ${round}`, rows);
  }

  function rows() {
    const head = ["method", "finished rounds", "bytes", "flops", "seconds", "mean", "lowest seed", "highest seed"];
    return [[`# ${$("shown").value}`], head, ...data.methods.filter(({ name }) => shown.has(name)).flatMap((method) => {
      const [mean, low, high] = method.curves[$("shown").value];
      return mean.map((value, x) => [titled(method), x, ...["bytes", "flops", "seconds"].map((cost) => method.spent[cost][x]), value, low?.[x], high?.[x]]);
    })];
  }
}
