// One client: its data, its partners over the rounds, how good its model is under each method.

const chosen = { // the client that is looked at, and its run; whoever draws it listens
  client: 0, run: "", listeners: {},
  listen(whose, listener) { this.listeners[whose] = listener; },
  tell(whose) { Object.entries(this.listeners).forEach(([name, listener]) => (!whose || name === whose) && listener()); },
};

function choose(client) {
  chosen.client = client;
  chosen.tell();
}

// Another run is looked at.
function follow(name) {
  chosen.run = name;
  $("client-run").value = name;
  chosen.tell("client");
}

function oneClient() {
  const PARTNERS = 6; // with a colour of their own
  const main = data.runs.find((run) => run.method === data.lead && run.frames.length) || data.runs[data.runs.findIndex((run) => run.method === data.lead)];
  fill($("client-run"), data.runs.map((run) => [nameOf(run), called(run)]), nameOf(main));
  chosen.run = $("client-run").value;
  const run = () => runOf(chosen.run), part = () => data.partitions[run().seed], name = (client) => nameOfClient(client, part());
  const same = () => data.runs.filter((each) => each.seed === run().seed);
  if (!again) chosen.client = main.frames.length && main.frames.at(-1).cohort ? main.frames.at(-1).cohort[0] : 0;
  $("names").replaceChildren(...run().scores.map((_, client) => new Option(name(client), name(client))));
  const views = [draw("client-partners", partners, partnerRows), draw("client-data", counts, dataRows), draw("client-curve", curve, curveRows)];
  on("client-run", "change", () => follow($("client-run").value));
  on("client", "change", search);
  on("client", "focus", () => $("client").select());
  chosen.listen("client", show);
  show();

  // The client of this name, or the first whose name has these letters.
  function search() {
    const wanted = $("client").value.trim().toLowerCase(), names = run().scores.map((_, client) => name(client).toLowerCase());
    const exact = names.indexOf(wanted), found = exact < 0 && wanted ? names.findIndex((each) => each.includes(wanted)) : exact;
    $("unknown").textContent = found < 0 ? `no client has “${$("client").value}” in its name` : "";
    if (found >= 0) choose(found);
  }

  function show() {
    chosen.client = Math.min(chosen.client, run().scores.length - 1);
    if (document.activeElement !== $("client")) $("client").value = name(chosen.client);
    facts();
    bars();
    table();
    views.forEach((view) => view.redraw());
  }

  function facts() {
    const { client } = chosen, own = part(), gain = run().gain?.[client];
    const sizes = own ? `, ${own.train[client]} training and ${own.test[client]} test samples` : "";
    const alone = gain === null || gain === undefined ? "" : `, ${gained(gain)} ${data.measure.sign > 0 ? "over" : "below"} training alone`;
    $("client-facts").textContent = `${clientName(client, own)}${sizes}; with ${called(run())} its ${data.measure.name} in the end is ${reading(run().final[client])}${alone}`;
  }

  // What its model was made of in the round that the map shows.
  function bars() {
    const { frames } = run(), frame = frames.findLast((each) => looked.round === null || each.round <= looked.round) || frames[0];
    $("partners-title").textContent = frame ? `Its new model is made of, round ${frame.round}` : "Its new model is made of";
    if (!frame) return $("partners").replaceChildren(document.createTextNode("No weights are stored with this run."));
    const row = rowOf(frame), { client } = chosen, groups = part() && part().groups;
    if (!row) return $("partners").replaceChildren(document.createTextNode("It took no part in this round and kept its model."));
    const found = [...row].sort((one, two) => two[1] - one[1]).filter(([, weight]) => Math.abs(weight) >= 0.0005), most = Math.max(...found.map(([, weight]) => weight));
    const items = found.slice(0, 8).map(([who, weight]) => {
      const item = document.createElement("li"), label = document.createElement("span"), bar = document.createElement("div"), value = document.createElement("span"), inner = document.createElement("i");
      label.textContent = label.title = who === client ? "itself" : `client ${name(who)}`;
      inner.style.width = `${Math.max(0, (100 * weight) / most)}%`;
      if (groups && who !== client) inner.style.background = groups[who] === groups[client] ? style("--accent") : style("--bad");
      if (who === client) inner.style.background = style("--soft");
      bar.append(inner);
      value.textContent = percent(100 * weight);
      item.append(label, bar, value);
      return item;
    });
    if (found.length > 8) {
      const more = document.createElement("li");
      more.className = "more facts";
      more.textContent = `and ${found.length - 8} more with ${percent(100 * found.slice(8).reduce((sum, [, weight]) => sum + weight, 0))} in all`;
      items.push(more);
    }
    $("partners").replaceChildren(...items);
  }

  function rowOf({ cohort, rows }) {
    const place = cohort ? cohort.indexOf(chosen.client) : chosen.client;
    return place < 0 || !rows[place] ? null : partnersOf(rows[place], (other) => (cohort ? cohort[other] : other));
  }

  // [round, Map(partner -> weight)] of the rounds that it took part in.
  function history() { return run().frames.map((frame) => [frame.round, rowOf(frame)]).filter(([, row]) => row); }

  function strongest() {
    const sums = new Map();
    history().forEach(([, row]) => row.forEach((weight, who) => sums.set(who, (sums.get(who) || 0) + Math.abs(weight))));
    sums.delete(chosen.client);
    return [...sums].sort((one, two) => two[1] - one[1]).slice(0, PARTNERS).map(([who]) => who);
  }

  function nothing(text) { return { title: { text, textStyle: { color: style("--soft"), fontSize: 13, fontWeight: 400 } } }; }

  function partners() {
    const rounds = history(), best = strongest();
    if (!rounds.length) return nothing("no weights are stored with this run");
    const rest = (row) => [...row].reduce((sum, [who, weight]) => sum + (who === chosen.client || best.includes(who) ? 0 : weight), 0);
    const parts = [["itself", (row) => row.get(chosen.client) || 0, "#8a8f98"], ...best.map((who, i) => [name(who), (row) => row.get(who) || 0, GROUPS[i]]), ["others", rest, style("--line")]];
    return {
      legend: { type: "scroll", top: 0, left: 40, right: 8, itemWidth: 12, itemHeight: 12, icon: "roundRect", textStyle: { color: style("--soft") }, selectedMode: false },
      grid: { left: 48, right: 10, top: 32, bottom: 40 },
      xAxis: axis({ type: "value", name: "round", ...below, nameGap: 24, minInterval: 1, min: rounds[0][0], max: Math.max(rounds.at(-1)[0], rounds[0][0] + 1), splitLine: { show: false } }),
      yAxis: axis({ type: "value", max: data.partners ? undefined : 100, axisLabel: { formatter: (value) => percent(value, 0) } }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => tip(`round ${points[0].axisValue}`, points.map((point) => [point.color, point.seriesName, percent(point.value[1])])) }),
      series: parts.map(([label, weight, color]) => ({ name: label, type: "line", stack: "all", showSymbol: rounds.length === 1, color, lineStyle: { width: 0 }, areaStyle: { opacity: 0.8 }, emphasis: { disabled: true },
        data: rounds.map(([round, row]) => [round, 100 * weight(row)]) })),
    };
  }

  function counts() {
    const own = part();
    if (!own) return nothing("not stored with this run");
    return {
      grid: { left: 44, right: 8, top: 24, bottom: 40 },
      xAxis: axis({ type: "category", data: own.classes, name: "class", ...below, nameGap: 24 }),
      yAxis: axis({ type: "value", name: "samples", minInterval: 1 }),
      tooltip: tooltip({ trigger: "axis", formatter: ([point]) => tip(`class ${point.name}`, [["", "samples", point.value]]) }),
      series: [{ type: "bar", data: own.counts[chosen.client], color: style("--accent"), barCategoryGap: "25%" }],
    };
  }

  function curve() {
    const lines = same().map((each) => {
      const method = data.methods[each.method];
      return { name: titled(method), type: "line", showSymbol: each.scores[chosen.client].length === 1, color: hue(method), z: each === run() ? 5 : 3, lineStyle: { width: each === run() ? 3 : 1.5, type: method.dash },
        emphasis: { disabled: true }, connectNulls: true, data: each.scores[chosen.client].map((y, x) => [x, y]) };
    });
    return {
      legend: { type: "scroll", top: 0, left: 40, right: 8, itemWidth: 18, itemHeight: 2, icon: "rect", textStyle: { color: style("--soft") }, selectedMode: false },
      grid: { left: 48, right: 10, top: 32, bottom: 40 },
      xAxis: axis({ type: "value", name: "finished rounds", ...below, nameGap: 24, minInterval: 1, max: "dataMax", splitLine: { show: false } }),
      yAxis: axis(data.measure.unit ? { type: "value", min: 0, max: 100, interval: 25, axisLabel: { formatter: "{value} %" } } : { type: "value", scale: true }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => tip(`after round ${points[0].axisValue}`, points.map((point) => [point.color, point.seriesName, reading(point.value[1])])) }),
      series: lines,
    };
  }

  function table() {
    const head = document.createElement("tr"), cells = (line, texts, kind) => texts.forEach((text) => (line.append(Object.assign(document.createElement(kind), { textContent: text }))));
    cells(head, ["method", data.measure.head, data.measure.gains], "th");
    const lines = same().map((each) => {
      const line = document.createElement("tr"), gain = each.gain?.[chosen.client];
      cells(line, [titled(data.methods[each.method]), each.final[chosen.client] === null || each.final[chosen.client] === undefined ? "–" : data.measure.unit ? fixed(each.final[chosen.client], 2) : plain(each.final[chosen.client]),
        gain === null || gain === undefined ? "" : data.measure.unit ? `${gain >= 0 ? "+" : ""}${fixed(gain, 2)}` : plain(gain)], "td");
      return line;
    });
    const [top, body] = ["thead", "tbody"].map((kind) => document.createElement(kind));
    top.append(head);
    body.append(...lines);
    $("client-table").replaceChildren(top, body);
  }

  function partnerRows() { return [["client", "round", "takes from", "weight"], ...history().flatMap(([round, row]) => [...row].map(([who, weight]) => [name(chosen.client), round, name(who), Number(weight.toPrecision(4))]))]; }
  function dataRows() { return [["client", "class", "samples"], ...(part() ? part().classes.map((each, i) => [name(chosen.client), each, part().counts[chosen.client][i]]) : [])]; }
  function curveRows() { return [["client", "method", "finished rounds", data.measure.name], ...same().flatMap((each) => each.scores[chosen.client].map((value, x) => [name(chosen.client), titled(data.methods[each.method]), x, value]))]; }
}
