// Reads data of this site without fetch, which browsers refuse for pages opened from a disk.
"use strict";

const packed = {}; // the scripts in data/ fill it, by path

// JSON that was compressed by zlib, in base64.
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

function load(path) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `data/${path}.js`;
    script.onload = () => resolve(unpack(packed[path]));
    script.onerror = () => reject(new Error(`there is no ${script.src}`));
    document.head.append(script);
  });
}
