// Before the first round of the first run there is nothing to draw.

function start() { document.documentElement.dataset.ready = "yes"; }

themes();
load().then(start);
