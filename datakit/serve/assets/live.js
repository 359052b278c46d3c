"use strict";
// Keeps a page up to date: the server sends the page's content again whenever it changes.
// The content is compared with what is shown, and only the differences are applied, so focus, scroll position, open
// details and the selection stay. If the connection is lost, it is made again, also after a restart of the server.
// Filters apply when their form is submitted, so that the arrow keys can move through the options of a select. The
// document stays, and so does the focus. Without JavaScript, the form loads the page with the same address.
(() => {
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const ageText = document.getElementById("age");
  const LONGEST_WAIT = 15000; // milliseconds between two attempts to connect
  let wait = 1000;
  let age = null; // seconds since the newest event of the run, when the server said so
  let heard = performance.now();
  let source = null; // the connection to the server
  let applied = location.search; // the filters of the content that is shown

  // Parts of a page that may appear or disappear have an id or a labelling heading, by which they are found again.
  const key = (node) => (node.nodeType === Node.ELEMENT_NODE && (node.id || node.getAttribute("aria-labelledby"))) || "";

  function apply(shown, wanted) {
    [...wanted.childNodes].forEach((theirs, place) => {
      let mine = shown.childNodes[place];
      if (mine && key(mine) !== key(theirs)) mine = found(shown, place, key(theirs));
      if (!mine) shown.insertBefore(theirs.cloneNode(true), shown.childNodes[place] || null);
      else if (mine.nodeName !== theirs.nodeName) mine.replaceWith(theirs.cloneNode(true));
      else if (mine.nodeName === "SELECT") applyOptions(mine, theirs);
      else if (mine.nodeType === Node.ELEMENT_NODE) {
        attributes(mine, theirs);
        apply(mine, theirs);
      } else if (mine.data !== theirs.data) mine.data = theirs.data;
    });
    while (shown.childNodes.length > wanted.childNodes.length) shown.lastChild.remove();
  }

  // The chosen option stays, also if the filter has not been applied yet. A select that is in use gets no new options.
  function applyOptions(mine, theirs) {
    if (mine === document.activeElement) return;
    const chosen = mine.value;
    apply(mine, theirs);
    mine.value = [...mine.options].some((option) => option.value === chosen) ? chosen : theirs.value;
  }

  function found(shown, place, wanted) {
    const match = wanted && [...shown.childNodes].slice(place).find((node) => key(node) === wanted);
    while (match && shown.childNodes[place] !== match) shown.childNodes[place].remove();
    return match || null;
  }

  function attributes(mine, theirs) {
    for (const { name } of [...mine.attributes]) {
      if (!theirs.hasAttribute(name) && name !== "open") mine.removeAttribute(name);
    }
    for (const { name, value } of theirs.attributes) {
      if (mine.getAttribute(name) !== value) mine.setAttribute(name, value);
    }
  }

  function show(html) {
    const wanted = new DOMParser().parseFromString(`<div id="live">${html}</div>`, "text/html");
    apply(live, wanted.getElementById("live"));
  }

  // Show the page of the address that the browser shows now. If the server does not answer, wait for its next event.
  async function showAddress() {
    const query = location.search;
    applied = query;
    source?.close();
    tell("loading", false);
    const answer = await fetch(location.pathname + query).catch(() => null);
    if (answer && !answer.ok) { location.reload(); return; } // the server's message, or the form to sign in
    const text = answer ? await answer.text().catch(() => "") : "";
    if (query !== location.search) return; // another page was asked for in the meantime
    const wanted = new DOMParser().parseFromString(text, "text/html").getElementById("live");
    if (wanted) apply(live, wanted);
    for (const select of live.querySelectorAll("form.filters select")) {
      select.value = new URLSearchParams(query).get(select.name) || "";
    }
    connect();
  }

  function applyFilters(event) {
    if (!event.target.matches("form.filters")) return;
    event.preventDefault();
    const chosen = [...new FormData(event.target)].filter(([, value]) => value);
    const query = new URLSearchParams(chosen).toString();
    history.pushState(null, "", query ? `?${query}` : location.pathname);
    showAddress();
  }

  function tell(text, isLive) {
    if (connection.textContent !== text) connection.textContent = text;
    connection.dataset.live = isLive ? "yes" : "no";
  }

  function hear(seconds) {
    age = seconds;
    heard = performance.now();
    wait = 1000;
    tell("live", true);
    tick();
  }

  function tick() {
    if (age === null) { ageText.textContent = ""; return; }
    const seconds = Math.round(age + (performance.now() - heard) / 1000);
    const text = seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
    ageText.textContent = `last event ${text} ago`;
  }

  function connect() {
    source?.close();
    source = new EventSource(document.body.dataset.events + location.search);
    source.addEventListener("open", () => tell("live", true));
    source.addEventListener("page", (event) => {
      const { html, age: seconds } = JSON.parse(event.data);
      show(html);
      hear(seconds);
    });
    source.addEventListener("alive", (event) => hear(JSON.parse(event.data).age));
    const mine = source;
    source.addEventListener("error", () => {
      tell("not connected, trying again", false);
      if (mine !== source || mine.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      setTimeout(connect, wait);
      wait = Math.min(2 * wait, LONGEST_WAIT);
    });
  }

  if (document.body.dataset.age) age = Number(document.body.dataset.age);
  live.addEventListener("submit", applyFilters);
  window.addEventListener("popstate", () => { if (location.search !== applied) showAddress(); });
  window.addEventListener("pagehide", () => source?.close());
  tick();
  setInterval(tick, 1000);
  if (window.EventSource && document.body.dataset.events) connect();
  window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
})();
