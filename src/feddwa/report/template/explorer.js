// Who helps whom: the weights of a run, round by round, as a map, as a graph and as shares of a model.

const looked = { round: null, zoom: { x: [0, 100], y: [0, 100] } }; // round: the one shown, null = the last, however many more come

function explorer() {
  const withWeights = data.runs.filter((run) => run.frames.length);
  $("explorer").hidden = !withWeights.length;
  if (!withWeights.length) return;
  const main = withWeights.find((run) => run.method === data.lead) || withWeights[0];
  fill($("run"), withWeights.map((each) => [nameOf(each), called(each)]), nameOf(main));
  let timer = null;
  const state = { run: runOf($("run").value), frame: 0, top: 1, client: chosen.client, order: [], weights: new Map(), pick: choose, partition, groups, labels, borders, stop, go };
  select();
  state.weights = decode(state.run.frames[state.frame]);
  const graph = weightGraph(state), views = [weightMap(state), graph, weightFlow(state)];
  on("run", "change", () => { state.run = runOf($("run").value); select(); go(state.frame); follow(nameOf(state.run)); });
  on("order", "change", () => { sort(); show(); });
  on("round", "input", () => { stop(); go(Number($("round").value)); });
  on("play", "click", () => (timer ? stop() : play()));
  chosen.listen("explorer", () => { state.client = chosen.client; views[0].redraw(); views[1].redraw(); });
  go(state.frame);

  function partition() { return data.partitions[state.run.seed]; }
  function groups() { return partition() && partition().groups; }

  // Another run: other orders, other rounds.
  function select() {
    const count = new Set(state.run.clusters).size, { frames } = state.run, part = partition();
    const ways = [["number", "client number"], ["cluster", `discovered cluster (${count})`]];
    if (part && part.names.some((name, i) => name !== String(i))) ways.push(["name", "client name"]);
    if (groups()) ways.unshift(["group", `true group (${new Set(groups()).size})`]);
    const kept = ways.some(([way]) => way === $("order").value) ? $("order").value : ways[0][0];
    fill($("order"), ways, kept);
    $("round").max = frames.length - 1;
    const place = frames.findIndex((each) => each.round >= looked.round);
    state.frame = looked.round === null || place < 0 ? frames.length - 1 : place;
    state.top = strongest(frames);
    sort();
  }

  function labels() { return { group: groups(), cluster: state.run.clusters }[$("order").value] || null; }

  function sort() {
    const label = labels(), names = $("order").value === "name" ? partition().names : null;
    state.order = [...state.run.scores.keys()];
    if (label) state.order.sort((one, two) => label[one] - label[two] || one - two);
    if (names) state.order.sort((one, two) => names[one].localeCompare(names[two], "en", { numeric: true }));
  }

  function borders() {
    const label = labels();
    return (_, i) => Boolean(label) && i > 0 && i < state.order.length && label[state.order[i]] !== label[state.order[i - 1]];
  }

  function go(place) {
    const { frames } = state.run;
    state.frame = Math.min(place, frames.length - 1);
    looked.round = state.frame === frames.length - 1 ? null : frames[state.frame].round;
    state.weights = decode(frames[state.frame]);
    const { round, cohort } = frames[state.frame];
    $("round").value = state.frame;
    $("round-text").value = `after round ${round} of ${frames.at(-1).round}`;
    $("round").setAttribute("aria-valuetext", $("round-text").value);
    const away = cohort ? `${state.run.scores.length - cohort.length} clients took no part in this round and kept their models: their rows are empty. ` : "";
    const rounds = data.step > 1 ? `To keep this file small it has every ${data.step}. round. ` : "";
    const few = data.partners ? `Only each client's ${data.partners} strongest partners are shown. ` : "";
    const odd = [...state.weights.values()].some((row) => [...row.values()].some((w) => w < 0)) ? "Orange squares are negative weights. " : "";
    const lines = graph.crowded() ? "There are too many links to draw: the circle shows those of the chosen client. " : "";
    const colours = `Colours on the circle are the ${groups() ? "true groups" : "discovered clusters"}. `;
    $("explorer-note").textContent = colours + lines + away + rounds + few + odd;
    show();
    if (chosen.run === nameOf(state.run)) chosen.tell("client");
  }

  function show() { views.forEach((view) => view.redraw()); }

  function play() {
    if (state.frame === state.run.frames.length - 1) go(0);
    const pace = Math.max(120, Math.min(500, 12000 / state.run.frames.length));
    timer = setInterval(() => (state.frame < state.run.frames.length - 1 ? go(state.frame + 1) : stop()), pace);
    $("play").textContent = "❚❚ Pause";
    $("play").setAttribute("aria-label", "Pause");
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    $("play").textContent = "▶ Play";
    $("play").setAttribute("aria-label", "Play the rounds");
  }
}

// The largest weight that anybody gives to another client in any of these rounds: the darkest shade of the map.
function strongest(frames) {
  let most = 0;
  frames.forEach(({ rows }) => rows.forEach(([places, codes], i) => codes.forEach((code, j) => {
    if ((places ? places[j] : j) !== i) most = Math.max(most, code);
  })));
  return most ? (most * most) / 65025 : 1;
}

// client -> Map(partner -> weight) of everybody who took part; see _frame in collect.py.
function decode({ cohort, rows }) {
  const who = (place) => (cohort ? cohort[place] : place);
  return new Map(rows.map((row, i) => [who(i), partnersOf(row, who)]));
}

function partnersOf([places, codes], who) {
  return new Map(codes.map((code, j) => [who(places ? places[j] : j), (Math.sign(code) * code * code) / 65025]));
}
