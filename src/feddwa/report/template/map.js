// The weights of a round as a map: a picture with a square a pair of clients, so that each of a million reacts.

function weightMap(state) {
  const FINEST = 1024; // pixels a side that the picture has at least, so that squares have sharp edges
  const view = draw("map-chart", option, rows);
  const hint = tipBox($("map-chart"));
  view.chart.on("datazoom", () => {
    const [x, y] = view.chart.getOption().dataZoom;
    looked.zoom = { x: [x.start, x.end], y: [y.start, y.end] };
  });
  view.chart.getZr().on("mousemove", ({ offsetX, offsetY }) => {
    const at = square(offsetX, offsetY);
    at ? hint.show(words(at), offsetX, offsetY) : hint.hide();
  });
  view.chart.getZr().on("globalout", hint.hide);
  view.chart.getZr().on("click", ({ offsetX, offsetY }) => {
    const at = square(offsetX, offsetY);
    if (at) state.pick(at.row);
  });
  on("closer", "click", () => narrow(0.5));
  on("wider", "click", () => narrow(2));
  on("whole", "click", () => narrow(Infinity));
  return view;

  function last() { return state.order.length - 1; }

  // The row and column, as clients, of a point of the chart.
  function square(x, y) {
    if (!view.chart.containPixel("grid", [x, y])) return null;
    const [column, row] = view.chart.convertFromPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [x, y]);
    const found = { row: state.order[last() - row], column: state.order[column] };
    return found.row === undefined || found.column === undefined ? null : found;
  }

  function words({ row, column }) {
    const own = state.weights.get(row), part = state.partition(), name = (client) => `client ${nameOfClient(client, part)}`;
    if (!own) return tip(name(row), [["", "took no part in this round", ""]]);
    const least = Math.min(...[...own.values()].map(Math.abs)), away = !state.weights.has(column);
    const weight = own.has(column) ? percent(100 * own.get(column)) : data.partners && own.size >= data.partners && !away ? `at most ${percent(100 * least)}` : percent(0);
    return tip(`new model of ${name(row)}`, [["", `from ${name(column)}`, away ? "took no part" : weight]]);
  }

  // Zoom around the chosen client by a factor of what is seen.
  function narrow(factor) {
    const wide = Math.min(100, Math.max(100 * Math.min(1, 8 / state.order.length), factor * (looked.zoom.x[1] - looked.zoom.x[0])));
    const around = (middle) => { const start = Math.min(100 - wide, Math.max(0, middle - wide / 2)); return [start, start + wide]; };
    const place = (100 * (state.order.indexOf(state.client) + 0.5)) / state.order.length;
    looked.zoom = { x: around(place), y: around(100 - place) };
    view.redraw();
  }

  function picture() {
    const n = state.order.length, shades = palette(), bad = echarts.color.parse(style("--bad")).slice(0, 3);
    const small = document.createElement("canvas"), large = document.createElement("canvas"), image = new ImageData(n, n);
    small.width = small.height = n;
    const paint = (i, j, shade) => image.data.set([...shade, 255], 4 * (i * n + j));
    const place = new Map(state.order.map((each, i) => [each, i])), present = state.order.flatMap((each, j) => (state.weights.has(each) ? [j] : []));
    state.weights.forEach((row, client) => { // who took no part has no squares
      const i = place.get(client);
      present.forEach((j) => paint(i, j, shades[0]));
      row.forEach((weight, partner) => paint(i, place.get(partner), weight < 0 ? bad : shades[Math.round(255 * Math.sqrt(Math.min(1, weight / state.top)))]));
    });
    small.getContext("2d").putImageData(image, 0, 0);
    large.width = large.height = n * Math.ceil(FINEST / n);
    const brush = large.getContext("2d");
    brush.imageSmoothingEnabled = false;
    brush.drawImage(small, 0, 0, large.width, large.height);
    return large;
  }

  function palette() { return [...Array(256).keys()].map((i) => echarts.color.parse(echarts.color.lerp(i / 255, ramp())).slice(0, 3)); }

  function option() {
    const n = state.order.length, seen = (n * (looked.zoom.x[1] - looked.zoom.x[0])) / 100, image = picture(), { label, room } = clientLabels(state.partition());
    const side = {
      type: "category", axisLine: { show: false }, splitLine: { show: false },
      axisLabel: { ...label, fontSize: 11, interval: seen > 24 ? Math.ceil(seen / 12) - 1 : "auto", color: (value) => (Number(value) === state.client ? style("--bad") : style("--soft")) },
    };
    const cuts = state.order.map((_, i) => i).filter(state.borders());
    const renderItem = (_, api) => {
      const [x, y] = api.coord([0, n - 1]), [wide, high] = api.size([1, 1]);
      return { type: "image", silent: true, style: { image, x: x - wide / 2, y: y - high / 2, width: n * wide, height: n * high } };
    };
    const moved = { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, preventDefaultMouseMove: false };
    return {
      grid: { left: 52 + room, right: 12, top: 12, bottom: 84 + room },
      xAxis: axis({ ...side, axisLabel: { ...side.axisLabel, rotate: room ? 90 : 0 }, data: state.order.map(String), name: "whose model (column)", ...below, nameGap: 26 + room }),
      yAxis: axis({ ...side, data: state.order.map(String).reverse(), name: "whose new model (row)", nameLocation: "middle", nameGap: 34 + room }),
      dataZoom: [{ ...moved, xAxisIndex: 0, start: looked.zoom.x[0], end: looked.zoom.x[1] }, { ...moved, yAxisIndex: 0, start: looked.zoom.y[0], end: looked.zoom.y[1] }],
      visualMap: {
        min: 0, max: 1, seriesIndex: [], orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 10, calculable: false,
        text: [`${percent(100 * state.top)}${state.top < 1 ? " or more" : ""}`, "weight 0"], textStyle: { color: style("--soft") }, inRange: { color: ramp() }, hoverLink: false,
      },
      series: [
        { type: "custom", renderItem, data: [[0, 0]], clip: true, silent: true },
        frames(cuts, cuts, n, state.order.indexOf(state.client)),
      ],
    };
  }

  function rows() {
    const name = (client) => nameOfClient(client, state.partition()), found = [["run", "round", "client", "takes from", "weight"]];
    state.weights.forEach((row, i) => row.forEach((weight, j) => found.push([nameOf(state.run), state.run.frames[state.frame].round, name(i), name(j), Number(weight.toPrecision(4))])));
    return found;
  }
}
