"use strict";
// The table of all keys: columns of numbers and of codes of texts, filtered and sorted as lists of row numbers.
// Text from data only ever becomes `textContent`.
(() => {
  const data = JSON.parse(document.getElementById("table").textContent);
  const $ = (id) => document.getElementById(id);
  const columns = data.columns;
  const byName = new Map(columns.map((c) => [c.name, c]));
  const shown = columns.filter((c) => c.shown);
  const keyColumns = columns.filter((c) => c.name.startsWith("key:"));
  const kinds = { trained: "good", unchanged: "good", failed: "bad", crashed: "bad", timed_out: "bad", out_of_memory: "bad", model_too_big: "bad" };
  const state = { rows: [], sort: "error", down: true, page: 0 };
  const formats = new Map();

  const number = (digits) => {
    if (!formats.has(digits)) formats.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
    return formats.get(digits);
  };
  const text = (column, row) => { const code = column.codes[row]; return code < 0 ? "" : column.texts[code]; };
  const show = (column, row) => {
    if (column.kind === "text") return text(column, row);
    const value = column.values[row];
    if (value === null) return "";
    if (column.kind === "percent") return number(0).format(value * 100) + "%";
    if (column.kind === "time") return new Date(value * 1000).toISOString().slice(0, 16).replace("T", " ");
    if (column.kind === "bytes") return value < 1e6 ? number(1).format(value / 1e3) + " kB" : number(1).format(value / 1e6) + " MB";
    return number(column.digits).format(value);
  };
  const label = (row) => keyColumns.map((c) => `${c.label}=${text(c, row)}`).join(", ");
  const element = (name, content, className) => {
    const made = document.createElement(name);
    if (content !== undefined) made.textContent = content;
    if (className) made.className = className;
    return made;
  };

  // One text per row to search in, made once: keys as `column=value`, then status, reason and id.
  const searched = ["status", "serves", "reason", "error_type", "error_stage", "error_message", "key_id"].map((n) => byName.get(n)).filter(Boolean);
  const haystack = Array.from({ length: data.rows }, (_, row) =>
    (keyColumns.map((c) => `${c.label}=${text(c, row)}`).join(" ") + " " + searched.map((c) => text(c, row)).join(" ")).toLowerCase());

  // Texts by their order, found once per column; numbers as they are; nothing comes last either way.
  const ranks = new Map();
  const sortable = (column) => {
    if (column.kind !== "text") return column.values;
    if (!ranks.has(column.name)) {
      const compare = new Intl.Collator("en", { numeric: true }).compare;
      const order = column.texts.map((_, i) => i).sort((a, b) => compare(column.texts[a], column.texts[b]));
      const rank = new Array(order.length);
      order.forEach((code, place) => { rank[code] = place; });
      ranks.set(column.name, column.codes.map((code) => (code < 0 ? null : rank[code])));
    }
    return ranks.get(column.name);
  };

  function select() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const status = $("status").value, statuses = byName.get("status");
    const wanted = status === "" ? -1 : statuses.texts.indexOf(status);
    const rows = [];
    for (let row = 0; row < data.rows; row++) {
      if (status !== "" && statuses.codes[row] !== wanted) continue;
      if (words.every((word) => haystack[row].includes(word))) rows.push(row);
    }
    state.rows = rows;
    sort();
  }

  function sort() {
    const column = byName.get(state.sort);
    if (column) {
      const values = sortable(column), sign = state.down ? -1 : 1;
      state.rows.sort((a, b) => {
        const x = values[a], y = values[b];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return sign * (x - y) || a - b;
      });
    } else state.rows.sort((a, b) => a - b);
    state.page = 0;
    draw();
  }

  function draw() {
    const size = Number($("size").value), pages = Math.max(1, Math.ceil(state.rows.length / size));
    const first = state.page * size, rows = state.rows.slice(first, first + size);
    const body = document.createDocumentFragment();
    for (const row of rows) body.append(line(row));
    $("keys").tBodies[0].replaceChildren(body);
    const all = data.rows === data.of ? number(0).format(data.of) : `${number(0).format(data.rows)} (of ${number(0).format(data.of)}, the others are not on this page)`;
    $("found").textContent = state.rows.length === data.rows ? `${all} keys` : `${number(0).format(state.rows.length)} of ${all} keys`;
    $("page").textContent = `Page ${number(0).format(state.page + 1)} of ${number(0).format(pages)}`;
    $("previous").disabled = state.page === 0;
    $("next").disabled = state.page >= pages - 1;
    for (const head of $("keys").tHead.rows[0].cells) {
      if (head.dataset.name === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  function line(row) {
    const made = element("tr");
    made.dataset.row = row;
    for (const [place, column] of shown.entries()) {
      const cell = element("td", undefined, column.kind === "text" ? "" : "number"), said = show(column, row);
      if (place === 0) {
        const open = element("button", said || "(empty)");
        open.type = "button";
        open.setAttribute("aria-label", `Open ${label(row)}`);
        cell.append(open);
      } else if (column.name === "status") cell.append(element("span", said, "status " + (kinds[said] || "kept")));
      else cell.textContent = said;
      if (column.name === "reason") cell.className = "wide";
      if (column.kind === "text" && said.length > 30) cell.title = said;
      if (column.kind === "percent" && column.values[row] !== null) cell.classList.add(column.values[row] < 1 ? "good" : "bad");
      made.append(cell);
    }
    return made;
  }

  function open(row) {
    const id = text(byName.get("key_id"), row), facts = $("one-facts");
    $("one-title").textContent = label(row);
    $("one-reason").textContent = text(byName.get("reason"), row);
    facts.replaceChildren(...columns.filter((c) => !["reason"].includes(c.name) && !c.name.startsWith("key:") && show(c, row) !== "").map((c) => {
      const pair = element("div");
      pair.append(element("dt", c.label), element("dd", show(c, row)));
      return pair;
    }));
    $("one-scale").replaceChildren(scale(row));
    const link = element("a", "Its charts");
    link.href = `#close-${id}`;
    link.addEventListener("click", () => $("one").close());
    $("one-close").replaceChildren(...(data.close.includes(id) ? [link] : []));
    if (!$("one").open) $("one").showModal();
    $("one").scrollTop = 0;
    remember(`#key=${id}`);
  }

  // Where the key's error stands among those of all keys.
  const errors = (byName.get("error")?.values || []).filter((v) => v !== null).sort((a, b) => a - b);
  function scale(row) {
    const made = element("div", undefined, "scale"), value = byName.get("error")?.values[row];
    if (value === null || value === undefined || errors.length < 3) return document.createDocumentFragment();
    let low = 0, high = errors.length;
    while (low < high) { const middle = (low + high) >> 1; if (errors[middle] < value) low = middle + 1; else high = middle; }
    const share = low / (errors.length - 1), at = element("i", undefined, "at");
    at.style.left = `${Math.min(share, 1) * 100}%`;
    made.append(element("div", undefined, "track"), at, element("p", `${byName.get("error").label} higher than that of ${number(0).format(share * 100)}% of the measured keys`));
    return made;
  }

  // A page in a notebook's frame may have no history and no storage.
  function remember(hash) { try { history.replaceState(null, "", hash); } catch { /* the page works without */ } }
  function openFrom(hash) {
    if (!hash.startsWith("#key=")) return;
    const column = byName.get("key_id"), row = column.codes.indexOf(column.texts.indexOf(hash.slice(5)));
    if (row >= 0) open(row);
  }

  function heads() {
    const row = element("tr");
    for (const column of shown) {
      const head = element("th", undefined, column.kind === "text" ? "" : "number"), press = element("button", column.label);
      head.scope = "col";
      head.dataset.name = column.name;
      press.type = "button";
      press.addEventListener("click", () => {
        state.down = state.sort === column.name ? !state.down : column.kind !== "text";
        state.sort = column.name;
        sort();
      });
      head.append(press);
      row.append(head);
    }
    $("keys").tHead.replaceChildren(row);
  }

  function wire() {
    const statuses = byName.get("status");
    for (const status of [...statuses.texts].sort()) $("status").append(element("option", status));
    let waiting = 0;
    $("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(select, 60); });
    $("status").addEventListener("change", select);
    $("size").addEventListener("change", () => { state.page = 0; draw(); });
    $("previous").addEventListener("click", () => { state.page--; draw(); });
    $("next").addEventListener("click", () => { state.page++; draw(); });
    $("keys").tBodies[0].addEventListener("click", (event) => { const row = event.target.closest("tr"); if (row) open(Number(row.dataset.row)); });
    $("keys").tBodies[0].addEventListener("keydown", (event) => {
      const move = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const next = move && event.target.closest("tr")?.[move];
      if (next) { next.querySelector("button").focus(); event.preventDefault(); }
    });
    document.querySelectorAll("[data-status]").forEach((each) => each.addEventListener("click", () => {
      $("status").value = each.dataset.status;
      select();
      $("all").scrollIntoView();
      $("search").focus({ preventScroll: true });
    }));
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName) && !$("one").open) { $("search").focus(); event.preventDefault(); }
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest('a[href^="#key="]');
      if (link) { event.preventDefault(); openFrom(link.getAttribute("href")); }
    });
    $("one").addEventListener("close", () => { if (location.hash.startsWith("#key=")) remember("#all"); });
    $("one").addEventListener("click", (event) => { if (event.target === $("one")) $("one").close(); });
    window.addEventListener("hashchange", () => openFrom(location.hash));
  }
  function tips() {
    const tip = $("tip");
    document.addEventListener("mousemove", (event) => {
      const mark = event.target.closest?.(".figure [aria-roledescription][aria-label]:not([aria-roledescription=axis])");
      if (!mark || mark.getAttribute("role") !== "graphics-symbol") { tip.hidden = true; return; }
      tip.textContent = mark.getAttribute("aria-label");
      tip.hidden = false;
      const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${event.clientY + 16 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16}px`;
    });
  }

  function themes() {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
    try { const kept = localStorage.getItem("group-models-theme"); if (kept) root.dataset.theme = kept; } catch { /* as the system says */ }
    $("theme").addEventListener("click", () => {
      const isDark = root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
      root.dataset.theme = isDark ? "light" : "dark";
      try { localStorage.setItem("group-models-theme", root.dataset.theme); } catch { /* for this time only */ }
    });
  }

  heads();
  themes();
  wire();
  tips();
  select();
  openFrom(location.hash);
})();
