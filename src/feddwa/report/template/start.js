// Draws the whole page; again, where new numbers have come.

function copying() {
  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.onclick = async () => {
      try {
        await navigator.clipboard.writeText($(button.dataset.copy).textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren($(button.dataset.copy)); // no clipboard for files in some browsers
      }
    };
  });
}

function start(loaded) {
  data = loaded;
  curves();
  clients();
  oneClient();
  explorer();
  gain();
  partitions();
  presence();
  pareto("pareto-bytes", "bytes", "traffic in all", bytes);
  pareto("pareto-flops", "flops", "compute in all", flops);
  pareto("pareto-seconds", "seconds", "time in all", time);
  copying();
  document.documentElement.dataset.ready = "yes";
}

themes();
printing();
load().then(start);
