// Filters and sorts what the page already shows; the address says how, so that it can be shared.
// Names on the page come from outside: text is only ever read from the page, never made into HTML.
"use strict";

function rowsOf(target) {
  return [...(target.tBodies ? target.tBodies[0].rows : target.querySelectorAll("[data-row]"))];
}

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = Number(text.replaceAll(",", ""));
  return text !== "" && Number.isFinite(number) ? number : text;
}

function compared(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

// What is searched for. An issue's address on github.com is the same as its number.
function wordsOf(text) {
  const issue = /^(?:https?:\/\/)?github\.com\/([\w.-]+\/[\w.-]+)\/(?:issues|pull)\/(\d+)\S*$/;
  return text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => word.replace(issue, "$1#$2"));
}

class View {
  constructor(target, form) {
    this.target = target;
    this.form = form;
    this.rows = rowsOf(target);
    this.texts = this.rows.map((row) => row.textContent.toLowerCase());
    this.sorted = { column: -1, down: false };
    this.headers = target.tHead ? [...target.tHead.rows[0].cells] : [];
    this.headers.forEach((cell, column) => this.addButton(cell, column));
    if (form) this.listen();
    this.read();
  }

  addButton(cell, column) {
    if (!("sort" in cell.dataset)) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    cell.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const again = this.sorted.column === column;
      this.sort(column, again ? !this.sorted.down : cell.classList.contains("n"));
      this.write();
    });
  }

  listen() {
    this.form.hidden = false;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => { this.filter(); this.write(); });
    this.form.addEventListener("reset", () => setTimeout(() => { this.filter(); this.write(); }));
  }

  fields() {
    return this.form ? [...this.form.elements].filter((field) => field.name) : [];
  }

  read() {
    const query = new URLSearchParams(location.search);
    for (const field of this.fields()) {
      const value = query.get(field.name);
      if (value === null) continue;
      field.value = value;
      if (field.tagName === "SELECT" && field.value !== value) field.value = "";
    }
    const sort = /^(-?)(\d+)$/.exec(query.get("sort") ?? "");
    if (sort && this.headers[sort[2]]?.matches("[data-sort]")) this.sort(Number(sort[2]), sort[1] === "-");
    this.filter();
  }

  write() {
    const query = new URLSearchParams(location.search);
    for (const field of this.fields()) {
      if (field.value) query.set(field.name, field.value);
      else query.delete(field.name);
    }
    const { column, down } = this.sorted;
    if (column >= 0 && this.form) query.set("sort", (down ? "-" : "") + column);
    const text = query.toString();
    history.replaceState(null, "", (text ? "?" + text : location.pathname) + location.hash);
  }

  filter() {
    const words = wordsOf(this.form?.elements.q?.value ?? "");
    const picks = this.fields().filter((field) => field.tagName === "SELECT" && field.value);
    let shown = 0;
    this.rows.forEach((row, at) => {
      const has = words.every((word) => this.texts[at].includes(word))
        && picks.every((pick) => (row.dataset[pick.name] ?? "").split("|").includes(pick.value));
      row.hidden = !has;
      shown += has;
    });
    const note = this.form?.querySelector(".shown");
    if (note) note.textContent = `${shown} of ${this.rows.length} shown`
      + (shown || !this.rows.length ? "" : ": none has all of this. Change the search, or clear it.");
  }

  sort(column, down) {
    this.sorted = { column, down };
    const keys = new Map(rowsOf(this.target).map((row) => [row, valueOf(row, column)]));
    const rows = [...keys.keys()].sort((a, b) => compared(keys.get(a), keys.get(b)) * (down ? -1 : 1));
    this.target.tBodies[0].append(...rows);
    this.headers.forEach((cell, at) => {
      if ("sort" in cell.dataset) {
        cell.setAttribute("aria-sort", at !== column ? "none" : down ? "descending" : "ascending");
      }
    });
  }
}

for (const form of document.querySelectorAll("form[data-for]")) {
  new View(document.getElementById(form.dataset.for), form);
}
for (const table of document.querySelectorAll("table:has(th[data-sort])")) {
  if (!document.querySelector(`form[data-for="${table.id}"]`)) new View(table, null);
}
for (const note of document.querySelectorAll(".noscript")) note.hidden = true;
const search = document.getElementById("search");
const wanted = new URLSearchParams(location.search).get("q");
if (search && wanted) search.value = wanted;
