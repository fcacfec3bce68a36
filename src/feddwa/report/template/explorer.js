// Who helps whom: the weights of a run as a map and as a graph, round by round, and one client looked at closely.

function explorer() {
  const FAINT = 0.005; // links weaker than this are not drawn
  const withWeights = data.runs.filter((run) => run.frames.length);
  if (!withWeights.length) {
    $("explorer").hidden = true;
    return;
  }
  const main = withWeights.find((run) => run.method === data.lead) || withWeights[0];
  const present = main.frames.at(-1).cohort;
  let run = main, frame = main.frames.length - 1, client = present ? present[0] : 0, timer = null, order = [], weights = new Map();
  fill($("run"), withWeights.map((each) => [data.runs.indexOf(each), nameOf(each)]), data.runs.indexOf(main));
  fill($("client"), [...Array(data.clients).keys()].map((each) => [each, nameOfClient(each, partition())]), client);

  choose();
  const views = [draw("map-chart", map), draw("graph-chart", graph), draw("flow-chart", flow)];
  const own = [draw("client-data", clientData), draw("client-curve", clientCurve)];
  views[0].chart.on("click", (event) => pick(order[order.length - 1 - event.value[1]]));
  views[1].chart.on("click", (event) => event.dataType === "node" && pick(Number(event.name)));
  views[2].chart.getZr().on("click", (event) => {
    const round = views[2].chart.convertFromPixel({ xAxisIndex: 0 }, event.offsetX);
    stop();
    go(run.frames.reduce((best, each, i) => (Math.abs(each.round - round) < Math.abs(run.frames[best].round - round) ? i : best), 0));
  });
  $("run").addEventListener("change", () => { run = data.runs[$("run").value]; choose(); go(Math.min(frame, run.frames.length - 1)); });
  $("order").addEventListener("change", () => { sort(); show(); });
  $("client").addEventListener("change", () => pick(Number($("client").value)));
  $("round").addEventListener("input", () => { stop(); go(Number($("round").value)); });
  $("play").addEventListener("click", () => (timer ? stop() : play()));
  go(frame);

  function partition() { return data.partitions[run.seed]; }
  function groups() { return partition() && partition().groups; }

  // Another run: other orders, other rounds.
  function choose() {
    const count = new Set(run.clusters).size;
    const ways = [["number", "client"], ["cluster", `discovered cluster (${count})`]];
    if (groups()) ways.unshift(["group", `true group (${new Set(groups()).size})`]);
    const kept = ways.some(([way]) => way === $("order").value) ? $("order").value : ways[0][0];
    fill($("order"), ways, kept);
    $("round").max = run.frames.length - 1;
    sort();
  }

  function labels() { return { group: groups(), cluster: run.clusters }[$("order").value] || null; }

  function sort() {
    const label = labels();
    order = [...Array(data.clients).keys()];
    if (label) order.sort((one, two) => label[one] - label[two] || one - two);
  }

  function go(place) {
    frame = place;
    $("round").value = place;
    weights = decode(run.frames[place]);
    const { round, cohort } = run.frames[place];
    $("round-text").value = `after round ${round} of ${run.frames.at(-1).round}`;
    $("round").setAttribute("aria-valuetext", $("round-text").value);
    const away = cohort ? `${data.clients - cohort.length} clients took no part in this round and kept their models: their rows are empty. ` : "";
    const rounds = data.step > 1 ? `To keep this file small it has every ${data.step}. round. ` : "";
    const few = data.partners ? `Only each client's ${data.partners} strongest partners are shown. ` : "";
    const odd = [...weights.values()].some((row) => [...row.values()].some((w) => w < 0)) ? "Orange squares are negative weights. " : "";
    const lines = crowded() ? "There are too many links to draw: the circle shows those of the chosen client. " : "";
    const colours = `Colours on the circle are the ${groups() ? "true groups" : "discovered clusters"}. `;
    $("explorer-note").textContent = colours + lines + away + rounds + few + odd;
    show();
  }

  function show() { views.forEach((view) => view.redraw()); details(); }
  function pick(chosen) { client = chosen; $("client").value = chosen; views[0].redraw(); views[1].redraw(); details(); }

  function play() {
    if (frame === run.frames.length - 1) go(0);
    const pace = Math.max(120, Math.min(500, 12000 / run.frames.length));
    timer = setInterval(() => (frame < run.frames.length - 1 ? go(frame + 1) : stop()), pace);
    $("play").textContent = "❚❚ Pause";
    $("play").setAttribute("aria-label", "Pause");
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    $("play").textContent = "▶ Play";
    $("play").setAttribute("aria-label", "Play the rounds");
  }

  // client -> Map(partner -> weight) of everybody who took part; see _frame in collect.py.
  function decode({ cohort, rows }) {
    const who = (place) => (cohort ? cohort[place] : place);
    return new Map(rows.map(([places, codes], i) => [
      who(i), new Map(codes.map((code, j) => [who(places ? places[j] : j), (Math.sign(code) * code * code) / 65025])),
    ]));
  }

  // More lines than anybody can tell apart, as where all clients weight all others: too many, or too thick together.
  function crowded() {
    let links = 0, thick = 0;
    weights.forEach((row, i) => row.forEach((weight, j) => {
      if (i !== j && weight >= FAINT) links++, (thick += thickness(weight));
    }));
    return links > 1000 || thick > 2000;
  }

  function thickness(weight) { return 0.5 + 7 * weight; }

  function borders() {
    const label = labels();
    return (i) => Boolean(label) && i > 0 && i < order.length && label[order[i]] !== label[order[i - 1]];
  }

  function map() {
    const last = order.length - 1, place = new Map(order.map((each, i) => [each, i])); // rows count from the top
    const small = order.length <= 60; // then empty squares can be pointed at, too
    const cells = [];
    weights.forEach((row, i) => {
      const columns = small ? [...weights.keys()] : [...row.keys()];
      columns.forEach((j) => {
        const weight = row.get(j) || 0;
        cells.push({ value: [place.get(j), last - place.get(i), Math.sqrt(Math.max(0, Math.min(1, weight))), weight],
          itemStyle: weight < 0 ? { color: style("--bad") } : {} });
      });
    });
    const { label, room } = clientLabels(partition());
    const side = {
      type: "category", axisLine: { show: false }, splitLine: { show: false },
      axisLabel: { ...label, fontSize: 11, interval: order.length > 24 ? Math.ceil(order.length / 12) - 1 : "auto", color: (value) => (Number(value) === client ? style("--bad") : style("--soft")) },
    };
    const gap = borders(), cuts = order.map((_, i) => i).filter(gap);
    return {
      grid: { left: 52 + room, right: 12, top: 12, bottom: 84 + room },
      xAxis: axis({ ...side, axisLabel: { ...side.axisLabel, rotate: room ? 90 : 0 }, data: order.map(String), name: "whose model (column)", ...below, nameGap: 26 + room }),
      yAxis: axis({ ...side, data: order.map(String).reverse(), name: "whose new model (row)", nameLocation: "middle", nameGap: 34 + room }),
      visualMap: {
        min: 0, max: 1, dimension: 2, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 10, calculable: false,
        text: ["100 %", "weight 0"], textStyle: { color: style("--soft") }, inRange: { color: ramp() }, hoverLink: false,
      },
      tooltip: tooltip({
        formatter: ({ value }) => tip(`new model of client ${nameOfClient(order[last - value[1]], partition())}`, [["", `from client ${nameOfClient(order[value[0]], partition())}`, percent(100 * value[3])]]),
      }),
      series: [
        { type: "heatmap", data: cells, emphasis: { itemStyle: { borderColor: style("--ink"), borderWidth: 1 } } },
        frames(cuts, cuts, { x: 0, y: last - place.get(client), width: order.length, height: 1 }),
      ],
    };
  }

  function graph() {
    const n = order.length, label = labels(), gap = borders(), paint = groups() || run.clusters;
    const cuts = label ? order.filter((_, i) => gap(i)).length + 1 : 0;
    const size = Math.max(8, Math.min(22, 420 / n));
    const margin = 34 + 0.7 * clientLabels(partition()).room;
    let at = 0;
    const strength = (i, j) => weights.get(i)?.get(j) || 0;
    const nodes = order.map((each, i) => {
      at += gap(i) ? 2 : 1; // a gap of one place between groups
      const angle = (2 * Math.PI * at) / (n + cuts) - Math.PI / 2;
      const away = !weights.has(each);
      return {
        name: String(each), x: Math.cos(angle), y: Math.sin(angle), symbolSize: size,
        itemStyle: { color: groupHue(paint[each]), opacity: away ? 0.25 : 1, borderColor: each === client ? style("--bad") : style("--paper"), borderWidth: each === client ? 3 : 1 },
        label: { show: n <= 60, formatter: () => nameOfClient(each, partition()), width: 90, overflow: "truncate", color: style("--ink"), fontSize: 11, align: margin > 34 ? beside(angle) : "center", verticalAlign: "middle",
          position: [size / 2 + Math.cos(angle) * (size / 2 + 11), size / 2 + Math.sin(angle) * (size / 2 + 11)] },
      };
    });
    // Two corners that nobody sees, or a circle with gaps would be stretched to fill its box.
    nodes.push(...[-1, 1].map((at) => ({ name: `corner ${at}`, x: at, y: at, symbolSize: 0, label: { show: false } })));
    const links = [];
    const many = crowded();
    weights.forEach((row, i) => row.forEach((weight, j) => {
      if (i === j || weight < FAINT || (many && i !== client)) return;
      const mine = i === client;
      links.push({
        source: String(j), target: String(i), value: weight,
        lineStyle: { width: thickness(weight), opacity: Math.min(1, (mine ? 0.35 : 0.12) + 1.5 * weight), curveness: 0.18, color: mine ? style("--bad") : style("--accent") },
      });
    }));
    return {
      tooltip: tooltip({
        formatter: ({ dataType, data: item }) => dataType === "node"
          ? tip(clientName(item.name, partition()), [["", "keeps of its own model", percent(100 * strength(Number(item.name), Number(item.name)))]])
          : tip(`client ${nameOfClient(item.target, partition())} takes from client ${nameOfClient(item.source, partition())}`, [["", "weight", percent(100 * item.value)]]),
      }),
      series: [{ type: "graph", layout: "none", left: margin, right: margin, top: margin, bottom: margin, data: nodes, links, roam: false,
        emphasis: { focus: "adjacency" }, labelLayout: { hideOverlap: false } }],
    };
  }

  // Names go away from the circle, to the left or to the right of it.
  function beside(angle) {
    const side = Math.cos(angle);
    return Math.abs(side) < 0.2 ? "center" : side > 0 ? "left" : "right";
  }

  function flow() {
    const shares = run.flow, known = Boolean(groups());
    $("flow-note").textContent = known
      ? "Of an average client's new model: how much is its own, how much comes from others of its true group, how much from outside. The server does not know the groups."
      : "Of an average client's new model: how much is its own, and how much comes from others.";
    const parts = known
      ? [["its own", 0, "#8a8f98"], ["from its group", 1, hue({ light: "#0072b2", dark: "#4aa8e0" })], ["from outside", 2, style("--bad")]]
      : [["its own", 0, "#8a8f98"], ["from others", 2, hue({ light: "#0072b2", dark: "#4aa8e0" })]];
    const rounds = run.rounds, first = rounds[0], last = rounds.at(-1);
    return {
      legend: { top: 0, left: 44, itemWidth: 12, itemHeight: 12, icon: "roundRect", textStyle: { color: style("--soft") }, selectedMode: false },
      grid: { left: 52, right: 18, top: 30, bottom: 42 },
      xAxis: axis({ type: "value", min: first, max: Math.max(last, first + 1), name: "round", ...below, nameGap: 24, minInterval: 1, splitLine: { show: false } }),
      yAxis: axis({ type: "value", min: 0, max: 100, interval: 50, axisLabel: { formatter: "{value} %" } }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => tip(`round ${points[0].axisValue}`, points.map((point) => [point.color, point.seriesName, percent(point.value[1])])) }),
      series: parts.map(([name, which, color], i) => ({
        name, type: "line", stack: "all", showSymbol: false, color, lineStyle: { width: 0 }, areaStyle: { opacity: 0.75 }, emphasis: { disabled: true },
        data: shares[which].map((share, x) => [rounds[x], 100 * share]),
        markLine: i ? undefined : { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: style("--ink"), type: "solid", width: 2 }, data: [{ xAxis: run.frames[frame].round }] },
      })),
    };
  }

  function details() {
    const row = weights.get(client);
    const partners = row ? [...row].sort((one, two) => two[1] - one[1]).filter(([, weight]) => Math.abs(weight) >= 0.0005) : [];
    const lines = partners.slice(0, 8).map(([who, weight]) => {
      const item = document.createElement("li"), name = document.createElement("span"), bar = document.createElement("div"), value = document.createElement("span");
      name.textContent = who === client ? "itself" : `client ${nameOfClient(who, partition())}`;
      const inner = document.createElement("i");
      inner.style.width = `${Math.max(0, Math.min(100, 100 * weight))}%`;
      if (groups() && who !== client) inner.style.background = groups()[who] === groups()[client] ? style("--accent") : style("--bad");
      if (who === client) inner.style.background = style("--soft");
      bar.append(inner);
      value.textContent = percent(100 * weight);
      item.append(name, bar, value);
      return item;
    });
    if (!row) lines.push(document.createTextNode("It took no part in this round and kept its model."));
    if (partners.length > 8) {
      const more = document.createElement("li");
      more.className = "facts";
      more.textContent = `and ${partners.length - 8} more`;
      lines.push(more);
    }
    $("partners").replaceChildren(...lines);
    const last = run.scores[client].at(-1), part = partition();
    const sizes = part ? `, ${part.train[client]} training and ${part.test[client]} test samples` : "";
    const gain = run.gain ? `, ${gained(run.gain[client])} ${data.measure.sign > 0 ? "over" : "below"} training alone` : "";
    $("client-facts").textContent = `${clientName(client, part)}${sizes}; ${data.measure.name} in the end ${reading(last)}${gain}`;
    own.forEach((view) => view.redraw());
  }

  function clientData() {
    const part = partition();
    if (!part) return { title: { text: "not stored with this run", textStyle: { color: style("--soft"), fontSize: 13, fontWeight: 400 } } };
    const counts = part.counts[client];
    return {
      grid: { left: 40, right: 8, top: 24, bottom: 40 },
      xAxis: axis({ type: "category", data: part.classes, name: "class", ...below, nameGap: 24 }),
      yAxis: axis({ type: "value", name: "samples", minInterval: 1 }),
      tooltip: tooltip({ trigger: "axis", formatter: ([point]) => tip(`class ${point.name}`, [["", "samples", point.value]]) }),
      series: [{ type: "bar", data: counts, color: style("--accent"), barCategoryGap: "25%" }],
    };
  }

  function clientCurve() {
    const alone = data.runs.find((each) => each.seed === run.seed && each !== run && data.methods[each.method].name === "Local");
    const line = (each) => ({
      name: data.methods[each.method].name, type: "line", showSymbol: false, color: hue(data.methods[each.method]),
      lineStyle: { width: 2, type: data.methods[each.method].dash }, emphasis: { disabled: true }, connectNulls: true, data: each.scores[client].map((y, x) => [x, y]),
    });
    return {
      legend: { top: 0, right: 0, itemWidth: 18, itemHeight: 2, icon: "rect", textStyle: { color: style("--soft") }, selectedMode: false },
      grid: { left: 40, right: 10, top: 24, bottom: 40 },
      xAxis: axis({ type: "value", name: "finished rounds", ...below, nameGap: 24, minInterval: 1, max: "dataMax", splitLine: { show: false } }),
      yAxis: axis(data.measure.unit ? { type: "value", min: 0, max: 100, interval: 25, axisLabel: { formatter: "{value} %" } } : { type: "value", scale: true }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => tip(`after round ${points[0].axisValue}`, points.map((point) => [point.color, point.seriesName, reading(point.value[1])])) }),
      series: [line(run), ...(alone ? [line(alone)] : [])],
    };
  }
}
