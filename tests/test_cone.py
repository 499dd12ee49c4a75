"""The draggable figure: what it says of itself, and what its script computes, run by node on a small stand-in page."""

import json
import re
import shutil
import subprocess

import pytest
import torch

from minihaares import cone, depth_read

PAGE = cone.draggable()
NUMBER = r"(\d+\.\d+)"


def test_it_is_complete_and_loads_nothing():
    assert "«" not in PAGE and "»" not in PAGE
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|https?:|fetch\(|import\s*\(", PAGE)
    assert PAGE.count("<script>") == PAGE.count("</script>") == 1
    for formula in cone.formulas().values():
        assert formula in PAGE


def test_it_can_be_used_without_a_pointer_and_without_eyes():
    labels = re.findall(r"<label[ >].*?</label>", PAGE, re.DOTALL)
    assert len(labels) == len(cone.SLIDERS) + 1 == PAGE.count("<input ")
    for label in labels:
        words = re.sub(r"<[^>]*>", " ", label).split()
        assert label.count("<input ") == 1 and len(words) >= 3
    for picture in re.findall(r"<svg[^>]*>", PAGE, re.DOTALL):
        assert 'role="img"' in picture
        (description,) = re.findall(r'aria-label="([^"]*)"', picture)
        assert len(description.split()) > 20
    assert 'aria-live="polite"' in PAGE and "<noscript>" in PAGE and "<figcaption>" in PAGE


def test_it_starts_within_its_sliders():
    assert {name for name, *_ in cone.SLIDERS} == set(cone.START)
    for name, _, least, most, _ in cone.SLIDERS:
        assert least <= cone.START[name] <= most
    assert cone.START["w_C"] + cone.START["w_D"] <= 1


# --- the script -----------------------------------------------------------------------------------------------------

# Just enough of a page: sliders that keep to their range and step, two groups to draw into, one sentence.
STAND_IN = """
const [page, moves] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const inputs = {}, labels = [], parts = { coefficients: {}, vectors: {} }, says = {}, on = {};
for (const [, label] of page.matchAll(/<label[ >](.*?)<\\/label>/gs)) {
  const found = [...label.matchAll(/(type|name|min|max|step|value)="([^"]*)"/g)];
  const at = Object.fromEntries(found.map(m => [m[1], m[2]]));
  let held = Number(at.value);
  const input = { name: at.name, checked: label.includes(" checked"), get value() { return String(held); } };
  Object.defineProperty(input, "value", { get: () => String(held), set: value => {
    const inside = Math.min(at.max, Math.max(at.min, value));
    held = Number(at.min) + Math.round((inside - at.min) / at.step) * at.step;
  } });
  const output = at.type === "range" ? {} : null;
  inputs[at.name] = input;
  labels.push({ querySelector: wanted => wanted === "output" ? output : input });
}
const root = {
  querySelector(wanted) {
    const named = wanted.match(/input\\[name="(\\w+)"\\]/), part = wanted.match(/data-part="(\\w+)"/);
    return named ? inputs[named[1]] : part ? parts[part[1]] : says;
  },
  querySelectorAll: () => labels,
  addEventListener(kind, action) { on[kind] = action; },
  setAttribute() {},
};
global.document = { querySelectorAll: () => [root] };
global.DOMPoint = class {
  constructor(x, y) { Object.assign(this, { x, y }); }
  matrixTransform() { return this; }
};
eval(page.match(/<script>([^]*)<\\/script>/)[1]);
const svg = { setPointerCapture() {}, getScreenCTM: () => ({ inverse() {} }) };
const states = [];
function note() {
  const values = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, Number(input.value)]));
  states.push({ ...values, matched: inputs.matched.checked, says: says.textContent,
    drawn: parts.coefficients.innerHTML + parts.vectors.innerHTML });
}
note();
for (const [name, x, y] of moves) {
  if (y === undefined) {
    if (name === "matched") inputs.matched.checked = x; else inputs[name].value = x;
    on.input({ target: inputs[name] });
  } else {
    on.pointerdown({ target: { getAttribute: () => name, closest: () => svg }, preventDefault() {} });
    on.pointermove({ clientX: x, clientY: y });
    on.pointerup();
  }
  note();
}
console.log(JSON.stringify(states));
"""
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def after(*moves: tuple) -> list[dict]:
    """The states of the page at the start and after each move: (slider, value) or (circle, x, y in picture units)."""
    given = json.dumps([PAGE, moves])
    done = subprocess.run(["node", "-e", STAND_IN], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def coefficients(state: dict) -> tuple[float, float, float]:
    """Early, late, and what is left, as the sentence gives them."""
    early, sign, late, left = re.search(
        rf"is {NUMBER} × early half ([+−]) {NUMBER} × late half, and {NUMBER} of", state["says"]
    ).groups()
    return float(early), float(late) * (-1 if sign == "−" else 1), float(left)


@needs_node
def test_its_numbers_are_those_of_a_read():
    """At the start, for other halves, and with a scale of its own; matching as depth_read does it."""
    for state in after(("Ex", -1.5), ("Fy", -2.0), ("w_C", 0.5), ("a", 3.0)):
        E, F = (torch.tensor([[[state[half + "x"], state[half + "y"]]]], dtype=torch.float64) for half in "EF")
        hat = depth_read.matched(E + F, E - F, cone.GAMMA, cone.EPS) if state["matched"] else state["a"] * (E - F)
        read = state["w_C"] * (E + F) + state["w_D"] * hat
        early, late, left = coefficients(state)
        torch.testing.assert_close(early * E + late * F, read, rtol=0, atol=0.06)
        assert left == pytest.approx(1 - state["w_C"] - state["w_D"], abs=0.006)
        assert abs(late) <= early
    assert not state["matched"] and state["a"] == 3


@needs_node
def test_the_weights_never_exceed_one():
    states = after(("w_C", 0.9), ("w_D", 0.7), ("w_C", 1))
    assert [(round(state["w_C"], 2), round(state["w_D"], 2)) for state in states[1:]] == [
        (0.9, 0.1),
        (0.3, 0.7),
        (1, 0),
    ]


@needs_node
def test_circles_can_be_dragged():
    frame = {"left": 0.3, "top": 1.25, "unit": 85}
    target = (0.6, -0.2)
    where = ((target[0] + frame["left"]) * frame["unit"], (frame["top"] - target[1]) * frame["unit"])
    start, scaled, moved, half = after(("a", 1), ("c", *where), ("E", 3.6 * 55, (3.6 - 1.5) * 55))
    assert coefficients(moved)[:2] == pytest.approx(target, abs=0.02)
    assert (half["Ex"], half["Ey"]) == pytest.approx((0, 1.5))
    assert start["drawn"] != scaled["drawn"] != moved["drawn"] != half["drawn"]
    assert "NaN" not in "".join(state["drawn"] + state["says"] for state in (start, scaled, moved, half))


@needs_node
def test_it_says_what_two_blocks_could_do():
    starts = after(("a", 1), ("w_D", 0.5), ("w_C", 0.2), ("w_D", 0.1), ("w_C", 0.9))
    says = [state["says"] for state in starts]
    assert "cannot do that" in says[3]  # 0.7 early, −0.3 late
    assert "could read the same" in says[4]  # 0.3 early, 0.1 late
    assert "run out of weight" in says[5]  # 1.0 early, 0.8 late


@needs_node
def test_edge_cases_of_matching_draw_something():
    for state in after(("Fx", -1.6), ("Fy", -0.6), ("Fx", 1.6), ("Fy", 0.6), ("Ex", 0), ("Ey", 0)):
        assert "NaN" not in state["drawn"] + state["says"] and "Infinity" not in state["drawn"]
        assert 0.25 <= state["a"] <= 4
