// Shows the case that the address names after its "#", from the data of the page. TEMPLATE is templates/case_body.html.

const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

function html(parts, scope) {
  return parts.map((part) => {
    if (typeof part === "string") return part;
    const value = part.path.reduce((of, name) => of[name], scope);
    if (!part.then) return escaped(value);
    const items = Array.isArray(value) ? value : value ? [value] : [];
    if (!items.length) return html(part.otherwise, scope);
    return part.as ? items.map((item) => html(part.then, { ...scope, [part.as]: item })).join("") : html(part.then, scope);
  }).join("");
}

async function show() {
  const cases = await unpack(document.getElementById("cases").content.textContent);
  const render = () => {
    const name = location.hash.slice(1);
    if (name && cases[name] === null) location.replace(`${name}.html`); // it has a page of its own now
    if (!cases[name]) return;
    document.getElementById("main").innerHTML = html(TEMPLATE, { root: "../", case: cases[name] });
    document.title = document.title.replace(/^.* · /, `${cases[name].name} · `);
  };
  addEventListener("hashchange", render);
  render();
}

// A case that had a page of its own may now share one.
const former = /\/case\/([^/]*?([0-9a-f]{2})[0-9a-f]{10})\.html$/.exec(location.pathname);
if (document.getElementById("cases")) show();
else if (former) location.replace(`${former[2]}.html#${former[1]}`);
