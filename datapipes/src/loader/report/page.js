// Draws the timeline again for a part of the time, by the rules of `panels.rs`.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { until, delivered, panels, batches } = data;
  const end = until.length ? until[until.length - 1] : 0;
  const box = document.getElementById("timeline");
  const plots = [...box.querySelectorAll(".plot")];
  if (!end || !plots.length) return;
  const begun = (at) => (at ? until[at - 1] : 0);
  let from = 0, to = end;

  // Returns the values of a line in stretches of equal length between two times.
  function resample(values, most, from, to, number) {
    const step = (to - from) / number, result = [];
    let at = 0;
    for (let place = 0; place < number; place++) {
      const left = from + step * place, right = left + step;
      while (at + 1 < until.length && until[at] <= left) at++;
      let sum = 0, seconds = 0, largest = 0;
      for (let i = at; i < until.length && begun(i) < right; i++) {
        const both = Math.max(0, Math.min(until[i], right) - Math.max(begun(i), left));
        sum += values[i] * both;
        seconds += both;
        largest = Math.max(largest, values[i]);
      }
      result.push(most ? largest : sum / Math.max(seconds, 1e-9));
    }
    return result;
  }

  function stretches() {
    let batches = 0, samples = 0;
    for (let i = 0; i < until.length; i++) {
      if (until[i] <= from || begun(i) >= to) continue;
      batches += delivered[i];
      samples++;
    }
    return Math.max(1, Math.min(samples, Math.max(24, Math.min(240, Math.floor(batches / 3)))));
  }

  function roundUp(value) {
    value = Math.max(value, 1e-3);
    const power = 10 ** Math.floor(Math.log10(value));
    return power * ([1, 2, 5].find((step) => step * power >= value * 0.999) ?? 10);
  }

  function top(most, panel) {
    if (panel.fixed) return panel.limit;
    if (panel.limit !== null && panel.limit <= 4 * most) return Math.max(most, panel.limit) * 1.1;
    return roundUp(most);
  }

  function show(value) {
    if (value >= 99.95) return Math.round(value).toLocaleString("en");
    return value >= 9.995 ? value.toFixed(1) : value <= 0 ? "0" : value.toFixed(2);
  }

  function moment(seconds, shown) {
    const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    if (shown < 0.2) return (seconds * 1e3).toFixed(1) + " ms";
    if (shown < 2) return seconds.toFixed(2) + " s";
    if (shown < 20) return seconds.toFixed(1) + " s";
    if (shown < 120) return whole + " s";
    if (shown < 7200) return Math.floor(whole / 60) + ":" + two(whole % 60) + " min";
    return Math.floor(whole / 3600) + ":" + two(Math.floor(whole / 60) % 60) + " h";
  }

  let shown = [];
  function draw() {
    const number = stretches(), step = 1000 / number;
    shown = panels.map((panel, place) => {
      const lines = panel.lines.map((line) => resample(line.values, line.most, from, to, number));
      const sums = Array.from({ length: number }, (_, at) =>
        lines.reduce((sum, line) => (panel.stacked ? sum + line[at] : Math.max(sum, line[at])), 0));
      const high = top(Math.max(...sums), panel);
      const y = (value) => (100 - 100 * Math.min(1, value / high)).toFixed(1);
      const x = (at) => (step * at).toFixed(1);
      const paths = plots[place].querySelectorAll("path[data-line]");
      let below = new Array(number).fill(0);
      lines.forEach((line, i) => {
        const base = panel.stacked ? below : null;
        const above = line.map((value, at) => value + (base ? base[at] : 0));
        let d = above.map((value, at) => `${at ? "L" : "M"}${x(at)} ${y(value)}L${x(at + 1)} ${y(value)}`).join("");
        if (base) {
          for (let at = number - 1; at >= 0; at--) d += `L${x(at + 1)} ${y(base[at])}L${x(at)} ${y(base[at])}`;
          below = above;
        }
        paths[i].setAttribute("d", d);
      });
      const hasLine = panel.limit !== null && panel.limit < high;
      const limit = plots[place].querySelector("path.limit");
      if (limit) limit.setAttribute("d", hasLine ? `M0 ${y(panel.limit)}H1000` : "");
      const label = panel.fixed ? "100 %" : hasLine ? "" : show(high) + " " + panel.unit;
      plots[place].querySelector(".top").textContent = label;
      return lines;
    });
    drawBatches();
    const ticks = box.querySelectorAll(".axis span");
    ticks.forEach((tick, i) => {
      tick.textContent = moment(from + ((to - from) * i) / (ticks.length - 1), to - from);
    });
  }

  // Draws each of the last batches: the wait for it and its use, in two shades by turns.
  function drawBatches() {
    const x = (at) => ((1000 * (at - from)) / (to - from)).toFixed(2);
    const paths = ["", "", "", ""];
    batches.forEach(([asked, ready, used], place) => {
      for (const [kind, begun, ended] of [[0, asked, ready], [2, ready, used]]) {
        const left = Math.max(begun, from), right = Math.min(ended, to);
        if (left < right) paths[kind + (place % 2)] += `M${x(left)} 15H${x(right)}V85H${x(left)}Z`;
      }
    });
    box.querySelectorAll(".batches path").forEach((path, kind) => path.setAttribute("d", paths[kind]));
  }

  // Shows a part of the time: not less than four samples or batches, and nothing outside of the report.
  const span = batches.length ? batches[batches.length - 1][2] - batches[0][0] : Infinity;
  const least = Math.min((4 * end) / until.length, (4 * span) / (batches.length || 1));
  function view(left, right) {
    const length = Math.min(end, Math.max(right - left, least));
    from = Math.max(0, Math.min(end - length, (left + right - length) / 2));
    to = from + length;
    draw();
  }
  const zoom = (factor, at = (from + to) / 2) => view(at - (at - from) * factor, at + (to - at) * factor);
  const move = (share) => {
    const by = Math.max(-from, Math.min(end - to, (to - from) * share));
    view(from + by, to + by);
  };
  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), back: () => move(-0.4), on: () => move(0.4), all: () => view(0, end),
    batches: () => batches.length && view(batches[Math.max(0, batches.length - 64)][0], batches[batches.length - 1][2]),
  };

  const nav = box.querySelector("nav");
  nav.hidden = false;
  nav.querySelector("[data-do=batches]").hidden = !batches.length;
  nav.addEventListener("click", (event) => actions[event.target.dataset.do]?.());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { "+": "in", "-": "out", ArrowLeft: "back", ArrowRight: "on", 0: "all", b: "batches" };
    const action = keys[event.key];
    if (action) {
      actions[action]();
      event.preventDefault();
    }
  });

  const share = (event, plot) => {
    const area = plot.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - area.left) / area.width));
  };
  function mark(left, right) {
    for (const plot of plots) {
      const { style, classList } = plot.querySelector(".mark");
      style.display = left === null ? "none" : "block";
      style.left = 100 * Math.min(left, right) + "%";
      style.width = 100 * Math.abs(right - left) + "%";
      classList.toggle("area", left !== right);
    }
  }
  function values(at) {
    panels.forEach((panel, place) => {
      const outputs = plots[place].parentElement.querySelectorAll("output");
      shown[place].forEach((line, i) => {
        const value = at === null ? null : line[Math.min(line.length - 1, Math.floor(at * line.length))];
        const text = value === null ? "" : panel.fixed ? Math.round(100 * value) + " %" : show(value);
        outputs[i].textContent = text;
      });
    });
    const time = from + (to - from) * at;
    const batch = at === null ? undefined : batches.find(([asked, , used]) => asked <= time && time < used);
    const said = batches.length && box.querySelector(".batches").parentElement.querySelector("output");
    if (said) {
      const ms = (seconds) => show(1e3 * seconds) + " ms";
      said.textContent = batch ? `waited ${ms(batch[1] - batch[0])}, used ${ms(batch[2] - batch[1])}` : "";
    }
    box.querySelector(".at").textContent = at === null ? "" : "at " + moment(from + (to - from) * at, (to - from) / 20);
  }
  let dragged = null;
  for (const plot of plots) {
    plot.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      dragged = share(event, plot);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      const at = share(event, plot);
      mark(dragged ?? at, at);
      values(at);
    });
    plot.addEventListener("pointerup", (event) => {
      const at = share(event, plot), length = to - from, start = dragged;
      dragged = null;
      if (start !== null && Math.abs(at - start) > 0.01) {
        view(from + length * Math.min(at, start), from + length * Math.max(at, start));
      }
      mark(at, at);
      values(at);
    });
    for (const name of ["pointerleave", "pointercancel"]) {
      plot.addEventListener(name, () => {
        if (name === "pointerleave" && dragged !== null) return;
        dragged = null;
        mark(null, null);
        values(null);
      });
    }
    plot.addEventListener("dblclick", actions.all);
    plot.addEventListener("wheel", (event) => {
      if (event.ctrlKey) zoom(Math.exp(event.deltaY / 300), from + (to - from) * share(event, plot));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 600);
      else return;
      event.preventDefault();
    }, { passive: false });
  }
  draw();
})();
