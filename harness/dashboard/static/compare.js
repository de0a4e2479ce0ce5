// Compares any two runs, from the data beside the pages.
"use strict";

const OUTCOMES = {
  p: "passed", f: "failed", c: "crashed", h: "hung", b: "conflict", s: "skipped", x: "expected failure", u: "unexpected pass",
};
const MOST = 2000; // rows

async function outcomesOf(run) {
  const answer = await (await fetch(`data/run/${encodeURIComponent(run)}.json`)).json();
  const places = await (await fetch(`data/places/${encodeURIComponent(answer.places)}.json`)).json();
  return new Map(places.map((place, at) => [JSON.stringify(place), answer.outcomes[at]]));
}

function cell(text, tag = "td") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (tag === "th") made.scope = "row";
  return made;
}

async function compare(form) {
  const status = form.querySelector(".shown");
  status.textContent = "Reading …";
  try {
    const [one, other] = await Promise.all([outcomesOf(form.elements.one.value), outcomesOf(form.elements.other.value)]);
    const keys = [...new Set([...one.keys(), ...other.keys()])].sort();
    const differ = keys.filter((key) => one.get(key) !== other.get(key));
    const rows = differ.slice(0, MOST).map((key) => {
      const [name, lane, topology] = JSON.parse(key);
      const row = document.createElement("tr");
      const said = (letter) => (letter ? OUTCOMES[letter] ?? "other" : "not run");
      row.append(cell(name, "th"), cell(`${lane} ${topology}`), cell(said(one.get(key))), cell(said(other.get(key))));
      return row;
    });
    const answer = document.getElementById("answer");
    answer.hidden = rows.length === 0;
    answer.querySelector("tbody").replaceChildren(...rows);
    status.textContent = `${differ.length} of ${keys.length} differ`;
  } catch (error) {
    status.textContent = `The data can't be read (${error.message}). Pages opened as files can't fetch; use a server.`;
  }
}

const form = document.getElementById("compare");
const query = new URLSearchParams(location.search);
form.hidden = false;
for (const name of ["one", "other"]) {
  const value = query.get(name);
  if ([...form.elements[name].options].some((option) => option.value === value)) form.elements[name].value = value;
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const asked = new URLSearchParams({ one: form.elements.one.value, other: form.elements.other.value });
  history.replaceState(null, "", `?${asked}${location.hash}`);
  compare(form);
});
if (query.has("one") && query.has("other")) compare(form);
