// A log on a time line: arrows lead from its causes to the event that is looked at.
(() => {
  const [FAINTEST, MOST_ARROWS] = [0.02, 60]; // a probability; more would hide one another
  const [DOT, NEAR, BESIDE, TOGETHER] = [5, 16, 10, 42]; // pixels: radius; meant by a pointer; touching; in one pill
  const ROWS = 100; // of the list at a time
  const share = (p) => (p > 0 && p < 0.005 ? "below 1%" : p < 1 && p >= 0.995 ? "above 99%" : percent(p));
  const likeliest = (a, b) => last(b) - last(a);
  const few = (value) => value.toFixed(value < 9.95 ? 1 : 0);

  // --- the log: the edges to event i are first[i] to first[i + 1]

  const times = Float64Array.from(unpacked(DATA.times));
  const kind = unpacked(DATA.kind);
  const none = Float32Array.from(unpacked(DATA.none), (value) => (value === 65535 ? NaN : value / 65534));
  const N = times.length;
  if (!N) return;
  const first = new Uint32Array(N + 1);
  unpacked(DATA.count).forEach((count, i) => { first[i + 1] = first[i] + count; });
  const from = Uint32Array.from(unpacked(DATA.back));
  const weight = Float64Array.from(unpacked(DATA.share), (value) => value / (value < 0 ? 32767 + value : 32767));
  const lane = Uint16Array.from(kind, (value) => Math.min(value, DATA.lanes.length - 1));
  const lanes = DATA.lanes.map(() => []);
  for (let i = 0; i < N; i++) {
    lanes[lane[i]].push(i);
    for (let e = first[i]; e < first[i + 1]; e++) from[e] = i - from[e];
  }
  const isAsked = (i) => none[i] >= 0;
  const allAsked = none.every((value) => value >= 0);

  const edges = (i, wanted) => {
    const found = [];
    for (let e = first[i]; e < first[i + 1]; e++) if (wanted(weight[e])) found.push([from[e], weight[e]]);
    return found.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  };
  const causes = (i) => edges(i, (p) => p > 0);
  const setsOff = new Float64Array(N); // later events, in expectation
  for (let i = N - 1; i >= 0; i--) for (const [cause, p] of causes(i)) setsOff[cause] += p * (1 + setsOff[i]);
  const held = (i) => edges(i, (p) => p < -0.05);
  // Where an event may have begun, and every step on the way.
  const origins = (i) => {
    const [on, roots, steps] = [new Float64Array(i + 1), [], []];
    on[i] = 1;
    for (let j = i; j >= 0; j--) {
      if (on[j] < 1e-3) continue;
      if (on[j] * none[j] > 0.005) roots.push([j, on[j] * none[j]]);
      for (const [cause, p] of causes(j)) {
        on[cause] += on[j] * p;
        steps.push([cause, j, on[j] * p]);
      }
    }
    return { roots: roots.sort(likeliest), steps: steps.filter((step) => step[2] >= FAINTEST) };
  };
  const outcomes = (i) => {
    const [on, found, steps] = [new Float64Array(N), [], []];
    on[i] = 1;
    for (let j = i + 1; j < N; j++) {
      for (let e = first[j]; e < first[j + 1]; e++) {
        const p = weight[e] > 0 ? on[from[e]] * weight[e] : 0;
        on[j] += p;
        if (p >= (from[e] === i ? 0.05 : 0.1)) steps.push([from[e], j, p]);
      }
      if (on[j] >= 0.05) found.push([j, on[j]]);
    }
    return { found: found.sort(likeliest), steps };
  };

  // --- words

  const name = (i) => DATA.kinds[kind[i]].trim() || "(no name)";
  const isDaily = DATA.moments && times.every((time) => (DATA.start + time) % DAY === 0);
  const full = (i) => timeText(DATA.start + times[i], DATA).slice(0, isDaily ? 10 : 99);
  const when = (i, other) => { // only what differs from the time of another event
    const [mine, its] = [full(i), full(other)];
    if (isDaily || !DATA.moments || mine.slice(0, 4) !== its.slice(0, 4)) return mine;
    const clock = mine.slice(11, Math.abs(times[i] - times[other]) < 10 * MINUTE && i !== other ? 23 : 16);
    return mine.slice(0, 10) === its.slice(0, 10) ? clock : `${mine.slice(5, 10)} ${clock}`;
  };
  const lag = (i, other) => {
    const span = Math.abs(times[other] - times[i]);
    const [size, unit] = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [SECOND, "s"]].find(([size]) => span >= 1.5 * size || size === SECOND);
    const text = DATA.moments ? `${number(span / size, 2)} ${unit}` : withUnit(number(span, 3), DATA.unit);
    return span === 0 ? "at the same time" : `${text} ${i < other ? "before" : "after"}`;
  };
  const listed = (pairs, other) => pairs.map(([i, p]) => `the ${name(i)} at ${when(i, other)} (${share(p)})`).join(" or ");
  const sentences = (i, { roots: [root] }) => {
    const what = `${name(i)} at ${when(i, i)}`;
    if (!isAsked(i)) return `What caused ${what} was not asked here.`;
    if (i === 0) return `${what} is the first event of this log: nothing before it could have caused it.`;
    const told = causes(i).filter(([, p]) => p >= 0.05).slice(0, 3);
    if (!told.length) return `${what} came from nothing in this log (${share(none[i])}).`;
    if (none[i] > told[0][1]) return `${what} most likely came from nothing in this log (${share(none[i])}); of what came before, from ${listed(told.slice(0, 1), i)}.`;
    let said = `${what} was most likely set off by ${listed(told, i)}.`;
    if (none[i] >= 0.005) said += ` ${share(none[i])}: nothing in this log.`;
    if (allAsked && root && root[0] !== i && root[1] >= 0.2) {
      said += ` It most likely began ${root[0] === told[0][0] ? `there (${share(root[1])})` : `with ${listed([root], i)}`}.`;
    }
    const parts = edges(i, () => true);
    if (parts.length < 5 && !parts.some(([j]) => j === i - 1)) said += ` The event right before it, ${name(i - 1)}, had no part in it.`;
    return said;
  };

  // --- what is looked at

  let at, led, set; // the event, what led to it, and what it set off
  const [chain, even] = [byId("chain"), byId("even")];
  let place = (i) => times[i];
  const view = { low: 0, high: 1, span: 1 };
  const ends = () => {
    const margin = 0.03 * (place(N - 1) - place(0)) || 1;
    return [place(0) - margin, place(N - 1) + margin];
  };
  const setView = (low, high) => {
    const [least, most] = ends();
    view.span = clamp(high - low, 1e-7 * (most - least), most - least);
    view.low = clamp((low + high - view.span) / 2, least, most - view.span);
    view.high = view.low + view.span;
    schedule();
  };
  const zoom = (factor, around = clamp((place(at) - view.low) / view.span, 0, 1)) => {
    const begin = view.low + around * view.span * (1 - factor);
    setView(begin, begin + view.span * factor);
  };
  const pan = (px) => setView(view.low + (px / room) * view.span, view.high + (px / room) * view.span);
  const showAll = () => setView(...ends());
  const fit = () => {
    const likely = (steps, least, end) => steps.filter((step) => step[2] >= least).map((step) => step[end]);
    const far = [Math.max(at - 3, 0), Math.min(at + 3, N - 1), ...likely(led.steps, 0.05, 0), ...likely(set.steps, 0.3, 1)];
    const [low, high] = [Math.min(...far), Math.max(...far)].map(place);
    setView(low - 0.1 * (high - low), high + 0.1 * (high - low));
  };

  // --- the picture

  const [box, canvas, strip] = ["timeline", "lanes", "overview"].map(byId);
  const [pen, thin] = [canvas.getContext("2d"), strip.getContext("2d")];
  const STRIP = 40;
  const top = 30; // of the lanes
  let width = 0;
  let left, each, x0, room; // the end of their names, their height; where time begins, its length
  const ink = {};
  let related = new Map(); // event -> the name of its colour

  const lay = () => {
    width = box.clientWidth;
    const isNarrow = width < 560;
    left = isNarrow ? 0 : clamp(1.12 * Math.max(...DATA.lanes.map(widthOf)) + 20, 70, 0.25 * width);
    [x0, room] = [left + 14, width - left - 28];
    each = isNarrow ? 36 : clamp(Math.round(430 / lanes.length), 21, 46);
    for (const [one, tall] of [[canvas, top + each * lanes.length + 28], [strip, STRIP]]) {
      const ratio = devicePixelRatio || 1;
      [one.width, one.height] = [width * ratio, tall * ratio];
      one.style.height = `${tall}px`;
      one.getContext("2d").scale(ratio, ratio);
    }
  };
  const x = (value) => x0 + ((value - view.low) / view.span) * room;
  const valueAt = (px) => view.low + ((px - x0) / room) * view.span;
  const middle = (row) => top + each * (row + 0.5) + (left ? 0 : 6);
  const y = (i) => middle(lane[i]);
  const lower = (list, value) => {
    let [low, high] = [0, list.length];
    while (low < high) {
      const half = (low + high) >> 1;
      if (place(list[half]) < value) low = half + 1;
      else high = half;
    }
    return low;
  };
  const write = (text, px, py, fillStyle, textAlign = "center", font = FONT) => {
    Object.assign(pen, { fillStyle, textAlign, font });
    pen.fillText(text, px, py);
  };
  const line = (path, colour) => {
    pen.strokeStyle = colour;
    pen.stroke(new Path2D(path));
  };
  // Hollow where nothing in the log caused it.
  const filling = (i) => (isAsked(i) ? 1 - none[i] : 0.3);
  const paint = (filled, colour, draw) => {
    const alpha = pen.globalAlpha;
    pen.beginPath();
    draw();
    pen.fillStyle = ink.face;
    pen.fill();
    pen.fillStyle = pen.strokeStyle = colour;
    pen.globalAlpha = alpha * filled;
    pen.fill();
    pen.globalAlpha = alpha;
    pen.stroke();
  };
  const dot = (px, py, filled, colour) => paint(filled, colour, () => pen.arc(px, py, DOT, 0, 7));

  const drawLane = (list, py) => {
    const margin = (TOGETHER / room) * view.span;
    const bin = (px) => Math.floor((px - x(0)) / TOGETHER); // the same wherever the view is
    let free = -Infinity; // where the last one ends
    for (let k = lower(list, view.low - margin), m; k < list.length && place(list[k]) <= view.high + margin; k = m) {
      const begin = x(place(list[k]));
      let [end, filled] = [begin, 0];
      for (m = k; m < list.length; m++) {
        const px = x(place(list[m]));
        if (px - end > (m - k > 1 ? 2 : 1) * BESIDE || bin(px) !== bin(begin)) break;
        end = px;
        filled += filling(list[m]);
      }
      if (m - k === 1) {
        dot(begin, py, filled, ink.left);
        continue;
      }
      const text = `×${m - k}`;
      const wide = clamp(end - begin + 2 * DOT, 9 + 6 * text.length, TOGETHER - 2);
      const start = x(0) + bin(begin) * TOGETHER + 1;
      const px = Math.max(clamp((begin + end - wide) / 2, start, start + TOGETHER - 2 - wide), free);
      free = px + wide + 1;
      paint((0.7 * filled) / (m - k), ink.left, () => pen.roundRect(px, py - 7.5, wide, 15, 7.5));
      write(text, px + wide / 2, py + 3.5, ink.text, "center", FONT.replace("12", "10"));
    }
  };
  const arrow = (a, b, thick, colour, alpha, dashes = []) => {
    const [ax, bx] = [a, b].map((i) => clamp(x(place(i)), -3 * width, 3 * width)); // beyond, only the direction matters
    const [ay, by] = [y(a), y(b)];
    const long = Math.hypot(bx - ax, by - ay) || 1;
    const bend = ((ay > by ? -1 : 1) * clamp(0.2 * long, 8, 0.7 * each + 10)) / long;
    const [cx, cy] = [(ax + bx) / 2 + bend * (by - ay), (ay + by) / 2 - bend * (bx - ax)];
    const angle = Math.atan2(by - cy, bx - cx);
    const head = 5 + 1.1 * thick;
    const back = (far, turn = 0) => [bx - (far + 8) * Math.cos(angle + turn), by - (far + 8) * Math.sin(angle + turn)];
    pen.save();
    Object.assign(pen, { globalAlpha: alpha, fillStyle: colour, lineWidth: thick });
    pen.setLineDash(dashes);
    line(`M${ax} ${ay}Q${cx} ${cy} ${back(0.7 * head).join(" ")}`, colour);
    pen.beginPath();
    for (const turn of [0, 0.3, -0.3]) pen.lineTo(...back(turn ? head : 0, turn));
    pen.fill();
    pen.restore();
  };

  const drawAxis = () => {
    const count = clamp(Math.floor(room / 100), 2, 9);
    const bottom = top + each * lanes.length;
    const span = [view.low, view.high].map((value) => DATA.start + clamp(value, 0, times[N - 1]));
    const marks = even.checked ? ticks(view.low, view.high, count).filter((i) => Number.isInteger(i) && i >= 0 && i < N).map((i) => [i, when(i, N - 1)])
      : DATA.moments ? momentTicks(...span, count).map(([at, text]) => [at - DATA.start, text]) : ticks(...span, count).map((at) => [at - DATA.start, number(at, 7)]);
    let free = -Infinity;
    for (const [value, text] of marks) {
      const px = x(value);
      line(`M${px} ${top}V${bottom}`, ink.grid);
      const half = widthOf(text) / 2;
      const centre = clamp(px, left + half + 2, width - half - 2);
      if (centre - half < free + 10) continue;
      free = centre + half;
      write(text, centre, bottom + 18, ink.soft);
    }
    const dates = new Set(span.map((moment) => iso(moment, 0, 10)));
    const text = even.checked ? "evenly spaced" : DATA.moments ? [...dates].join(" to ") : `time${DATA.unit === null ? "" : ` (${DATA.unit})`}`;
    write(fitted(text, width - 20), left ? x0 : 8, 16, ink.soft, "left");
    DATA.lanes.forEach((text, row) => {
      line(`M${left} ${middle(row)}H${width}`, ink.line);
      const [colour, font] = lane[at] === row ? [ink.text, `600 ${FONT}`] : [ink.soft, FONT];
      if (left) write(fitted(text, 0.9 * left - 16), left - 8, middle(row) + 4, colour, "right", font);
      else write(fitted(text, width - 16), 6, middle(row) - 10, colour, "left", font.replace("12", "11"));
    });
  };
  const drawArrows = () => {
    const strongest = (steps) => steps.sort(likeliest).slice(0, MOST_ARROWS).reverse();
    const direct = causes(at).filter(([, p]) => p >= FAINTEST);
    if (chain.checked) for (const [a, b, p] of strongest(led.steps)) if (b !== at) arrow(a, b, 0.6 + 2.2 * p, ink.distilled, 0.3 + 0.5 * p);
    for (const [a, b, p] of strongest(set.steps)) if (a === at || chain.checked) arrow(a, b, 0.6 + 2.6 * p, ink.whole, 0.25 + 0.6 * p);
    for (const [a, p] of held(at)) arrow(a, at, 1.4, ink.soft, clamp(-2 * p, 0.5, 1), [3, 3]);
    for (const [a, p] of direct.slice().reverse()) arrow(a, at, 0.8 + 6.5 * p, ink.distilled, 0.45 + 0.55 * p);
    for (const [i, colour] of related) dot(x(place(i)), y(i), filling(i), ink[colour]);
    pen.lineWidth = 2;
    paint(filling(at), ink.text, () => {
      for (const [dx, dy] of [[0, -8], [8, 0], [0, 8], [-8, 0]]) pen.lineTo(x(place(at)) + dx, y(at) + dy);
      pen.closePath();
    });
    [pen.strokeStyle, pen.lineWidth, pen.textAlign] = [ink.face, 3.5, "center"];
    const labels = [];
    for (const [a, p] of direct) {
      const [px, py] = [clamp(x(place(a)), left + 24, width - 24), y(a) + (y(at) < y(a) ? 19 : -10)];
      if (labels.some(([qx, qy]) => Math.abs(qx - px) < 32 && qy === py)) continue; // no label over another
      labels.push([px, py]);
      pen.font = `700 ${FONT}`;
      pen.strokeText(share(p), px, py);
      write(share(p), px, py, ink.distilled, "center", pen.font);
    }
  };
  const drawStrip = () => {
    const [low, high] = ends();
    const to = (value) => ((value - low) / (high - low)) * width;
    const bars = new Uint32Array(Math.ceil(width / 3) + 1);
    for (let i = 0; i < N; i++) bars[Math.floor(to(place(i)) / 3)]++;
    const most = Math.sqrt(Math.max(...bars));
    const bar = (colour, px, wide, tall = STRIP) => {
      thin.fillStyle = colour;
      thin.fillRect(px, STRIP - tall, wide, tall);
    };
    thin.clearRect(0, 0, width, STRIP);
    bars.forEach((count, k) => bar(ink.left, 3 * k, 2, ((STRIP - 8) * Math.sqrt(count)) / most));
    for (const [i, colour] of [...related, [at, "text"]]) bar(ink[colour], to(place(i)) - 1, 2.5);
    const [begin, end] = [to(view.low), Math.max(to(view.high), to(view.low) + 4)];
    thin.globalAlpha = 0.7;
    bar(ink.card, 0, begin);
    bar(ink.card, end, width);
    thin.globalAlpha = 1;
    thin.strokeStyle = ink.text;
    thin.strokeRect(begin + 0.5, 0.5, end - begin - 1, STRIP - 1);
  };
  let scheduled = 0;
  const schedule = () => { scheduled ||= requestAnimationFrame(draw); };
  const draw = () => {
    scheduled = 0;
    const style = getComputedStyle(document.documentElement);
    for (const key of ["face", "text", "soft", "line", "grid", "left", "distilled", "whole", "card"]) ink[key] = style.getPropertyValue(`--${key}`);
    pen.clearRect(0, 0, width, canvas.height);
    pen.lineWidth = 1;
    drawAxis();
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width, canvas.height);
    pen.clip();
    pen.lineWidth = 1.4;
    pen.globalAlpha = 0.6;
    lanes.forEach((list, row) => drawLane(list, middle(row)));
    pen.globalAlpha = 1;
    drawArrows();
    pen.restore();
    drawStrip();
  };

  // --- the panel

  const link = (i, text, small, act = () => {}) => {
    const made = h("button", { class: "link" }, text, " ", h("small", {}, small));
    made.addEventListener("click", () => {
      select(i);
      act();
      box.focus({ preventScroll: true });
    });
    return made;
  };
  const toPicture = () => box.scrollIntoView({ block: "nearest" });
  const entry = (content, p, className, text = share(p)) => {
    const bar = h("i");
    bar.style.width = `${100 * clamp(Math.abs(p), 0, 1)}%`;
    return h("li", { class: className }, h("span", {}, content), h("span", { class: "bar" }, bar), h("span", { class: "value" }, text));
  };
  const rows = (title, items) => (items.length ? [h("h3", {}, title), h("ul", { class: "rows" }, ...items)] : []);
  const told = (i) => link(i, name(i), lag(i, at));
  const show = () => {
    const direct = causes(at).filter(([, p]) => p >= FAINTEST);
    const rest = direct.reduce((left, [, p]) => left - p, 1 - none[at]);
    const others = [["other events", rest], ["nothing in this log", none[at]]].filter(([, p]) => p >= 0.005);
    const roots = allAsked ? led.roots.filter(([i]) => i !== at).slice(0, 3) : [];
    byId("event-name").textContent = name(at);
    byId("event-time").textContent = full(at) + (allAsked ? ` · event ${at + 1} of ${N}` : "");
    byId("said").textContent = sentences(at, led);
    byId("earlier").disabled = at === 0;
    byId("later").disabled = at === N - 1;
    byId("cause").disabled = !direct.length;
    byId("parts").replaceChildren(
      ...rows("Likely causes", [...direct.map(([i, p]) => entry(told(i), p)), ...others.map(([text, p]) => entry(text, p, "other"))]),
      ...rows("Where it began", roots.map(([i, p]) => entry(told(i), p))),
      ...rows(`It set off about ${few(setsOff[at])} later events`, set.found.slice(0, 4).map(([i, p]) => entry(told(i), p, "set"))),
      ...rows("What held it back", held(at).map(([i, p]) => entry(told(i), p, "other", `${(1 - p).toFixed(1)}× less`))),
    );
  };
  const look = () => {
    related = new Map();
    for (const [a, b] of set.steps) if (chain.checked || a === at) related.set(b, "whole");
    for (const [a, b] of led.steps) if (chain.checked || b === at) related.set(a, "distilled");
    schedule();
  };
  let naming;
  const mark = (row) => { row.ariaCurrent = row.event === at ? "true" : null; };
  const select = (i) => {
    at = clamp(i, 0, N - 1);
    [led, set] = [origins(at), outcomes(at)];
    look();
    if (place(at) < view.low || place(at) > view.high) setView(place(at) - 0.6 * view.span, place(at) + 0.4 * view.span);
    show();
    for (const row of body.children) mark(row);
    clearTimeout(naming); // no step waits for the address
    if (parent === window) naming = setTimeout(() => history.replaceState(null, "", `#event-${at + 1}`), 200);
  };
  const follow = () => causes(at).slice(0, 1).forEach(([i]) => select(i));
  const closest = (list, value) => {
    const k = lower(list, value);
    return k > 0 && (k === list.length || value - place(list[k - 1]) < place(list[k]) - value) ? list[k - 1] : list[k];
  };
  const toLane = (row) => lanes[row] && select(closest(lanes[row], place(at)));

  // --- keys, pointers

  const KEYS = {
    ArrowLeft: () => select(at - 1), ArrowRight: () => select(at + 1), ArrowUp: () => toLane(lane[at] - 1), ArrowDown: () => toLane(lane[at] + 1),
    Enter: follow, Home: () => select(0), End: () => select(N - 1),
    c: () => chain.click(), e: () => even.click(), f: fit, "+": () => zoom(0.5), "-": () => zoom(2), 0: showAll,
  };
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  const nearest = (px, py) => {
    const far = (i) => Math.hypot(x(place(i)) - px, y(i) - py) - (related.has(i) ? 4 : 0); // what has an arrow comes first
    const near = [...related.keys(), ...lanes.filter((_, row) => Math.abs(middle(row) - py) < NEAR).map((list) => closest(list, valueAt(px)))];
    const [best] = near.sort((a, b) => far(a) - far(b));
    return best !== undefined && far(best) < NEAR ? best : null;
  };
  let [pressed, moved] = [null, 0]; // where, and how far it came since
  canvas.addEventListener("pointerdown", (event) => {
    [pressed, moved] = [event.offsetX, 0];
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const i = pressed === null ? nearest(offsetX, offsetY) : null;
    const { left, top } = canvas.getBoundingClientRect();
    if (i === null) hideTip();
    else showTip([name(i), full(i), isAsked(i) ? `nothing in this log: ${share(none[i])}` : ""], left + x(place(i)), top + y(i));
    if (pressed === null) return;
    moved += Math.abs(pressed - offsetX);
    if (moved > 4) pan(pressed - offsetX);
    pressed = offsetX;
  });
  for (const type of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(type, ({ offsetX, offsetY }) => {
      const i = type === "pointerup" && pressed !== null && moved <= 4 ? nearest(offsetX, offsetY) : null;
      pressed = null;
      if (i !== null) select(i);
    });
  }
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", (event) => zoom(0.25, (event.offsetX - x0) / room));
  canvas.addEventListener("wheel", (event) => { // alone it scrolls the page
    if (!event.ctrlKey && !event.metaKey && !event.deltaX) return;
    event.preventDefault();
    if (event.deltaX) pan(event.deltaX);
    else zoom(1.003 ** event.deltaY, (event.offsetX - x0) / room);
  }, { passive: false });
  for (const type of ["pointerdown", "pointermove"]) {
    strip.addEventListener(type, (event) => {
      const [low, high] = ends();
      const begin = low + (event.offsetX / width) * (high - low) - view.span / 2;
      if (event.buttons) setView(begin, begin + view.span);
    });
  }
  const BUTTONS = { earlier: "ArrowLeft", later: "ArrowRight", cause: "Enter", closer: "+", wider: "-", fit: "f", all: 0 };
  for (const [id, key] of Object.entries(BUTTONS)) byId(id).addEventListener("click", KEYS[key]);
  chain.addEventListener("change", look);
  const respace = () => {
    place = even.checked ? (i) => i : (i) => times[i];
    showAll();
    if (N > 200) fit();
  };
  even.addEventListener("change", respace);

  // --- the list, and examples of the table of kinds

  const body = byId("list").tBodies[0];
  const controls = ["search", "kind", "sort"].map(byId);
  let [found, shown] = [[], 0];
  const addRows = () => {
    for (const i of found.slice(shown, shown + ROWS)) {
      const [cause] = causes(i);
      const because = cause ? `${name(cause[0])}, ${lag(cause[0], i)} (${share(cause[1])})` : "–";
      const numbers = [isAsked(i) ? share(none[i]) : "–", few(setsOff[i])].map((text) => h("td", { class: "number" }, text));
      const row = h("tr", {}, h("td", {}, link(i, name(i), "", toPicture)), h("td", {}, full(i)), h("td", {}, because), ...numbers);
      row.event = i;
      mark(row);
      body.append(row);
    }
    shown = Math.min(shown + ROWS, found.length);
    byId("more").hidden = shown === found.length;
    byId("shown").textContent = plural(found.length, "event") + (shown < found.length ? `, the first ${shown} shown` : "");
  };
  const fill = () => {
    const [search, wanted, sort] = controls.map((control) => control.value);
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (i) => (word) => `${name(i)} ${full(i)}`.toLowerCase().includes(word);
    found = [...times.keys()].filter((i) => (wanted === "" || kind[i] === Number(wanted)) && words.every(has(i)));
    const key = { caused: (i) => none[i], alone: (i) => -none[i], sets: (i) => -setsOff[i] }[sort];
    if (key) found.sort((a, b) => (key(a) || 0) - (key(b) || 0) || a - b);
    body.replaceChildren();
    shown = 0;
    addRows();
  };
  DATA.kinds.forEach((text, value) => controls[1].append(h("option", { value }, fitted(text, 300))));
  for (const control of controls) control.addEventListener("input", fill);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", addRows);

  byId("matrix")?.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const [a, b] = [button.dataset.cause, button.dataset.effect].map(Number);
    const pairs = [];
    for (const i of lanes[b]) for (const [j, p] of causes(i)) if (lane[j] === a) pairs.push([i, j, p]);
    const items = pairs.sort(likeliest).slice(0, 8)
      .map(([i, j, p]) => entry(link(i, `${name(i)} at ${full(i)}`, `${name(j)} ${lag(j, i)}`, toPicture), p));
    byId("examples").replaceChildren(...rows(`${DATA.lanes[a]} → ${DATA.lanes[b]}: the clearest cases`, items));
  });

  // --- start

  const start = () => (/^#event-\d+$/.test(location.hash) ? Number(location.hash.slice(7)) - 1 : DATA.event);
  lay();
  even.checked = DATA.evenly;
  fill();
  select(start());
  respace();
  new ResizeObserver(() => {
    if (box.clientWidth !== width) lay();
    schedule();
  }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);
  addEventListener("message", schedule);
  addEventListener("hashchange", () => select(start()));
})();
