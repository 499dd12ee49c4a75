"""The picture of chapter 09 that can be dragged: one page fragment of HTML, SVG and JavaScript, with no kernel behind.

It works wherever a notebook's HTML output is shown with its scripts: in JupyterLab once the cell was run, and in the
web book. It loads nothing. Its formulas are those of `algebra`, printed as JavaScript by sympy.
"""

import sympy as sp

from . import algebra
from .plots import BLUE, ORANGE, VERMILION

GAMMA, EPS = 4, 1e-6  # the paper's clip and what keeps a ratio finite
START = {"w_C": 0.3, "w_D": 0.45, "a": 1, "Ex": 1.6, "Ey": 0.6, "Fx": -0.3, "Fy": 1.1}

SLIDERS = (  # name, label, least, most, step
    ("w_C", "weight of the sum, w<sub>C</sub>", 0, 1, 0.01),
    ("w_D", "weight of the detail, w<sub>D</sub>", 0, 1, 0.01),
    ("a", "scale of the detail, a", 0.25, GAMMA, 0.01),
    ("Ex", "early half, first channel", -2, 2, 0.05),
    ("Ey", "early half, second channel", -2, 2, 0.05),
    ("Fx", "late half, first channel", -2, 2, 0.05),
    ("Fy", "late half, second channel", -2, 2, 0.05),
)


def formulas() -> dict[str, str]:
    """The four formulas the page computes with, as JavaScript expressions in the symbols' own names."""
    halves, cone, matching = algebra.routed_coefficients(), algebra.cone(), algebra.matching()
    forms = {
        "early": halves.forms["early"],
        "late": halves.forms["late"],
        "w_C": cone.forms["w_C"],
        "w_D": cone.forms["w_D"],
        "scale": matching.forms["scale"],
    }
    return {name: sp.jscode(form) for name, form in forms.items()}


def draggable() -> str:
    """The figure as an HTML string, for IPython.display.HTML."""
    rows = "".join(
        f'<label><span>{label}</span><input type="range" name="{name}" min="{least}" max="{most}" step="{step}" '
        f'value="{START[name]}"><output></output></label>'
        for name, label, least, most, step in SLIDERS
    )
    page = PAGE
    for mark, text in {**formulas(), "sliders": rows, "gamma": str(GAMMA), "epsilon": str(EPS)}.items():
        page = page.replace(f"«{mark}»", text)
    for mark, colour in {"pair": ORANGE, "blocks": BLUE, "read": VERMILION}.items():
        page = page.replace(f"«{mark}»", colour)
    return page


