// How much of clients' models is their own, from their group, from outside, round by round.

function weightFlow(state) {
  const view = draw("flow-chart", flow, rows);
  view.chart.getZr().on("click", (event) => {
    const round = view.chart.convertFromPixel({ xAxisIndex: 0 }, event.offsetX);
    state.stop();
    state.go(state.run.frames.reduce((best, each, i, all) => (Math.abs(each.round - round) < Math.abs(all[best].round - round) ? i : best), 0));
  });
  return view;

  function flow() {
    const shares = state.run.flow, known = Boolean(state.groups());
    $("flow-note").textContent = known
      ? "Of an average client's new model: how much is its own, how much comes from others of its true group, how much from outside. The server does not know the groups."
      : "Of an average client's new model: how much is its own, and how much comes from others.";
    const parts = known
      ? [["its own", 0, "#8a8f98"], ["from its group", 1, hue({ light: "#0072b2", dark: "#4aa8e0" })], ["from outside", 2, style("--bad")]]
      : [["its own", 0, "#8a8f98"], ["from others", 2, hue({ light: "#0072b2", dark: "#4aa8e0" })]];
    const rounds = state.run.rounds, first = rounds[0], last = rounds.at(-1);
    return {
      legend: { type: "scroll", top: 0, left: 44, right: 8, itemWidth: 12, itemHeight: 12, icon: "roundRect", textStyle: { color: style("--soft") }, selectedMode: false },
      grid: { left: 52, right: 18, top: 30, bottom: 42 },
      xAxis: axis({ type: "value", min: first, max: Math.max(last, first + 1), name: "round", ...below, nameGap: 24, minInterval: 1, splitLine: { show: false } }),
      yAxis: axis({ type: "value", min: 0, max: 100, interval: 50, axisLabel: { formatter: "{value} %" } }),
      tooltip: tooltip({ trigger: "axis", formatter: (points) => tip(`round ${points[0].axisValue}`, points.map((point) => [point.color, point.seriesName, percent(point.value[1])])) }),
      series: parts.map(([name, which, color], i) => ({
        name, type: "line", stack: "all", showSymbol: false, color, lineStyle: { width: 0 }, areaStyle: { opacity: 0.75 }, emphasis: { disabled: true },
        data: shares[which].map((share, x) => [rounds[x], 100 * share]),
        markLine: i ? undefined : { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: style("--ink"), type: "solid", width: 2 }, data: [{ xAxis: state.run.frames[state.frame].round }] },
      })),
    };
  }

  function rows() {
    return [["run", "round", "its own", "from its group", "from outside"], ...state.run.rounds.map((round, x) => [nameOf(state.run), round, ...state.run.flow.map((share) => share[x])])];
  }
}
