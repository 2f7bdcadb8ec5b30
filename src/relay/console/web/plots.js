// A plot over time: uPlot with a legend of its own, a sentence for screen readers, and a table.
//
// Its properties: `times` in seconds since 1970; `least`, the least top of the scale; `text` writes a value; and
// `series`, each with the name of a CSS variable as its `colour`, and with `line` without an area below it.
import uPlot from './vendor/uplot.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './dom.js';
import { clock, clockShort } from './format.js';

// Rows of the table that stands for a plot.
const TABLE_ROWS = 30;
const HEIGHT = 168;
// The axis of time has at least this many seconds.
const LEAST = 60;
// Below this many seconds the axis of time shows seconds.
const MINUTES = 240;

// Resolves a CSS colour for the canvas.
function colour(name, alpha = 1) {
  const probe = document.createElement('span');
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g) ?? ['0', '0', '0'];
  probe.remove();
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

// The drawn values: of a stack, sums from the first series on.
function data({ times, series, stacked }) {
  if (!stacked) return [times, ...series.map(one => one.values)];
  const sum = times.map(() => 0);
  const layers = series.map(one => one.values.map((value, i) => (sum[i] += value ?? 0)));
  // The highest layer is drawn first, below the others.
  return [times, ...layers.reverse()];
}

export function sentence({ title, period, series, text }) {
  const parts = series.map(({ label, values }) => {
    const known = (values.filter(value => value !== null));
    if (!known.length) return `${label}: no values`;
    const [least, most] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    return `${label}: minimum ${text(least)}, maximum ${text(most)}, latest ${text(known[known.length - 1])}`;
  });
  return `${title}, ${period}. ${parts.join('. ')}.`;
}

function options(props, width, pointed) {
  const drawn = props.stacked ? [...props.series].reverse() : props.series;
  const font = '11px system-ui, sans-serif';
  const axis = { stroke: () => colour('--faint'), font, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 18, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false }, sync: { key: 'reveille' } },
    scales: { x: { range: (...[, first, last]) => [Math.min(first, last - LEAST), last] }, y: { range: (_, _low, high) => [0, Math.max(props.least, high * 1.12)] } },
    axes: [
      { ...axis, size: 26, grid: { show: false },
        space: (...[, , first, last]) => (last - first < MINUTES ? 66 : 48),
        values: (plot, at) => at.map(s => (plot.scales.x.max - plot.scales.x.min < MINUTES ? clock : clockShort)(s * 1000)) },
      { ...axis, size: 58, gap: 6, space: 34, grid: { stroke: () => colour('--line'), width: 1 },
        values: (_, at) => at.map(props.text) },
    ],
    series: [{}, ...drawn.map(one => ({
      label: one.label,
      stroke: () => colour(one.colour),
      fill: one.line ? undefined : () => colour(one.colour, props.stacked ? 0.5 : 0.13),
      width: 1.5,
      points: { show: false },
    }))],
    // The area of each layer ends at the layer below it.
    bands: props.stacked ? drawn.slice(1).map((_, i) => ({ series: [i + 1, i + 2] })) : undefined,
    hooks: { setCursor: [plot => pointed(plot.cursor.idx ?? null)] },
  };
}

export function Plot(props) {
  const place = useRef(null);
  const plot = useRef(null);
  const [index, setIndex] = useState(null);
  const [table, setTable] = useState(false);
  const { title, times, series, text } = props;

  useEffect(() => {
    const box = place.current;
    const drawn = new uPlot(options(props, box.clientWidth, setIndex), data(props), box);
    plot.current = drawn;
    const resized = new ResizeObserver(() => box.clientWidth && drawn.setSize({ width: box.clientWidth, height: HEIGHT }));
    resized.observe(box);
    const recolour = () => drawn.redraw(false);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', recolour);
    return () => {
      resized.disconnect();
      dark.removeEventListener('change', recolour);
      drawn.destroy();
    };
  }, []);
  useLayoutEffect(() => plot.current?.setData(data(props)), [times]);

  const at = index !== null && times[index] !== undefined ? index : times.length - 1;
  const value = n => (n === null || n === undefined ? '–' : text(n));
  const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  const rows = times.map((_, i) => i).filter(i => (times.length - 1 - i) % step === 0).reverse();
  return html`<section class="plot panel" aria-label=${title}>
    <header><h3>${title}</h3>
      <button type="button" class="quiet" aria-pressed=${table} onClick=${() => setTable(!table)}>${table ? 'Show as plot' : 'Show as table'}</button></header>
    <ul class="legend" aria-hidden="true">
      ${series.map(one => html`<li><i class="swatch" style=${{ background: `var(${one.colour})` }}></i>${one.label} <b>${value(one.values[at])}</b></li>`)}
      <li class="faint">${index !== null && times[at] ? clock(times[at] * 1000) : 'now'}</li>
    </ul>
    <div ref=${place} class="canvas" role="img" aria-label=${sentence(props)} hidden=${table}></div>
    ${table && html`<div class="table short" role="region" aria-label=${`${title}, as a table`} tabindex="0"><table>
      <thead><tr><th scope="col">Time</th>${series.map(one => html`<th scope="col" class="number">${one.label}</th>`)}</tr></thead>
      <tbody>${rows.map(i => html`<tr key=${times[i]}><th scope="row">${clock(times[i] * 1000)}</th>${series.map(one => html`<td class="number">${value(one.values[i])}</td>`)}</tr>`)}</tbody>
    </table></div>`}
  </section>`;
}
