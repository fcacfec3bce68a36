// Who has which data.

function partitions() {
  const known = Object.keys(data.partitions);
  $("data").hidden = !known.length;
  if (!known.length) return;
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
    const { label, room, every } = clientLabels(part);
    return {
      grid: { left: 52 + room, right: 12, top: 12, bottom: 96 },
      xAxis: axis({ type: "category", data: part.classes, name: "class", ...below, splitLine: { show: false } }),
      yAxis: axis({ type: "category", data: order.map(String).reverse(), axisLabel: { ...label, interval: every(order.length, 40) }, name: "client", nameLocation: "middle", nameGap: 34 + room, splitLine: { show: false } }),
      visualMap: { min: 0, max: most, orient: "horizontal", left: "center", bottom: 0, itemHeight: 140, itemWidth: 10, calculable: false, hoverLink: false,
        text: [`${most} samples`, "0"], textStyle: { color: style("--soft") }, inRange: { color: ramp() } },
      tooltip: tooltip({ formatter: ({ value }) => {
        const client = order[last - value[1]];
        return tip(clientName(client, part), [["", `samples of ${part.classes.length > 1 ? "class " : ""}${part.classes[value[0]]}`, value[2]], ["", "of", `${part.train[client]} to train, ${part.test[client]} to test`]]);
      } }),
      series: [{ type: "heatmap", data: cells, itemStyle: { borderColor: style("--paper"), borderWidth: order.length > 100 ? 0 : 1 }, progressive: 0 }, frames([], cuts, order.length)],
    };
  }, rows);
  view.chart.on("click", ({ value }) => value && choose(Number(view.chart.getOption().yAxis[0].data[value[1]])));
  on("data-seed", "change", view.redraw);

  function rows() {
    const part = data.partitions[$("data-seed").value];
    return [["client", "group", "train", "test", ...part.classes.map((name) => `class ${name}`)], ...part.counts.map((own, client) => [part.names[client], part.groups ? part.groups[client] + 1 : "", part.train[client], part.test[client], ...own])];
  }
}
