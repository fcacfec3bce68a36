// Of `feddwa watch`: where the server tells of something new, the page is asked for again and its parts are replaced.

const PARTS = ["lead", "costs", "settings", "listing"];

addEventListener("load", () => {
  const events = new EventSource(`${location.pathname.replace(/[^/]*$/, "")}events`);
  const say = (text) => ($("live").textContent = text);
  let busy = false, missed = false;
  events.onopen = () => say("live");
  events.onerror = () => say("not connected: is feddwa watch still running?");
  events.onmessage = async () => {
    missed = busy;
    if (busy) return;
    busy = true;
    try {
      do {
        missed = false;
        await renew();
      } while (missed);
      say(`live, ${new Date().toLocaleTimeString()}`);
    } catch (error) {
      say(`not up to date: ${error.message}`);
    } finally {
      busy = false;
    }
  };
});

async function renew() {
  const answer = await fetch(location.href, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (fresh.getElementById("main").className !== $("main").className) return location.reload(); // another kind of page
  PARTS.filter((id) => $(id) && fresh.getElementById(id)).forEach((id) => $(id).replaceChildren(...fresh.getElementById(id).childNodes));
  $("payload").textContent = fresh.getElementById("payload").textContent;
  again = true;
  start(await load());
}
