// Compares any two runs, from the data beside the pages.
"use strict";

const OUTCOMES = {
  p: "passed", f: "failed", c: "crashed", h: "hung", b: "conflict", s: "skipped", x: "expected failure", u: "unexpected pass",
};
const MOST = 2000; // rows

const WORKS = "pu";
const BROKEN = "fchbx";

async function outcomesOf(run) {
  const answer = await load(`run/${run}`);
  const places = await load(`places/${answer.places}`);
  return new Map(
    places.map(([name, lane, topology, area, framework, ...names], at) => [
      JSON.stringify([name, lane, topology]), { letter: answer.outcomes[at], area, framework, names },
    ]),
  );
}

// The key in "other" of each case of "one" that both frameworks are asked, as harness/verdicts/alignment.py pairs them.
function pairsOf(one, other, move) {
  const found = new Map();
  const paired = new Set();
  for (const kind of [0, 1]) {
    const theirs = new Map();
    for (const [key, { framework, names }] of other)
      if (framework === move.to && !paired.has(key) && !theirs.has(names[kind])) theirs.set(names[kind], key);
    for (const [key, { framework, names }] of one) {
      if (framework !== move.from || found.has(key) || !theirs.has(names[kind])) continue;
      found.set(key, theirs.get(names[kind]));
      paired.add(theirs.get(names[kind]));
      theirs.delete(names[kind]);
    }
  }
  return found;
}

// From a framework that only "one" asks to one that only "other" asks; of several the pair with the most cases in common.
function moveBetween(one, other) {
  const [ours, theirs] = [one, other].map((run) => new Set([...run.values()].map((said) => said.framework ?? "")));
  const moves = [];
  for (const from of ours)
    for (const to of theirs)
      if (from && to && !theirs.has(from) && !ours.has(to)) moves.push({ from, to, pairs: pairsOf(one, other, { from, to }) });
  moves.sort((a, b) => b.pairs.size - a.pairs.size);
  return moves.length > 1 && moves[0].pairs.size === moves[1].pairs.size ? undefined : moves[0];
}

// The words are in docs/glossary.md; "" where neither side has an answer.
function effectOn(was, now) {
  const answer = (said) => (said && WORKS.includes(said.letter) ? "works" : said && BROKEN.includes(said.letter) ? "broken" : "");
  const [before, after] = [answer(was), answer(now)];
  if (!before) return after && "only after moving";
  if (!after) return now ? "skipped after moving" : "not available after moving";
  if (before === after) return `${after} on both`;
  return after === "works" ? "fixed by moving" : "broken by moving";
}

function showEffects(keys, one, other, moved) {
  const table = document.getElementById("effects");
  table.hidden = !moved;
  if (!moved) return;
  const columns = [...table.querySelectorAll("thead th")].slice(1).map((head) => head.textContent);
  const sizes = new Map();
  for (const key of keys) {
    const effect = effectOn(one.get(key), other.get(key));
    for (const area of effect ? [(other.get(key) ?? one.get(key)).area, "all"] : []) {
      if (!sizes.has(area)) sizes.set(area, new Map());
      sizes.get(area).set(effect, (sizes.get(area).get(effect) ?? 0) + 1);
    }
  }
  const last = (area) => (area === "all" ? 1 : 0);
  const areas = [...sizes.keys()].sort((a, b) => last(a) - last(b) || (a < b ? -1 : 1));
  const rows = areas.map((area) => {
    const row = document.createElement("tr");
    row.append(area === "all" ? cell(area, "th") : leading(area, "cases.html?area="), ...columns.map((name) => cell(sizes.get(area).get(name) ?? "")));
    return row;
  });
  table.querySelector("tbody").replaceChildren(...rows);
}

function cell(text, tag = "td") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (tag === "th") made.scope = "row";
  return made;
}

// A row's head that leads to what the list of cases says of it.
function leading(text, address) {
  const made = cell("", "th");
  const link = document.createElement("a");
  link.href = address + encodeURIComponent(text);
  link.textContent = text;
  link.className = "case";
  made.append(link);
  return made;
}

async function compare(form) {
  const status = form.querySelector(".shown");
  status.textContent = "Reading …";
  try {
    const [first, other] = await Promise.all([outcomesOf(form.elements.one.value), outcomesOf(form.elements.other.value)]);
    const move = moveBetween(first, other);
    const one = new Map([...first].map(([key, said]) => [move?.pairs.get(key) ?? key, said]));
    const keys = [...new Set([...one.keys(), ...other.keys()])].sort();
    const differ = keys.filter((key) => one.get(key)?.letter !== other.get(key)?.letter);
    showEffects(keys, one, other, move);
    const rows = differ.slice(0, MOST).map((key) => {
      const [name, lane, topology] = JSON.parse(key);
      const row = document.createElement("tr");
      const said = (found) => (found ? OUTCOMES[found.letter] ?? "other" : "not run");
      row.append(leading(name, "cases.html?q="), cell(`${lane} ${topology}`), cell(said(one.get(key))), cell(said(other.get(key))));
      if (move) row.append(cell(effectOn(one.get(key), other.get(key))));
      return row;
    });
    const answer = document.getElementById("answer");
    answer.hidden = rows.length === 0;
    answer.querySelector(".effect").hidden = !move;
    answer.querySelector("tbody").replaceChildren(...rows);
    const from = move ? `, moving from ${move.from} to ${move.to}` : "";
    status.textContent = differ.length
      ? `${differ.length} of ${keys.length} differ${from}` + (differ.length > MOST ? `, the first ${MOST} below` : "")
      : `All ${keys.length} outcomes are the same${from}.`;
  } catch (error) {
    status.textContent = `The data can't be read (${error.message}).`;
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
