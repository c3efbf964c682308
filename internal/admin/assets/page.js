"use strict";
// Fetches the page again every few seconds and replaces the parts that have changed. What the
// reader has folded, searched for, sorted by and focused stays. When Baton stops answering,
// the page says so: old numbers must not look new.
(() => {
  const every = 3000, typing = 200;
  const get = (id) => document.getElementById(id);
  const lost = get("lost"), search = get("search"), pause = get("pause");
  const parts = new Map(); // id of a part: its HTML as it came
  const folds = new Map(); // id of what folds: whether the reader has opened it
  const tables = new Map(); // address of a decision: its candidates
  let paused = false, heard = Date.now(), asked = 0, soon;

  // Where an element is: the closest id around it, and which one there, of those that match.
  const place = (e, which) => {
    const holder = e.closest("[id]");
    return { id: holder.id, which, i: [...holder.querySelectorAll(which)].indexOf(e) };
  };
  const at = (p) => p.i < 0 ? get(p.id) : get(p.id)?.querySelectorAll(p.which)[p.i];

  const foldKey = (d) => search.value.trim() ? d.id + " found" : d.id; // what is found is open

  // Shows all candidates of a decision that is open. They do not change any more.
  const fill = async (choices) => {
    const of = choices.dataset.of;
    if (!tables.has(of)) {
      const answer = await fetch(of, { signal: AbortSignal.timeout(every) }).catch(() => {});
      if (!answer?.ok) return;
      if (tables.size > 64) tables.clear();
      tables.set(of, new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".choices"));
    }
    choices.replaceChildren(...tables.get(of).cloneNode(true).childNodes);
  };

  const put = (fresh) => {
    const old = get(fresh.id), html = fresh.innerHTML;
    if (!old || parts.get(fresh.id) === html) return;
    parts.set(fresh.id, html);
    const focus = old.contains(document.activeElement) && place(document.activeElement, "a, summary, [tabindex]");
    const scrolls = [...old.querySelectorAll(".scroll")].filter((s) => s.scrollLeft).map((s) => [place(s, ".scroll"), s.scrollLeft]);
    old.replaceWith(document.adoptNode(fresh));
    for (const d of fresh.querySelectorAll("details[id]")) {
      const open = folds.get(foldKey(d));
      if (open !== undefined) d.open = open;
    }
    fresh.querySelectorAll("details[open] > .body > .choices").forEach(fill);
    for (const [p, left] of scrolls) {
      const s = at(p);
      if (s) s.scrollLeft = left;
    }
    if (focus) at(focus)?.focus({ preventScroll: true });
  };

  const refresh = async () => {
    const turn = ++asked;
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(every) });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    heard = Date.now();
    if (turn !== asked) return; // the reader has asked for something else since
    document.title = next.title;
    next.querySelectorAll(".part").forEach(put);
  };

  const tick = async () => {
    if (document.hidden || paused) heard = Date.now();
    else if (getSelection().isCollapsed) await refresh().catch(() => {}); // a failure is said below
    const gone = Math.round((Date.now() - heard) / 1000);
    lost.hidden = gone * 1000 < 2 * every;
    lost.querySelector("span").textContent = gone + " s";
    setTimeout(tick, every);
  };

  // Shows another search or order at once, and keeps it in the address.
  const go = (url) => {
    history.replaceState(null, "", url);
    refresh().catch(() => {});
  };
  const find = () => {
    const url = new URL(location);
    if (search.value.trim()) url.searchParams.set("q", search.value.trim());
    else url.searchParams.delete("q");
    go(url);
  };

  document.addEventListener("click", (e) => {
    const summary = e.target.closest("summary"), sort = e.target.closest("a.sort");
    if (summary) folds.set(foldKey(summary.parentElement), !summary.parentElement.open);
    if (!sort || e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    go(sort.href);
  });
  document.addEventListener("toggle", (e) => {
    const choices = e.target.open && e.target.querySelector(":scope > .body > .choices");
    if (choices) fill(choices);
  }, true);
  search.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(find, typing); });
  get("find").addEventListener("submit", (e) => { e.preventDefault(); clearTimeout(soon); find(); });

  const button = () => {
    pause.textContent = paused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
  };
  pause.addEventListener("click", () => { paused = !paused; button(); });
  pause.hidden = false;
  button();
  document.querySelectorAll(".part").forEach((p) => parts.set(p.id, p.innerHTML));
  setTimeout(tick, every);
})();
