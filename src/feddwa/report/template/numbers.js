"use strict";
// Numbers as they are written, with the same digits as in a terminal: ties go to the even digit, as in Python.

function fixed(value, digits) {
  const halves = Math.abs(value) * 2 ** (digits + 1);
  if (halves % 2 !== 1) return value.toFixed(digits); // no tie: only odd / 2^(digits + 1) lies between two decimals
  const below = Math.floor(Math.abs(value) * 10 ** digits);
  return ((Math.sign(value) * (below + (below % 2))) / 10 ** digits).toFixed(digits);
}

function scaled(value, step, units) {
  let unit = 0;
  while (value >= step && unit < units.length - 1) (value /= step), unit++;
  return [value, units[unit]];
}

function bytes(count) {
  const [value, unit] = scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  return `${fixed(value, unit === "B" ? 0 : 1)} ${unit}`;
}

function flops(count) {
  const [value, unit] = scaled(count, 1000, ["", "k", "M", "G", "T", "P", "E"]);
  return `${fixed(value, 1)} ${unit}FLOP`;
}

function time(seconds) {
  if (seconds < 60) return `${fixed(seconds, 1)} s`;
  const whole = Number(fixed(seconds, 0)), minutes = Math.floor(whole / 60), two = (value) => String(value).padStart(2, "0");
  return minutes < 60 ? `${minutes} min ${two(whole % 60)} s` : `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${fixed(value, digits)} %`);
// Values of what methods are compared by: accuracy in percent, or a loss.
const plain = (value) => String(Number(value.toPrecision(4)));
const written = (value) => (data.measure.unit ? fixed(value, 1) : plain(value));
const reading = (value) => (value === null || value === undefined ? "–" : `${written(value)}${data.measure.unit}`);
const gained = (value) => `${value > 0 ? "+" : ""}${written(value)}${data.measure.sign > 0 ? " points" : " of loss"}`;
