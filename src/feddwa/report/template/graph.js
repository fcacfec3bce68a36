// The same weights as a graph: clients on a circle, a line between those who weight one another.

function weightGraph(state) {
  const FAINT = 0.005; // links weaker than this are not drawn
  const view = draw("graph-chart", graph);
  view.chart.on("click", (event) => event.dataType === "node" && state.pick(Number(event.name)));
  return { ...view, crowded };

  // More lines than anybody can tell apart, as where all clients weight all others: too many, or too thick together.
  function crowded() {
    let links = 0, thick = 0;
    state.weights.forEach((row, i) => row.forEach((weight, j) => {
      if (i !== j && weight >= FAINT) links++, (thick += thickness(weight));
    }));
    return links > 1000 || thick > 2000;
  }

  function thickness(weight) { return 0.5 + 7 * weight; }

  function graph() {
    const n = state.order.length, label = state.labels(), gap = state.borders(), paint = state.groups() || state.run.clusters;
    const cuts = label ? state.order.filter((_, i) => gap(i)).length + 1 : 0;
    const size = Math.max(3, Math.min(22, 800 / n));
    const { room } = clientLabels(state.partition()), margin = room ? 30 + Math.min(90, room + 20) : 34;
    let at = 0;
    const strength = (i, j) => state.weights.get(i)?.get(j) || 0;
    const nodes = state.order.map((each, i) => {
      at += gap(i) ? 2 : 1; // a gap of one place between groups
      const angle = (2 * Math.PI * at) / (n + cuts) - Math.PI / 2;
      const away = !state.weights.has(each);
      return {
        name: String(each), x: Math.cos(angle), y: Math.sin(angle), symbolSize: size,
        itemStyle: { color: groupHue(paint[each]), opacity: away ? 0.25 : 1, borderColor: each === state.client ? style("--bad") : style("--paper"), borderWidth: each === state.client ? 3 : n > 60 ? 0 : 1 },
        label: { show: n <= 60, formatter: () => nameOfClient(each, state.partition()), width: 90, overflow: "truncate", color: style("--ink"), fontSize: 11, align: margin > 34 ? beside(angle) : "center", verticalAlign: "middle",
          position: [size / 2 + Math.cos(angle) * (size / 2 + 11), size / 2 + Math.sin(angle) * (size / 2 + 11)] },
      };
    });
    // Two corners that nobody sees, or a circle with gaps would be stretched to fill its box.
    nodes.push(...[-1, 1].map((at) => ({ name: `corner ${at}`, x: at, y: at, symbolSize: 0, label: { show: false } })));
    const links = [];
    const many = crowded();
    state.weights.forEach((row, i) => row.forEach((weight, j) => {
      if (i === j || weight < FAINT || (many && i !== state.client)) return;
      const mine = i === state.client;
      links.push({
        source: String(j), target: String(i), value: weight,
        lineStyle: { width: thickness(weight), opacity: Math.min(1, (mine ? 0.35 : 0.12) + 1.5 * weight), curveness: 0.18, color: mine ? style("--bad") : style("--accent") },
      });
    }));
    return {
      tooltip: tooltip({
        formatter: ({ dataType, data: item }) => dataType === "node"
          ? tip(clientName(item.name, state.partition()), [["", "keeps of its own model", percent(100 * strength(Number(item.name), Number(item.name)))]])
          : tip(`client ${nameOfClient(item.target, state.partition())} takes from client ${nameOfClient(item.source, state.partition())}`, [["", "weight", percent(100 * item.value)]]),
      }),
      series: [{ type: "graph", layout: "none", left: margin, right: margin, top: margin, bottom: margin, data: nodes, links, roam: false,
        emphasis: { focus: "adjacency" }, labelLayout: { hideOverlap: false } }],
    };
  }

  // Names go away from the circle, to the left or to the right of it.
  function beside(angle) {
    const side = Math.cos(angle);
    return Math.abs(side) < 0.08 ? "center" : side > 0 ? "left" : "right";
  }
}
