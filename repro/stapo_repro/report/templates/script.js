
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  // what a link leads to may lie in something folded
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  // a row and those that follow it move as one
  const blocks = (body) => {
    const out = [];
    for (const row of body.rows) {
      if (row.classList.contains("follows") && out.length) out[out.length - 1].push(row);
      else out.push([row]);
    }
    return out;
  };
  const setting = () => document.querySelector('input[name="setting"]:checked').value;
  const keyOf = (block, column) => {
    const cell = block[0].cells[column];
    if (column === 0) return cell.textContent.trim();
    const text = cell.dataset[setting()];
    return text === "" ? null : Number(text);
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "string") return sign * (a < b ? -1 : a > b ? 1 : 0);
    return sign * (a - b);
  };
  const said = document.getElementById("sorted");
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const original = blocks(body);
    const heads = [...table.tHead.rows[0].cells];
    const sort = (column, order) => {
      const sign = order === "ascending" ? 1 : -1;
      const sorted = order === "none" ? original
        : [...original].sort((a, b) => compare(keyOf(a, column), keyOf(b, column), sign));
      body.append(...sorted.flat());
      heads.forEach((h, i) => h.setAttribute("aria-sort", i === column ? order : "none"));
    };
    heads.forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      head.querySelector("button").addEventListener("click", () => {
        const turns = column === 0 ? ["none", "ascending", "descending"] : ["none", "descending", "ascending"];
        const order = turns[(turns.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
        sort(column, order);
        said.textContent = `${table.caption.textContent.trim()}: ` +
          (order === "none" ? "in the order of the paper" : `${order} by ${head.textContent.trim()}`);
      });
    });
    for (const input of document.querySelectorAll('input[name="setting"]')) {
      input.addEventListener("change", () => {
        const column = heads.findIndex((h) => h.getAttribute("aria-sort") !== "none");
        if (column > 0) sort(column, heads[column].getAttribute("aria-sort"));
      });
    }
  }
})();
