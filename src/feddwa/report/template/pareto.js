// What the methods have reached against what they have cost.

function pareto(id, cost, title, unit) {
  const compared = data.methods.filter((method) => method.compared && method.last !== null);
  $(id).hidden = !compared.length;
  $("pareto-none").hidden = compared.length > 0;
  if (!compared.length) return;
  draw(id, (chart) => {
    const points = compared.map((method) => ({ method, x: method[cost], y: method.last }));
    const least = Math.min(...points.filter(({ x }) => x > 0).map(({ x }) => x)), most = Math.max(...points.map(({ x }) => x));
    const free = least / Math.max(2, (most / least) ** 0.35); // where what costs nothing is drawn, for a logarithm has no zero
    points.forEach((point) => (point.at = point.x > 0 ? point.x : free));
    const front = [...points].sort((one, two) => one.at - two.at || data.measure.sign * (two.y - one.y))
      .filter((point, i, sorted) => sorted.slice(0, i).every((other) => data.measure.sign * (point.y - other.y) > 0));
    const nothing = points.some(({ x }) => !x);
    const room = Math.max(1.2, (most / (nothing ? free : least)) ** 0.12);
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
  }, () => [["method", `${title} (${{ bytes: "bytes", flops: "FLOP", seconds: "s" }[cost]})`, data.measure.name], ...compared.map((method) => [method.name, method[cost], method.last])]);

  function ticks(free, least, most) {
    const middle = Math.sqrt(least * most);
    const inner = most / least > 3 ? [least, middle, most] : [least, most];
    return free === null ? inner : [free, ...inner];
  }
}
