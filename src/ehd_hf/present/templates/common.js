"use strict";
// What the scripts of all pages share. Data comes from the JSON block; every string of it becomes text, never markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// --- elements and numbers

const node = (space, tag, attributes, ...children) => {
  const made = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};
const h = (tag, attributes, ...children) => node(null, tag, attributes, ...children);
const s = (tag, attributes, ...children) => node(SVG, tag, attributes, ...children);
const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const last = (list) => list[list.length - 1];
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const percent = (share) => `${Math.round(100 * share)}%`;

const number = (value, digits = 4) => {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
};

// Many numbers in little room.
const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, f8: Float64Array };
const unpacked = (text) => {
  const raw = atob(text.slice(2));
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new ARRAYS[text.slice(0, 2)](bytes.buffer);
};

const MEASURE = document.createElement("canvas").getContext("2d");
const FONT = "12px system-ui, sans-serif";
const widthOf = (text) => {
  MEASURE.font = FONT;
  return MEASURE.measureText(text).width;
};
const fitted = (text, width) => {
  let shown = text.replace(/\s+/g, " ").trim() || "(no name)";
  if (shown.length > 200) shown = shown.slice(0, 200) + "…";
  if (widthOf(shown) <= width) return shown;
  const letters = Array.from(shown);
  // Out of the middle: names often begin alike.
  while (letters.length > 1 && widthOf(letters.join("") + "…") > width) letters.splice(letters.length >> 1, 1);
  letters.splice(letters.length >> 1, 0, "…");
  return letters.join("");
};

const UNITS = { D: "day", h: "hour", min: "minute", s: "second", ms: "millisecond", us: "microsecond", ns: "nanosecond" };
const perUnit = (unit) => `per ${unit === null ? "unit of time" : (UNITS[unit] ?? unit)}`;

// --- scales and ticks

const linear = (from, to, start, end) => {
  const span = to - from || 1;
  return (value) => start + ((value - from) / span) * (end - start);
};
const ticks = (from, to, count) => {
  const span = to - from;
  if (!(span > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => span / size <= count);
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + 1e-9 * span; i++) found.push(i * step);
  return found.map((value) => Number(value.toPrecision(12)));
};

// Moments are milliseconds since 1970, shown as they were written: no time zone enters.
const [SECOND, MINUTE, HOUR, DAY] = [1e3, 6e4, 36e5, 864e5];
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 4, 7, 14].map((n) => n * DAY),
];
const iso = (moment, from, to) => {
  const date = new Date(moment);
  return Number.isFinite(date.getTime()) ? date.toISOString().slice(from, to) : "";
};
const momentTicks = (from, to, count) => {
  const span = to - from;
  if (span < 2) return ticks(from, to, count).map((value) => [value, `${number(value - from)} ms`]);
  const step = STEPS.find((size) => span / size <= count);
  if (step !== undefined) {
    const cut = step < SECOND ? [17, 23] : step < MINUTE ? [11, 19] : step < DAY ? [11, 16] : [5, 10];
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push([at, iso(at, ...cut)]);
    return found;
  }
  const months = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200].find((n) => span / (n * 30.4 * DAY) <= count) ?? 12000;
  const first = new Date(from);
  const found = [];
  let month = 12 * first.getUTCFullYear() + first.getUTCMonth();
  for (month = Math.ceil(month / months) * months; found.length < 50; month += months) {
    const at = Date.UTC(Math.floor(month / 12), month % 12);
    if (at > to) break;
    if (at >= from) found.push([at, iso(at, 0, months >= 12 ? 4 : 7)]);
  }
  return found;
};
const momentText = (moment) => {
  const text = iso(moment, 0, 23).replace("T", " ");
  return text.endsWith(".000") ? text.slice(0, 19) : text;
};
const withUnit = (text, unit) => (unit === null ? text : `${text} ${/^[a-z]+$/i.test(unit) ? "" : "x "}${unit}`);
const timeText = (time, { moments, unit }) => (moments ? momentText(time) : withUnit(number(time, 7), unit));

// --- one tooltip for all charts

const tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
document.body.append(tip);
const showTip = (lines, x, y) => {
  tip.replaceChildren(...lines.map((line, index) => h(index ? "div" : "strong", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${scrollX + clamp(x - box.width / 2, 4, document.documentElement.clientWidth - box.width - 4)}px`;
  tip.style.top = `${scrollY + (y - box.height - 14 < 4 ? y + 18 : y - box.height - 14)}px`;
};
const hideTip = () => {
  tip.hidden = true;
};

// Inside another page: say how much room this one needs, and be told whether it is dark there.
if (parent !== window) {
  new ResizeObserver(() => parent.postMessage({ height: document.body.offsetHeight }, "*")).observe(document.body);
  const dark = [...document.styleSheets[0].cssRules].find((rule) => rule.media?.mediaText.includes("dark"));
  addEventListener("message", ({ source, data }) => {
    if (source !== parent || typeof data?.dark !== "boolean") return;
    dark.media.mediaText = data.dark ? "all" : "not all";
    document.documentElement.style.colorScheme = data.dark ? "dark" : "light";
  });
}
