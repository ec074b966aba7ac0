// The plots of a page: an SVG each, ticks, a legend, values at the pointer, a logarithmic scale.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent), space = "http://www.w3.org/2000/svg";
  const H = 220, L = 52, R = 8, T = 8, B = 22;
  const show = v => v === null ? "NaN" : v === 0 ? "0" :
    Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(1) : String(+v.toPrecision(4));
  const node = (name, at, inside) => {
    const made = document.createElementNS(space, name);
    for (const key in at) made.setAttribute(key, at[key]);
    if (inside !== undefined) made.textContent = inside;
    return made;
  };
  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= raw) || raw, out = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) out.push(v);
    return out;
  }
  function draw(figure, lines, log) {
    const W = Math.max(300, figure.clientWidth);  // a unit is a pixel, so that text is readable on a phone
    figure.replaceChildren();
    figure.dataset.log = log ? "1" : "";
    const xs = lines.flatMap(l => l.x), ys = lines.flatMap(l => [...l.y, ...(l.low || [])]).filter(v => v !== null && (!log || v > 0));
    const positive = ys.length > 0 && ys.every(v => v > 0) && Math.max(...ys) > 20 * Math.min(...ys);
    const f = log ? Math.log10 : v => v;
    let x0 = Math.min(...xs), x1 = Math.max(...xs), y0 = f(Math.min(...ys)), y1 = f(Math.max(...ys));
    if (!ys.length) { y0 = 0; y1 = 1; }
    if (x0 === x1) { x0 -= 1; x1 += 1; }
    if (y0 === y1) { const d = Math.abs(y0) * .1 || 1; y0 -= d; y1 += d; }
    const px = x => L + (x - x0) / (x1 - x0) * (W - L - R), py = y => H - B - (f(y) - y0) / (y1 - y0) * (H - T - B);
    const svg = node("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
    for (const v of ticks(y0, y1, 4)) {
      const y = py(log ? 10 ** v : v);
      svg.append(node("line", { x1: L, x2: W - R, y1: y, y2: y, class: "grid" }),
        node("text", { x: L - 4, y: y + 4, "text-anchor": "end" }, show(log ? 10 ** v : v)));
    }
    for (const v of ticks(x0, x1, W / 120))
      svg.append(node("text", { x: px(v), y: H - 6, "text-anchor": "middle" }, show(v)));
    lines.forEach((line, k) => {
      if (line.low) {  // a band: along its upper end, and back along its lower one
        const edge = (v, i) => v === null || (log && v <= 0) ? "" : `L${px(line.x[i]).toFixed(1)} ${py(v).toFixed(1)}`;
        const d = line.y.map(edge).join("") + line.low.map(edge).reverse().join("");
        svg.append(node("path", { d: `M${d.slice(1)}Z`, style: `fill: var(--c${k % 8})`, class: "band" }));
        return;
      }
      if (line.mark !== undefined)
        svg.append(node("line", { x1: px(line.mark), x2: px(line.mark), y1: T, y2: H - B, class: "mark" }));
      let d = "", pen = false;
      line.x.forEach((x, i) => {
        const y = line.y[i], good = y !== null && (!log || y > 0);
        if (good) d += `${pen ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
        pen = good;
      });
      svg.append(node("path", { d: d || "M0 0", stroke: `var(--c${k % 8})` }));
      if (line.x.length < 3) line.x.forEach((x, i) => line.y[i] !== null &&
        svg.append(node("circle", { cx: px(x), cy: py(line.y[i]), r: 3, fill: `var(--c${k % 8})` })));
    });
    const cursor = node("line", { y1: T, y2: H - B, x1: -9, x2: -9, class: "cursor" });
    svg.append(cursor);
    const legend = document.createElement("figcaption");
    const say = at => {
      legend.replaceChildren(...lines.map((line, k) => {
        const entry = document.createElement("span");
        entry.style.color = `var(--c${k % 8})`;
        let near = 0;
        if (at !== null) line.x.forEach((x, i) => { if (Math.abs(x - at) < Math.abs(line.x[near] - at)) near = i; });
        const value = (line.low ? `${show(line.low[near])} – ` : "") + show(line.y[near]);
        entry.textContent = at === null ? line.name : `${line.name} ${value} @ ${show(line.x[near])}`;
        return entry;
      }));
    };
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * W;
      const at = x0 + (Math.min(Math.max(x, L), W - R) - L) / (W - L - R) * (x1 - x0);
      cursor.setAttribute("x1", px(at)); cursor.setAttribute("x2", px(at));
      say(at);
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9);
      say(null);
    });
    say(null);
    if (positive) {
      const button = document.createElement("button");
      button.textContent = data.log;
      button.setAttribute("aria-pressed", String(log));
      button.addEventListener("click", () => draw(figure, lines, !log));
      figure.append(button);
    }
    figure.append(svg, legend);
  }
  const all = () => document.querySelectorAll(".chart").forEach(
    figure => draw(figure, data.charts[+figure.dataset.k], figure.dataset.log === "1"));
  let wide = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; all(); } });
  all();
})();
