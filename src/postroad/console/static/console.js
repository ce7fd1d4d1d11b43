// What the console adds where scripts run: times in the viewer's zone, live pages, commands that can be copied.
// Every page and every change works without it.
(() => {
  "use strict";

  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const localToday = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

  function showLocalTimes(within) {
    for (const element of within.querySelectorAll("time[datetime]:not([data-local])")) {
      const time = new Date(element.dateTime);
      if (Number.isNaN(time.getTime())) continue;
      element.dataset.local = "1";
      const isToday = time.toDateString() === new Date().toDateString();
      element.textContent = (isToday ? localToday : local).format(time);
    }
    const note = document.getElementById("connection");
    if (note && !stream) note.textContent = "times in your zone; UTC when you point at one";
  }

  function makeCopyable(within) {
    if (!navigator.clipboard) return;
    for (const element of within.querySelectorAll("[data-copy]:not([data-copies])")) {
      element.dataset.copies = "1";
      element.title = "Click to copy";
      element.addEventListener("click", () => {
        if (!window.getSelection().isCollapsed) return;
        navigator.clipboard.writeText(element.textContent).then(() => {
          element.classList.add("copied");
          window.setTimeout(() => element.classList.remove("copied"), 900);
        });
      });
    }
  }

  const PAUSE = 5000; // milliseconds
  let stream = null;
  let followed = null;
  let waiting = 0; // for the next attempt
  let staleSince = 0; // when the connection was lost

  function say(text) {
    const note = document.getElementById("connection");
    if (note) note.textContent = text;
  }

  // An EventSource gives up for good on an answer that is no stream, such as that of a proxy, or to an ended session.
  function lost(live) {
    say("not connected; trying again");
    staleSince = staleSince || Date.now();
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => {
      if (!stream || stream.readyState === EventSource.OPEN) return;
      showStale(live);
      if (stream.readyState === EventSource.CLOSED) { followed = null; follow(); } else lost(live);
    }, PAUSE);
  }

  function showStale(live) {
    let note = document.getElementById("stale");
    if (!note) {
      note = document.createElement("p");
      note.id = "stale";
      note.className = "notice problem";
      note.setAttribute("role", "alert");
      const since = localToday.format(new Date(staleSince));
      note.textContent = `Not connected since ${since}: this page shows what was known then. If it stays so, load it again.`;
      live.before(note);
    }
    live.classList.add("stale");
  }

  function connected(live) {
    say("live; times in your zone, UTC when you point at one");
    staleSince = 0;
    const note = document.getElementById("stale");
    if (note) note.remove();
    live.classList.remove("stale");
  }

  function follow() {
    const live = document.getElementById("live");
    if (followed === live) return;
    if (stream) stream.close();
    stream = null;
    window.clearTimeout(waiting);
    followed = live;
    if (!live || document.hidden) { followed = document.hidden ? null : live; return; }
    stream = new EventSource(live.dataset.stream);
    stream.addEventListener("open", () => connected(live));
    stream.addEventListener("error", () => lost(live));
    stream.addEventListener("fragment", (event) => {
      const selection = window.getSelection();
      const reading = !selection.isCollapsed && live.contains(selection.anchorNode);
      if (!live.isConnected || reading) return;
      htmx.swap(live, event.data, { swapStyle: "innerHTML", settleDelay: 0, swapDelay: 0 });
    });
  }

  function showWhereWeAre() {
    const pages = document.querySelector(".pages");
    const here = pages && pages.querySelector("[aria-current]");
    if (here) pages.scrollLeft = here.offsetLeft - (pages.clientWidth - here.offsetWidth) / 2;
  }

  function refresh(within) {
    if (within === document || within.contains(document.querySelector(".pages"))) showWhereWeAre();
    showLocalTimes(within);
    makeCopyable(within);
    follow();
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) { stream.close(); stream = null; followed = null; staleSince = 0; } else follow();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const find = document.getElementById("find");
    if (find) { event.preventDefault(); find.focus(); }
  });
  document.addEventListener("input", (event) => {
    const shown = event.target.dataset && event.target.dataset.shown;
    if (shown) document.getElementById(shown).textContent = event.target.value;
  });
  document.addEventListener("htmx:load", (event) => refresh(event.target));
  document.addEventListener("DOMContentLoaded", () => refresh(document));
})();
