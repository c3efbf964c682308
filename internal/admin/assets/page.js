"use strict";
// Fetches the page again every few seconds and replaces its content, but keeps open what
// the reader has opened. When Baton stops answering, the page says so: old numbers must
// not look new.
(() => {
  const every = 3000;
  const lost = document.getElementById("lost");
  let live = document.getElementById("live");
  let paused = false;
  let heard = Date.now();

  const button = () => {
    const b = document.getElementById("pause");
    b.hidden = false;
    b.textContent = paused ? "Resume" : "Pause";
    b.setAttribute("aria-pressed", String(paused));
    b.onclick = () => { paused = !paused; button(); };
  };

  const refresh = async () => {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(every) });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    heard = Date.now();
    if (paused || !getSelection().isCollapsed) return;
    const open = [...live.querySelectorAll("details[open]")].map((d) => d.id);
    const focus = document.activeElement;
    const holder = focus.closest("[id]");
    const scrolls = [...live.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
    const fresh = document.adoptNode(next.getElementById("live"));
    live.replaceWith(fresh);
    live = fresh;
    document.title = next.title;
    for (const id of open) {
      const d = document.getElementById(id);
      if (d) d.open = true;
    }
    live.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = scrolls[i] || 0; });
    button();
    if (holder && focus.matches("summary, button")) {
      const h = document.getElementById(holder.id);
      (h && h.matches("details") ? h.querySelector("summary") : h)?.focus({ preventScroll: true });
    }
  };

  const tick = async () => {
    if (!document.hidden && !paused) {
      try { await refresh(); } catch { /* said below */ }
      const gone = Math.round((Date.now() - heard) / 1000);
      lost.hidden = gone * 1000 < 2 * every;
      lost.querySelector("span").textContent = gone + " s";
    } else {
      heard = Date.now();
    }
    setTimeout(tick, every);
  };

  button();
  setTimeout(tick, every);
})();
