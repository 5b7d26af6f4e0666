// Charts and the list of a report.
(() => {
  const MAX_LANES = 24;
  const MAX_LINES = 60; // more would cover what they lead to
  const HOVER = 16; // how near, in pixels, an event must be to be meant
  const KEYS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };

  const decoded = (text) => Array.from(unpacked(text), (value) => value / 65535); // numbers in [0, 1]

  // --- scales and ticks

  const logarithmic = (from, to, start, end) => {
    const scale = linear(Math.log(from), Math.log(to), start, end);
    return (value) => scale(Math.log(Math.max(value, from)));
  };
  const logTicks = (from, to) => {
    const found = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++) {
      for (const factor of [1, 2, 5]) found.push(Number((factor * 10 ** power).toPrecision(3)));
    }
    const inside = found.filter((value) => value >= from * 0.999 && value <= to * 1.001);
    if (inside.length <= 6) return inside;
    const decades = inside.filter((value) => Number.isInteger(Number(Math.log10(value).toFixed(6))));
    return decades.filter((_, index) => index % Math.ceil(decades.length / 6) === 0);
  };

  const duration = (span, data) => {
    if (!data.moments) return withUnit(`${data.unit === null ? "time " : ""}${number(span, 3)}`, data.unit);
    const units = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [SECOND, "s"]];
    for (let i = 0; i + 1 < units.length; i++) {
      const [[size, name], [shorter, shorterName]] = [units[i], units[i + 1]];
      if (span < size) continue;
      const count = Math.round(span / shorter);
      const [whole, rest] = [Math.floor(count / (size / shorter)), count % (size / shorter)];
      return `${whole} ${name}` + (rest ? ` ${rest} ${shorterName}` : "");
    }
    return `${number(span / SECOND, 3)} s`;
  };

  const axis = (group, { x0, x1, y0, y1, xs = [], ys = [], xTitle, yTitle, inside }) => {
    for (const [at, label] of ys) {
      group.append(s("line", { class: "grid", x1: x0, x2: x1, y1: at, y2: at }));
      if (!inside) group.append(s("text", { class: "tick", x: x0 - 6, y: at + 4, "text-anchor": "end" }, label));
    }
    let right = -Infinity;
    for (const [at, label] of xs) {
      group.append(s("line", { class: "grid", x1: at, x2: at, y1: y0, y2: y1 }));
      const half = widthOf(label) / 2;
      const middle = clamp(at, x0 - 2 + half, Math.max(x1 + 2 - half, x0 - 2 + half));
      if (middle - half < right + 8) continue; // no label over another
      right = middle + half;
      group.append(s("text", { class: "tick", x: middle, y: y1 + 16, "text-anchor": "middle" }, label));
    }
    group.append(s("line", { class: "axis", x1: x0, x2: x1, y1: y1, y2: y1 }));
    if (xTitle) group.append(s("text", { class: "title", x: x1, y: y1 + 32, "text-anchor": "end" }, xTitle));
    if (yTitle) group.append(s("text", { class: "title", x: x0 - (inside ? 0 : 0), y: y0 - 8 }, yTitle));
  };
  const path = (points) => {
    let text = "";
    for (const [x, y] of points) text += `${text ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    return text;
  };

  // --- one explanation

  class Window {
    constructor(data, raw) {
      this.raw = raw;
      this.moments = data.moments;
      this.unit = data.unit;
      this.count = raw.times.length;
      this.split = this.count - raw.future;
      this.times = raw.times;
      this.names = raw.marks.map((mark) => data.marks[mark]);
      this.role = raw.times.map((_, i) => (i >= this.split ? "future" : "left"));
      for (const i of raw.distilled) this.role[i] = "distilled";
      const order = [...raw.scores.keys()].sort((a, b) => raw.scores[b] - raw.scores[a] || b - a);
      this.order = order; // of events, by score
      this.rank = new Map(order.map((event, place) => [event, place + 1]));
      const chosen = raw.distilled.map((i) => raw.scores[i]);
      const [low, high] = [Math.min(...chosen), Math.max(...chosen)];
      this.radius = raw.times.map((_, i) => {
        if (this.role[i] !== "distilled") return this.role[i] === "left" ? 4 : 6;
        return high > low ? Math.sqrt(25 + 39 * ((raw.scores[i] - low) / (high - low))) : 6.5;
      });
      const present = [...new Set(raw.marks)].sort((a, b) => a - b);
      let shown = present;
      if (present.length > MAX_LANES) {
        const weight = new Map(present.map((mark) => [mark, 0]));
        raw.marks.forEach((mark, i) => weight.set(mark, weight.get(mark) + (this.role[i] === "left" ? 1 : 1e6)));
        const best = [...present].sort((a, b) => weight.get(b) - weight.get(a)).slice(0, MAX_LANES - 1);
        shown = present.filter((mark) => best.includes(mark));
      }
      this.lanes = shown.map((mark) => data.marks[mark]);
      if (shown.length < present.length) this.lanes.push(`${present.length - shown.length} other marks`);
      const place = new Map(shown.map((mark, index) => [mark, index]));
      this.lane = raw.marks.map((mark) => place.get(mark) ?? shown.length);
      this.curves = [];
      if (raw.intensity) {
        const { places, values, scales, marks, numHistory } = raw.intensity;
        const [middle, end] = [raw.times[Math.max(this.split - 1, 0)], last(raw.times)];
        this.numHistory = numHistory;
        this.curveTimes = decoded(places).map((place, i) =>
          i < numHistory ? place * middle : middle + place * (end - middle));
        const flat = decoded(values);
        const size = this.curveTimes.length;
        this.curves = scales.map((scale, index) => {
          const row = (which) => flat.slice((2 * index + which) * size, (2 * index + which + 1) * size).map((value) => value * scale);
          return { name: index ? data.marks[marks[index - 1]] : "all marks", whole: row(0), left: row(1) };
        });
      }
    }
    timeText(offset) {
      return timeText(this.raw.start + offset, this);
    }
    describe(i) {
      const lines = [this.names[i], this.timeText(this.times[i])];
      if (this.role[i] === "future") return [...lines, `what followed, event ${i - this.split + 1} of ${this.raw.future}`];
      const said = this.role[i] === "distilled" ? "distilled" : "left in the history";
      return [...lines, `${said}; score ${number(this.raw.scores[i], 3)}, rank ${this.rank.get(i)} of ${this.split}`];
    }
  }

  // Options stay as chosen while one explanation after the other is looked at.
  const options = { mark: 0, even: false, removed: false, log: null };

  class WindowChart {
    constructor(host) {
      this.host = host;
      this.box = h("div", { class: "chart", role: "slider", tabindex: "0", "aria-label": "Events of this window, one by one" });
      host.replaceChildren(this.box);
      this.cursor = null;
      this.highlight = null;
      this.box.addEventListener("keydown", (event) => this.onKey(event));
      this.box.addEventListener("focus", () => this.cursor === null && this.moveTo(this.window.raw.distilled[0] ?? 0, true));
      this.box.addEventListener("blur", () => this.leave());
      this.box.addEventListener("pointermove", (event) => this.onPointer(event));
      this.box.addEventListener("pointerdown", (event) => this.onPointer(event));
      this.box.addEventListener("pointerleave", () => this.leave());
    }
    show(window) {
      this.window = window;
      this.cursor = null;
      this.highlight = null;
      this.box.setAttribute("aria-valuemin", 1);
      this.box.setAttribute("aria-valuemax", window.count);
      this.box.setAttribute("aria-valuenow", 1);
      this.box.setAttribute("aria-valuetext", "arrow right and left: next and previous event; down and up: distilled ones");
      this.draw();
    }
    get curve() {
      const curves = this.window.curves;
      return curves[Math.min(options.mark, curves.length - 1)] ?? null;
    }
    get isLog() {
      if (options.log !== null) return options.log;
      const values = [...this.curve.whole, ...this.curve.left].sort((a, b) => a - b);
      return last(values) > 30 * values[values.length >> 1];
    }
    draw() {
      const { window } = this;
      const width = Math.max(this.host.clientWidth, 280);
      const laneHeight = window.lanes.length <= 8 ? 24 : window.lanes.length <= 16 ? 19 : 15;
      const gutter = clamp(Math.max(...window.lanes.map(widthOf)) + 14, 48, 0.3 * width);
      const top = 26;
      const lanesEnd = top + laneHeight * window.lanes.length;
      const curveTop = lanesEnd + 26;
      const curveEnd = this.curve ? curveTop + 140 : lanesEnd;
      const height = curveEnd + (window.moments ? 38 : 36);
      const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" });
      Object.assign(this, { width, height, curveTop, curveEnd, laneHeight, top });

      window.lanes.forEach((name, lane) => {
        const y = top + laneHeight * (lane + 0.5);
        const label = s("text", { class: "lane", x: gutter - 8, y: y + 4, "text-anchor": "end" }, fitted(name, gutter - 12));
        label.append(s("title", {}, name.length > 500 ? name.slice(0, 500) + "…" : name));
        svg.append(label);
      });
      this.panels = this.layPanels(gutter, width);
      if (this.curve) this.layValues();
      for (const panel of this.panels) this.drawPanel(svg, panel, panel === this.panels[0]);
      this.drawDots(svg);
      this.mark = s("circle", { class: "cursor", r: 0 });
      this.line = s("line", { class: "cross", y1: top, y2: curveEnd, x1: -9, x2: -9 });
      svg.append(this.line, this.mark);
      this.box.replaceChildren(svg);
    }
    layPanels(gutter, width) {
      const { window } = this;
      const points = window.curveTimes?.length ?? 0;
      const middle = window.times[Math.max(window.split - 1, 0)];
      const parts = [
        { name: "history", from: 0, to: middle, first: 0, end: window.split, points: [0, window.numHistory] },
        { name: "future", from: middle, to: last(window.times), first: window.split, end: window.count, points: [window.numHistory, points] },
      ];
      const room = width - gutter - 22;
      const share = clamp(window.raw.future / window.count, 0.34, 0.45);
      parts.forEach((part, index) => {
        part.x0 = index ? parts[0].x1 + 12 : gutter;
        part.x1 = part.x0 + room * (index ? share : 1 - share);
        const inner = [part.x0 + 9, part.x1 - 9];
        const scale = part.to > part.from ? linear(part.from, part.to, ...inner) : () => (inner[0] + inner[1]) / 2;
        // Evenly spaced, a moment lies between its neighbouring events in proportion.
        const edges = [...(index ? [part.from] : []), ...window.times.slice(part.first, part.end)];
        const places = edges.map((_, place) => linear(0, edges.length - 1, ...inner)(place));
        part.x = (time) => {
          if (!options.even) return scale(time);
          let low = 0;
          let high = edges.length - 1;
          while (high - low > 1) {
            const half = (low + high) >> 1;
            if (edges[half] <= time) low = half;
            else high = half;
          }
          const gap = edges[high] - edges[low];
          return places[low] + (gap > 0 ? clamp((time - edges[low]) / gap, 0, 1) : 0) * (places[high] - places[low]);
        };
        part.eventX = (i) => (options.even ? places[i - part.first + index] : scale(window.times[i]));
      });
      return parts;
    }
    layValues() {
      const { whole, left } = this.curve;
      const high = Math.max(...whole, ...left) || 1;
      if (this.isLog) {
        const low = Math.max(Math.min(...whole, ...left), high * 1e-6);
        this.y = logarithmic(low, high, this.curveEnd - 6, this.curveTop + 4);
        this.yTicks = logTicks(low, high);
      } else {
        this.y = linear(0, high, this.curveEnd, this.curveTop + 4);
        this.yTicks = ticks(0, high, 4);
      }
    }
    drawPanel(svg, panel, isFirst) {
      const { window, top, curveTop, curveEnd, laneHeight } = this;
      const lanesEnd = top + laneHeight * window.lanes.length;
      const group = s("g", { class: panel.name });
      svg.append(group);
      for (const [y, end] of [[top, lanesEnd], ...(this.curve ? [[curveTop, curveEnd]] : [])]) {
        group.append(s("rect", { class: "face", x: panel.x0, y, width: panel.x1 - panel.x0, height: end - y }));
      }
      const room = panel.x1 - panel.x0;
      const long = `${panel.name}: ${plural(panel.end - panel.first, "event")} in ${duration(panel.to - panel.from, window)}`;
      const short = `${panel.name}: ${duration(panel.to - panel.from, window)}`;
      const heading = [long, short, panel.name].find((words) => 1.12 * widthOf(words) <= room) ?? ""; // it is bold
      group.append(s("text", { class: "heading", x: panel.x0, y: top - 10 }, heading));
      for (let lane = 0; lane < window.lanes.length; lane++) {
        const y = top + laneHeight * (lane + 0.5);
        group.append(s("line", { class: "grid", x1: panel.x0, x2: panel.x1, y1: y, y2: y }));
      }
      const start = window.raw.start;
      const count = clamp(Math.floor(room / 80), 1, 7);
      const times = options.even ? [] : window.moments
        ? momentTicks(start + panel.from, start + panel.to, count)
        : ticks(start + panel.from, start + panel.to, count).map((value) => [value, number(value, 6)]);
      const xs = times.map(([time, label]) => [panel.x(time - start), label]);
      for (const [x] of xs) group.append(s("line", { class: "grid", x1: x, x2: x, y1: top, y2: lanesEnd }));
      const unit = window.unit === null ? "" : ` (${window.unit})`;
      const below = options.even ? "evenly spaced events" : window.moments ? `from ${iso(start + panel.from, 0, 10)}` : `time${unit}`;
      const isAlone = !this.curve;
      axis(group, {
        x0: panel.x0, x1: panel.x1, y0: isAlone ? top : curveTop, y1: curveEnd, xs, inside: !isFirst,
        ys: isAlone ? [] : this.yTicks.map((value) => [this.y(value), number(value)]),
        xTitle: widthOf(below) < room ? below : "",
        yTitle: isAlone || !isFirst ? null : fitted(
          `${room > 230 ? "expected events" : "events"} ${perUnit(window.unit)}` + (options.mark ? `: ${this.curve.name}` : ""), room),
      });
      const matter = [...window.role.keys()].slice(panel.first, panel.end).filter((i) => window.role[i] !== "left");
      for (const i of matter.length <= MAX_LINES ? matter : []) {
        const x = panel.eventX(i);
        group.append(s("line", { class: `moment ${window.role[i]}`, x1: x, x2: x, y1: top, y2: curveEnd }));
      }
      if (!this.curve) return;
      const points = (values) => values.slice(...panel.points).map((value, i) => [panel.x(window.curveTimes[i + panel.points[0]]), this.y(value)]);
      const [whole, left] = [points(this.curve.whole), points(this.curve.left)];
      group.append(
        s("path", { class: "between", d: path([...whole, ...left.slice().reverse()]) + "Z" }),
        s("path", { class: options.removed ? "curve whole faded" : "curve whole", d: path(whole) }),
        s("path", { class: options.removed ? "curve without strong" : "curve without", d: path(left) }),
      );
    }
    drawDots(svg) {
      const { window, top, laneHeight } = this;
      this.places = window.times.map((_, i) => [
        this.panels[i < window.split ? 0 : 1].eventX(i), top + laneHeight * (window.lane[i] + 0.5)]);
      const group = s("g", { class: options.removed ? "dots removed" : "dots" });
      const depth = { left: 0, future: 1, distilled: 2 };
      const drawn = [...window.times.keys()].sort(
        (a, b) => depth[window.role[a]] - depth[window.role[b]] || window.radius[b] - window.radius[a]);
      const together = new Map();
      this.dots = [];
      for (const i of drawn) {
        const [x, y] = this.places[i];
        const role = window.role[i];
        const r = Math.min(window.radius[i], laneHeight / 2);
        const dot = role === "future"
          ? s("path", { class: "dot future", d: `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z` })
          : s("circle", { class: `dot ${role}`, cx: x, cy: y, r });
        this.dots[i] = dot;
        group.append(dot);
        const key = `${x.toFixed(1)} ${y}`;
        together.set(key, [(together.get(key)?.[0] ?? 0) + 1, x, y - r - 2]);
      }
      for (const [count, x, y] of together.values()) {
        if (count > 1) group.append(s("text", { class: "several", x, y, "text-anchor": "middle" }, `${count}x`));
      }
      svg.append(group);
      this.applyHighlight();
    }
    applyHighlight() {
      const first = this.highlight === null ? null : new Set(this.window.order.slice(0, this.highlight));
      this.dots.forEach((dot, i) => {
        dot.classList.toggle("first", first !== null && first.has(i));
        dot.classList.toggle("other", first !== null && i < this.window.split && !first.has(i));
      });
    }
    moveTo(i, isKey) {
      const { window } = this;
      this.cursor = i;
      const [x, y] = this.places[i];
      this.mark.setAttribute("cx", x);
      this.mark.setAttribute("cy", y);
      this.mark.setAttribute("r", Math.min(window.radius[i], this.laneHeight / 2) + 4);
      this.line.setAttribute("x1", -9);
      this.line.setAttribute("x2", -9);
      const lines = window.describe(i);
      const box = this.box.getBoundingClientRect();
      showTip(lines, box.left + x, box.top + y);
      if (isKey) {
        this.box.setAttribute("aria-valuenow", i + 1);
        this.box.setAttribute("aria-valuetext", lines.join(", ").slice(0, 400));
      }
    }
    leave() {
      hideTip();
      this.cursor = null;
      this.mark?.setAttribute("r", 0);
      this.line?.setAttribute("x1", -9);
      this.line?.setAttribute("x2", -9);
    }
    onKey(event) {
      const step = KEYS[event.key];
      if (event.key === "Escape") this.leave();
      if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const { window } = this;
      const now = this.cursor ?? 0;
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const chosen = window.raw.distilled;
        const next = step > 0 ? chosen.find((i) => i > now) : last(chosen.filter((i) => i < now));
        this.moveTo(next ?? now, true);
      } else {
        this.moveTo(clamp(now + step, 0, window.count - 1), true);
      }
    }
    onPointer(event) {
      const box = this.box.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      let nearest = null;
      let distance = HOVER;
      this.places.forEach(([px, py], i) => {
        const far = Math.hypot(px - x, py - y);
        if (far < distance) [nearest, distance] = [i, far];
      });
      if (nearest !== null) return this.moveTo(nearest, false);
      const panel = this.panels.find(({ x0, x1 }) => x >= x0 && x <= x1);
      if (!this.curve || !panel || y < this.curveTop || y > this.curveEnd) return this.leave();
      this.leave();
      const { window, curve } = this;
      let best = panel.points[0];
      let gap = Infinity;
      for (let i = panel.points[0]; i < panel.points[1]; i++) {
        const far = Math.abs(panel.x(window.curveTimes[i]) - x);
        if (far < gap) [best, gap] = [i, far];
      }
      const at = panel.x(window.curveTimes[best]);
      this.line.setAttribute("x1", at);
      this.line.setAttribute("x2", at);
      const per = perUnit(window.unit);
      showTip([window.timeText(window.curveTimes[best]), `whole history: ${number(curve.whole[best], 3)} ${per}`,
        `without the distilled: ${number(curve.left[best], 3)} ${per}`], box.left + at, box.top + this.curveTop);
    }
  }

  class TradeoffChart {
    constructor(host, chart) {
      this.chart = chart;
      this.box = h("div", { class: "chart small" });
      this.slider = h("input", { type: "range", min: "0", id: "first-events" });
      this.said = h("output", { for: "first-events" });
      const label = h("label", { for: "first-events" }, "Highlight the first events by score");
      host.append(this.box, h("div", { class: "control" }, label, this.slider, this.said));
      this.host = host;
      this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    }
    show(window) {
      this.window = window;
      this.host.hidden = window.raw.curve === null;
      if (this.host.hidden) return;
      this.slider.max = window.raw.curve.length - 1;
      this.slider.value = window.raw.distilled.length;
      this.at = null;
      this.said.textContent = this.words(window.raw.distilled.length);
      this.draw();
    }
    words(size) {
      const { curve, isShare } = this.window.raw;
      const value = isShare ? percent(curve[size]) + " explained" : `dppl_left ${number(curve[size], 3)}`;
      return `${plural(size, "event")}: ${value}`;
    }
    choose(size) {
      this.at = size;
      this.chart.highlight = size;
      this.chart.applyHighlight();
      this.said.textContent = this.words(size);
      this.draw();
    }
    draw() {
      const { curve, isShare, target, reached, distilled } = this.window.raw;
      const width = Math.max(this.box.clientWidth, 240);
      const [x0, x1, y0, y1, height] = [46, width - 14, 24, 170, 208];
      const low = Math.min(0, ...curve);
      const high = isShare ? Math.max(1, ...curve, reached ?? 0) : Math.max(0, ...curve);
      const x = linear(0, curve.length - 1, x0 + 8, x1 - 8);
      const y = linear(low, high, y1 - 6, y0 + 6);
      const svg = s("svg", { width, height, role: "img", "aria-label": this.alt() });
      axis(svg, {
        x0, x1, y0, y1, yTitle: isShare ? "explained share" : "dppl_left", xTitle: "events removed, by score",
        xs: ticks(0, curve.length - 1, 6).filter(Number.isInteger).map((value) => [x(value), String(value)]),
        ys: ticks(low, high, 4).map((value) => [y(value), isShare ? percent(value) : number(value)]),
      });
      if (isShare && target !== null) {
        const slow = curve[Math.floor(curve.length / 3)] < target;
        svg.append(s("line", { class: "target", x1: x0, x2: x1, y1: y(target), y2: y(target) }),
          s("text", { class: "tick", x: slow ? x0 + 6 : x1 - 4, y: y(target) + (slow ? -5 : 15), "text-anchor": slow ? "start" : "end" },
            `asked: ${percent(target)}`));
      }
      svg.append(s("path", { class: "curve whole", d: path(curve.map((value, size) => [x(size), y(value)])) }));
      if (this.at !== null) svg.append(s("circle", { class: "cursor", cx: x(this.at), cy: y(curve[this.at]), r: 9 }));
      if (isShare && reached !== null) svg.append(s("circle", { class: "dot distilled", cx: x(distilled.length), cy: y(reached), r: 6 }));
      this.box.replaceChildren(svg);
    }
    alt() {
      const { curve, distilled } = this.window.raw;
      const some = [...new Set([1, distilled.length, curve.length - 1])].filter((size) => size > 0 && size < curve.length);
      return `How much is explained by how few: ${some.map((size) => this.words(size)).join("; ")}.`;
    }
  }

  const eventTable = (window) => {
    const head = ["event", "time", "mark", "role", "score", "rank"].map((name) => h("th", { scope: "col" }, name));
    const rows = window.times.map((time, i) => {
      const isPast = i < window.split;
      const role = { distilled: "distilled", left: "left", future: "what followed" }[window.role[i]];
      const cells = [String(i + 1), window.timeText(time), window.names[i], role,
        isPast ? number(window.raw.scores[i]) : "–", isPast ? String(window.rank.get(i)) : "–"];
      return h("tr", { class: window.role[i] }, ...cells.map((cell) => h("td", {}, cell)));
    });
    return h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
  };

  class Detail {
    constructor() {
      this.title = byId("detail-title");
      this.where = byId("detail-where");
      this.text = byId("detail-text");
      this.pick = byId("intensity-mark");
      this.controls = byId("intensity-controls");
      this.chart = new WindowChart(byId("window-chart"));
      this.tradeoff = new TradeoffChart(byId("tradeoff-chart"), this.chart);
      this.table = byId("events-table");
      this.table.addEventListener("toggle", () => this.fillTable());
      this.pick.addEventListener("change", () => {
        options.mark = Number(this.pick.value);
        this.chart.draw();
      });
      for (const [id, key] of [["evenly", "even"], ["remove", "removed"]]) {
        byId(id).addEventListener("change", (event) => {
          options[key] = event.target.checked;
          this.chart.draw();
        });
      }
      byId("logarithmic").addEventListener("change", (event) => {
        options.log = event.target.checked;
        this.chart.draw();
      });
    }
    show(raw) {
      const window = new Window(DATA, raw);
      this.window = window;
      this.title.textContent = raw.name;
      this.where.textContent = raw.where;
      this.where.hidden = !raw.where;
      this.text.replaceChildren(...raw.text.map((line) => h("p", {}, line)));
      options.mark = 0;
      options.log = null;
      this.controls.hidden = window.curves.length === 0;
      this.pick.replaceChildren(...window.curves.map((curve, index) => h("option", { value: index }, fitted(curve.name, 260))));
      this.chart.show(window);
      byId("logarithmic").checked = window.curves.length > 0 && this.chart.isLog;
      this.tradeoff.show(window);
      this.fillTable();
    }
    fillTable() {
      const body = this.table.querySelector(".scroll");
      body.replaceChildren(...(this.table.open ? [eventTable(this.window)] : []));
    }
    draw() {
      if (!this.window) return;
      this.chart.leave();
      this.chart.draw();
      if (!this.tradeoff.host.hidden) this.tradeoff.draw();
    }
  }

  // --- the list

  class List {
    constructor(detail) {
      this.detail = detail;
      this.host = byId("explanations-list");
      this.items = [...this.host.children];
      this.items.forEach((item, index) => {
        item.index = index;
      });
      this.shown = this.items;
      this.count = byId("shown-count");
      this.controls = ["search", "status", "mark", "recency", "sort"].map(byId);
      for (const control of this.controls) control.addEventListener("input", () => this.filter());
      byId("filters").addEventListener("submit", (event) => event.preventDefault());
      byId("filters").addEventListener("reset", (event) => {
        event.preventDefault(); // the form would be reset only after this
        for (const control of this.controls) control.value = control.options ? control.options[0].value : "";
        this.filter();
      });
      this.host.addEventListener("keydown", (event) => this.onKey(event));
      this.host.addEventListener("click", (event) => {
        const link = event.target.closest("a");
        if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        this.open(link.parentElement, true);
      });
      byId("previous").addEventListener("click", () => this.step(-1));
      byId("next").addEventListener("click", () => this.step(1));
      addEventListener("hashchange", () => this.openHash(true));
      this.filter();
      if (this.openHash(false) || !this.shown.length) return;
      const first = this.shown.find((item) => DATA.explanations[item.index].kinds.includes("certified")); // one that says something
      this.open(first ?? this.shown[0], false);
    }
    matches(raw) {
      const [search, status, mark, recency] = this.controls.map((control) => control.value);
      if (status && !raw.kinds.includes(status)) return false;
      if (recency && raw.recent !== (recency === "recent")) return false;
      if (mark !== "" && !raw.distilled.some((i) => raw.marks[i] === Number(mark))) return false;
      const words = search.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) return true;
      const named = [...new Set(raw.marks)].map((index) => DATA.marks[index]);
      const text = [raw.name, raw.where, ...raw.text, ...named].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    }
    filter() {
      const key = {
        data: () => 0, fewest: (raw) => raw.distilled.length, most: (raw) => -raw.distilled.length,
        drop: (raw) => raw.left ?? Infinity, share: (raw) => -(raw.reached ?? -Infinity), recent: (raw) => raw.lastShare ?? 2,
      }[byId("sort").value];
      const data = DATA.explanations;
      const sorted = [...this.items].sort((a, b) => key(data[a.index]) - key(data[b.index]) || a.index - b.index);
      for (const item of sorted) item.hidden = !this.matches(data[item.index]);
      this.host.replaceChildren(...sorted);
      this.shown = sorted.filter((item) => !item.hidden);
      this.count.textContent = this.shown.length === this.items.length
        ? plural(this.items.length, "explanation") : `${this.shown.length} of ${this.items.length} explanations`;
      byId("none-found").hidden = this.shown.length > 0;
      this.enableSteps();
    }
    enableSteps() {
      const at = this.shown.indexOf(this.current);
      byId("previous").disabled = at === 0 || !this.shown.length;
      byId("next").disabled = at === this.shown.length - 1 || !this.shown.length;
    }
    open(item, moves) {
      for (const other of this.items) other.firstElementChild.removeAttribute("aria-current");
      item.firstElementChild.setAttribute("aria-current", "true");
      this.current = item;
      this.detail.show(DATA.explanations[item.index]);
      this.enableSteps();
      if (!moves) return;
      history.replaceState(null, "", `#explanation-${item.index + 1}`);
      this.detail.title.focus({ preventScroll: true });
      // Beside the list it is in view already; below the list it is not.
      const { top } = this.detail.title.getBoundingClientRect();
      if (top < 0 || top > innerHeight * 0.6) this.detail.title.scrollIntoView({ block: "start" });
    }
    openHash(moves) {
      const index = /^#explanation-(\d+)$/.exec(location.hash);
      const item = index && this.items[Number(index[1]) - 1];
      if (item) this.open(item, moves);
      return Boolean(item);
    }
    step(by) {
      const at = this.shown.indexOf(this.current);
      const item = this.shown[at < 0 ? 0 : clamp(at + by, 0, this.shown.length - 1)];
      if (!item) return;
      const focused = document.activeElement;
      this.open(item, true);
      (focused.disabled ? this.detail.title : focused).focus({ preventScroll: true });
      item.scrollIntoView({ block: "nearest" });
    }
    onKey(event) {
      const step = KEYS[event.key];
      const link = event.target.closest("a");
      if (!link || step === undefined || event.key === "ArrowLeft" || event.key === "ArrowRight") return;
      event.preventDefault();
      const at = this.shown.indexOf(link.parentElement);
      this.shown[clamp(at + step, 0, this.shown.length - 1)].firstElementChild.focus();
    }
  }

  // --- the charts of the summary

  const legend = (host, entries) => {
    host.append(h("ul", { class: "legend" }, ...entries.map(([kind, label, isDot]) => {
      const sample = s("svg", { width: 26, height: 12, "aria-hidden": "true" });
      sample.append(isDot ? s("circle", { class: kind, cx: 13, cy: 6, r: 4.5 }) : s("line", { class: kind, x1: 1, x2: 25, y1: 6, y2: 6 }));
      return h("li", {}, sample, label);
    })));
  };
  const newChart = (host, height, alt) => {
    host.replaceChildren();
    const width = Math.max(host.clientWidth, 260);
    const svg = s("svg", { width, height, role: "img", "aria-label": alt });
    host.append(svg);
    return [svg, width];
  };

  const drawCalibration = (host, rows) => {
    const [svg, width] = newChart(host, 330, host.dataset.alt);
    const size = rows[0].qq.length;
    const expected = Array.from({ length: size }, (_, i) => -Math.log1p(-(i + 1) / (size + 1)));
    const low = 0.008;
    const high = Math.max(6, ...rows.map((row) => last(row.qq)));
    const [x0, x1, y0, y1] = [52, width - 12, 22, 290];
    const [x, y] = [logarithmic(low, 6, x0, x1), logarithmic(low, high, y1, y0)];
    axis(svg, {
      x0, x1, y0, y1, yTitle: "quantile of rescaled times", xTitle: "quantile of Exp(1)",
      xs: [0.01, 0.1, 1].map((value) => [x(value), String(value)]),
      ys: logTicks(low, high).map((value) => [y(value), number(value)]),
    });
    svg.append(s("path", { class: "diagonal", d: path([[x(low), y(low)], [x(6), y(6)]]) }));
    rows.forEach((row) => {
      const points = row.qq.map((value, i) => [x(expected[i]), y(value), value]).filter(([, , value]) => value > 0);
      svg.append(s("path", { class: `series series-${row.series}`, d: path(points) }));
    });
    legend(host, [...rows.map((row) => [`series series-${row.series}`, row.model]), ["diagonal", "perfect calibration"]]);
  };

  const drawSizes = (host, sizes) => {
    const [svg, width] = newChart(host, 250, host.dataset.alt);
    const [x0, x1, y0, y1] = [46, width - 8, 22, 206];
    const each = Math.max(1, Math.ceil(sizes.length / Math.max(10, Math.floor((x1 - x0) / 7))));
    const bars = [];
    for (let i = 0; i < sizes.length; i += each) bars.push(sizes.slice(i, i + each).reduce((a, b) => a + b, 0));
    const high = Math.max(...bars);
    const [x, y] = [linear(0, bars.length, x0 + 4, x1 - 4), linear(0, high, y1, y0 + 4)];
    const center = (value) => x((value + 0.5) / each);
    axis(svg, {
      x0, x1, y0, y1, yTitle: "share of windows", xTitle: "events distilled",
      xs: ticks(0, sizes.length - 1, 7).filter(Number.isInteger).map((value) => [center(value), String(value)]),
      ys: ticks(0, high, 4).map((value) => [y(value), percent(value)]),
    });
    bars.forEach((share, i) => {
      const bar = s("rect", { class: "bar", x: x(i) + 0.5, width: Math.max(x(i + 1) - x(i) - 1, 1), y: y(share), height: y1 - y(share) });
      bar.append(s("title", {}, `${each > 1 ? `${i * each} to ${(i + 1) * each - 1}` : i} events: ${percent(share)} of windows`));
      svg.append(bar);
    });
  };

  const drawReach = (host, { share, recent }) => {
    const [svg, width] = newChart(host, 250, host.dataset.alt);
    const [x0, x1, y0, y1] = [46, width - 8, 22, 206];
    // The nearest past on the right, beside the future, as on a time line.
    const [x, y] = [linear(share.length, 1, x0 + 10, x1 - 10), linear(0, 1, y1, y0 + 4)];
    axis(svg, {
      x0, x1, y0, y1, yTitle: "share of windows that distil it", xTitle: "events before the future",
      xs: [1, ...ticks(0, share.length, 6).filter((value) => value > 1 && Number.isInteger(value))].map((value) => [x(value), String(value)]).reverse(),
      ys: [0, 0.25, 0.5, 0.75, 1].map((value) => [y(value), percent(value)]),
    });
    svg.append(
      s("path", { class: "series series-1", d: path(recent.map((value, i) => [x(i + 1), y(value)])) }),
      s("path", { class: "series series-2", d: path(share.map((value, i) => [x(i + 1), y(value)])) }),
    );
    legend(host, [["series series-2", "the explanations"], ["series series-1", "as many of the last events"]]);
  };

  const drawMarks = (host, rows) => {
    const lineHeight = 22;
    const height = 30 + lineHeight * rows.length + 40;
    const [svg, width] = newChart(host, height, host.dataset.alt);
    const names = rows.map((row) => row.label);
    const gutter = clamp(Math.max(...names.map(widthOf)) + 14, 60, 0.38 * width);
    const [x0, x1, y0, y1] = [gutter, width - 12, 22, 26 + lineHeight * rows.length];
    const high = Math.max(...rows.map((row) => Math.max(row.high ?? 0, row.share, row.expected, row.recency)), 0.01);
    const x = linear(0, high, x0, x1);
    axis(svg, {
      x0, x1, y0, y1, xTitle: "share of the mark's events that is distilled",
      xs: ticks(0, high, 5).map((value) => [x(value), percent(value)]),
    });
    rows.forEach((row, i) => {
      const y = y0 + lineHeight * (i + 0.5) + 2;
      const label = s("text", { class: "lane", x: x0 - 8, y: y + 4, "text-anchor": "end" }, fitted(row.label, gutter - 12));
      label.append(s("title", {}, row.label.slice(0, 500)));
      const tick = (kind, value, half) => s("line", { class: kind, x1: x(value), x2: x(value), y1: y - half, y2: y + half });
      svg.append(label, tick("recent-tick", row.recency, 9), tick("chance-tick", row.expected, 6));
      if (row.low !== null) svg.append(s("line", { class: "interval", x1: x(row.low), x2: x(row.high), y1: y, y2: y }));
      svg.append(s("circle", { class: row.significant ? "share" : "share hollow", cx: x(row.share), cy: y, r: 4.5 }));
    });
    legend(host, [["share", "distilled, unlike random", true], ["share hollow", "distilled, no difference", true],
      ["chance-tick", "at random"], ["recent-tick", "as many of the last events"]]);
  };

  // --- start, and again when there is another width

  const detail = byId("detail-title") ? new Detail() : null;
  if (byId("explanations-list")) new List(detail);
  else if (detail) detail.show(DATA.explanations[0]);

  const summary = [["calibration-chart", drawCalibration, DATA.calibration], ["sizes-chart", drawSizes, DATA.sizes],
    ["reach-chart", drawReach, DATA.reach], ["marks-chart", drawMarks, DATA.shares]];
  const drawSummary = () => {
    for (const [id, draw, data] of summary) {
      const host = byId(id);
      if (host && data) draw(host, data);
    }
  };
  drawSummary();
  let width = null; // a frame may get its width only while this runs: what was drawn up to here may be too narrow
  let waiting = 0;
  new ResizeObserver(() => {
    if (document.documentElement.clientWidth === width) return; // a phone's bars come and go
    width = document.documentElement.clientWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => {
      drawSummary();
      detail?.draw();
    });
  }).observe(document.documentElement);
})();