PAGE = """<figure class="cone-figure">
<style>
.cone-figure { background: #fff; color: #000; margin: 0; padding: .5em; font: 14px/1.4 sans-serif; max-width: 56em }
.cone-figure .planes { display: flex; flex-wrap: wrap; gap: 1em }
.cone-figure svg { flex: 1 1 20em; min-width: 16em; max-width: 27em; touch-action: none; overflow: hidden }
.cone-figure svg text { font: 13px sans-serif; fill: #000 }
.cone-figure .axis { stroke: #999; stroke-width: 1 }
.cone-figure .pair { fill: «pair»; fill-opacity: .3; stroke: #000; stroke-width: 1.6 }
.cone-figure .blocks { fill: «blocks»; fill-opacity: .15; stroke: «blocks»; stroke-width: 2; stroke-dasharray: 6 4 }
.cone-figure .arrow { stroke: #000; stroke-width: 2 }
.cone-figure .arrow.thin { stroke-width: 1.2; stroke-dasharray: 2 3 }
.cone-figure .arrow.read { stroke: «read»; stroke-width: 4 }
.cone-figure .handle { fill: #fff; stroke: #000; stroke-width: 2; cursor: grab }
.cone-figure .handle.read { fill: «read» }
.cone-figure label { display: grid; grid-template-columns: 15em minmax(6em, 1fr) 4em; gap: .6em; align-items: center }
.cone-figure label.check { grid-template-columns: 1.5em 1fr }
.cone-figure output { font-variant-numeric: tabular-nums; text-align: right }
.cone-figure .says { min-height: 4.2em; margin: .6em 0; padding: .4em .6em; border-left: 4px solid «read» }
</style>
<div class="planes">
<svg viewBox="0 0 400 475" role="img" aria-label="The plane of half coefficients, the early one to the right and the
late one upwards. A solid triangle with corners 0, (1, 1) and (a, minus a): what a sum and a detail reach. A dashed
triangle with corners 0, (1, 0) and (0, 1): what two cumulative blocks reach. A dot: the present weights.">
<g data-part="coefficients"></g></svg>
<svg viewBox="0 0 400 400" role="img" aria-label="The plane of two channels with arrows for the early half E, the late
half F, their sum C and the scaled detail, and a thick arrow for what is read. The solid triangle is what the sum and
the detail reach, the dashed one what two cumulative blocks reach.">
<g data-part="vectors"></g></svg>
</div>
<figcaption>Solid triangles: what the sum C and the detail aD reach. Dashed: what two cumulative blocks, E and F, reach.
Dot and thick arrow: the present read. Drag the circles, or use the sliders.</figcaption>
<p class="says" aria-live="polite"></p>
<div role="group" aria-label="Weights, scale and halves">«sliders»
<label class="check"><input type="checkbox" name="matched" checked>
<span>let matching choose a: RMS of the sum over RMS of the detail, clipped to 1/«gamma» … «gamma»</span></label></div>
<noscript>This figure needs JavaScript; the picture above shows the same sets.</noscript>
<script>
(() => {
const gamma = «gamma», epsilon = «epsilon»;
const early = (w_C, w_D, a) => «early»;
const late = (w_C, w_D, a) => «late»;
const weightC = (c_E, c_F, a) => «w_C»;
const weightD = (c_E, c_F, a) => «w_D»;
const scale = (c, delta) => «scale»;
const plus = (p, q, t = 1) => [p[0] + t * q[0], p[1] + t * q[1]];
const rms = p => Math.sqrt((p[0] * p[0] + p[1] * p[1]) / 2);
const clip = (value, least, most) => Math.min(most, Math.max(least, value));
const FRAMES = { coefficients: { left: -0.3, top: 1.25, unit: 85 }, vectors: { left: -3.6, top: 3.6, unit: 55 } };

function start(root) {
  const input = name => root.querySelector(`input[name="${name}"]`);
  const get = name => Number(input(name).value);
  const set = (name, value) => { input(name).value = value; };
  const place = (frame, p) => [(p[0] - frame.left) * frame.unit, (frame.top - p[1]) * frame.unit];
  const list = (frame, points) => points.map(p => place(frame, p).map(x => x.toFixed(1)).join(",")).join(" ");
  const shape = (frame, kind, points) => `<polygon class="${kind}" points="${list(frame, points)}"/>`;
  const line = (frame, kind, p, q) => `<polyline class="${kind}" fill="none" points="${list(frame, [p, q])}"/>`;
  const text = (frame, p, words, dx = 8, dy = -6) => {
    const [x, y] = place(frame, p);
    return `<text x="${(x + dx).toFixed(1)}" y="${(y + dy).toFixed(1)}">${words}</text>`;
  };
  const dot = (frame, p, name, kind = "") => {
    const [x, y] = place(frame, p).map(value => value.toFixed(1));
    return `<circle class="handle ${kind}" data-drag="${name}" cx="${x}" cy="${y}" r="9"/>`;
  };
  const axes = frame => line(frame, "axis", [-9, 0], [9, 0]) + line(frame, "axis", [0, -9], [0, 9]);

  function draw() {
    const E = [get("Ex"), get("Ey")], F = [get("Fx"), get("Fy")], zero = [0, 0];
    const C = plus(E, F), D = plus(E, F, -1);
    if (input("matched").checked) set("a", scale(rms(C), rms(D)));
    const a = get("a"), w_C = get("w_C"), w_D = get("w_D");
    const c = [early(w_C, w_D, a), late(w_C, w_D, a)];
    const hat = [a * D[0], a * D[1]], h = plus([c[0] * E[0], c[0] * E[1]], F, c[1]);
    let f = FRAMES.coefficients;
    root.querySelector('[data-part="coefficients"]').innerHTML = axes(f)
      + shape(f, "blocks", [zero, [1, 0], [0, 1]]) + shape(f, "pair", [zero, [1, 1], [a, -a]])
      + text(f, [1, 1], "(1, 1): the sum alone", 10, 12) + text(f, [a, -a], "(a, −a)", -58, 4)
      + text(f, [0, 1.25], "× late half", 6, 14) + text(f, [4.4, 0], "× early half", -76, 16)
      + text(f, [1, 0], "1", -3, 16) + text(f, [0, 1], "1", -12, 5) + dot(f, c, "c", "read");
    f = FRAMES.vectors;
    root.querySelector('[data-part="vectors"]').innerHTML = axes(f)
      + shape(f, "blocks", [zero, E, F]) + shape(f, "pair", [zero, C, hat])
      + line(f, "arrow", zero, E) + line(f, "arrow", zero, F)
      + line(f, "arrow thin", zero, C) + line(f, "arrow thin", zero, hat) + line(f, "arrow read", zero, h)
      + text(f, C, "C = E + F") + text(f, hat, "aD") + text(f, h, "read", 8, 18) + dot(f, E, "E") + dot(f, F, "F")
      + text(f, E, "E", 12, 4) + text(f, F, "F", 12, 4);
    for (const label of root.querySelectorAll("label")) {
      const shown = label.querySelector("output");
      if (shown) shown.value = Number(label.querySelector("input").value).toFixed(2);
    }
    root.querySelector(".says").textContent = `The read is ${c[0].toFixed(2)} × early half `
      + `${c[1] < 0 ? "−" : "+"} ${Math.abs(c[1]).toFixed(2)} × late half, `
      + `and ${Math.max(0, 1 - w_C - w_D).toFixed(2)} of the `
      + "weight is left for other sources. " + (c[1] < -1e-9
        ? "The late half is subtracted: two cumulative blocks cannot do that with weights that are not negative."
        : c[0] + c[1] > 1 + 1e-9
          ? "Both halves together get more than 1: two cumulative blocks would run out of weight."
          : "Two cumulative blocks could read the same.");
  }
  function spend(moved, other) {  // a read's weights add up to 1, and these are two of them
    set(other, Math.min(get(other), 1 - get(moved)));
  }
  root.addEventListener("input", event => {
    const name = event.target.name;
    if (name === "w_C") spend("w_C", "w_D");
    if (name === "w_D") spend("w_D", "w_C");
    if (name === "a") input("matched").checked = false;
    draw();
  });
  let held = null;
  root.addEventListener("pointerdown", event => {
    const name = event.target.getAttribute("data-drag");
    if (!name) return;
    const svg = event.target.closest("svg");
    held = { name, svg };
    svg.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  root.addEventListener("pointermove", event => {
    if (!held) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(held.svg.getScreenCTM().inverse());
    const frame = held.name === "c" ? FRAMES.coefficients : FRAMES.vectors;
    const p = [frame.left + at.x / frame.unit, frame.top - at.y / frame.unit];
    if (held.name === "c") {
      set("w_C", clip(weightC(p[0], p[1], get("a")), 0, 1));
      set("w_D", clip(weightD(p[0], p[1], get("a")), 0, 1));
      spend("w_C", "w_D");
    } else {
      set(held.name + "x", p[0]);
      set(held.name + "y", p[1]);
    }
    draw();
  });
  for (const end of ["pointerup", "pointercancel"]) root.addEventListener(end, () => { held = null; });
  draw();
}
for (const root of document.querySelectorAll(".cone-figure:not([data-ready])")) {
  root.setAttribute("data-ready", "");
  start(root);
}
})();
</script>
</figure>
"""
