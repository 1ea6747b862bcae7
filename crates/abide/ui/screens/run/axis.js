// Where an instant stands in the picture: time runs evenly, except that long idle stretches are folded.

/**
 * @typedef {object} Piece
 * @property {number} from
 * @property {number} to
 * @property {number} x where it begins, from 0 to 1
 * @property {number} width
 *
 * @typedef {object} Axis
 * @property {number} total
 * @property {(ms: number) => number} place from 0 to 1
 * @property {{ from: number, to: number }[]} folds
 * @property {Piece[]} pieces
 */

/** An idle stretch is folded when it is this part of the whole, and longer than this. */
const IDLE_PART = 0.12;
const IDLE_MS = 1_500;
/** What a folded stretch keeps of the width. */
const FOLDED = 0.07;

/**
 * @param {{ segments: { kind: string, from_ms: number, to_ms?: number }[] }[]} lanes
 * @param {number} total
 * @returns {Axis}
 */
export function axisOf(lanes, total) {
  const folds = idle(busy(lanes, total), total).filter(({ from, to }) => to - from > IDLE_MS && to - from > total * IDLE_PART);
  const kept = total - folds.reduce((sum, fold) => sum + fold.to - fold.from, 0);
  // When nothing is left that is busy, folding would only hide the picture.
  const folded = kept > total * 0.001 ? folds : [];
  const pieces = cut(folded, total);
  return { total, folds: folded, pieces, place: (ms) => placed(pieces, ms) };
}

/** Stretches in which something was executed or began, in order and apart. @param {Parameters<typeof axisOf>[0]} lanes @param {number} total */
function busy(lanes, total) {
  /** @type {[number, number][]} */
  const all = [];
  // A moment around every change belongs to the picture, so that what happened there can be seen.
  const moment = total * 0.02;
  for (const lane of lanes) {
    for (const segment of lane.segments) {
      if (segment.kind === "waiting" || segment.kind === "in_line") all.push([segment.from_ms - moment, segment.from_ms + moment]);
      else all.push([segment.from_ms - moment, (segment.to_ms ?? total) + moment]);
    }
  }
  return all.sort((one, other) => one[0] - other[0]);
}

/** @param {[number, number][]} busy @param {number} total */
function idle(busy, total) {
  const gaps = [];
  let until = 0;
  for (const [from, to] of busy) {
    if (from > until) gaps.push({ from: until, to: from });
    until = Math.max(until, to);
  }
  if (until < total) gaps.push({ from: until, to: total });
  return gaps;
}

/** @param {{ from: number, to: number }[]} folds @param {number} total @returns {Piece[]} */
function cut(folds, total) {
  const lost = folds.reduce((sum, fold) => sum + fold.to - fold.from, 0);
  const scale = (1 - folds.length * FOLDED) / Math.max(1, total - lost);
  /** @type {Piece[]} */
  const pieces = [];
  let [at, x] = [0, 0];
  const add = (/** @type {number} */ to, /** @type {number} */ width) => {
    pieces.push({ from: at, to, x, width });
    x += width;
    at = to;
  };
  for (const fold of folds) {
    if (fold.from > at) add(fold.from, (fold.from - at) * scale);
    add(fold.to, FOLDED);
  }
  if (at < total || !pieces.length) add(total, 1 - x);
  return pieces;
}

/** @param {Piece[]} pieces @param {number} ms */
function placed(pieces, ms) {
  const piece = pieces.find((one) => ms <= one.to) ?? pieces[pieces.length - 1];
  if (!piece) return 0;
  const part = piece.to > piece.from ? (ms - piece.from) / (piece.to - piece.from) : 0;
  return piece.x + Math.max(0, Math.min(1, part)) * piece.width;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

/** Round instants, about seven, none inside what is folded and none upon another. @param {Axis} axis */
export function ticksOf(axis) {
  const kept = axis.total - axis.folds.reduce((sum, fold) => sum + fold.to - fold.from, 0);
  const step = STEPS.find((one) => kept / one <= 8) ?? kept / 7;
  const ticks = [];
  for (const piece of axis.pieces) {
    if (axis.folds.some((fold) => fold.from === piece.from && fold.to === piece.to)) continue;
    for (let ms = Math.ceil(piece.from / step) * step; ms <= piece.to; ms += step) ticks.push(ms);
  }
  let last = -1;
  const apart = ticks.filter((ms) => {
    const x = axis.place(ms);
    if (x - last < 0.06 || x > 0.97) return last < 0 && x === 0;
    last = x;
    return true;
  });
  return { ticks: apart, step };
}
