// @ts-check
// Parts that several views use.
import { html, useEffect, useRef, useState, useClock } from './dom.js';
import { count, span } from './format.js';

/** @param {string} account @param {string} queue */
export const queueHref = (account, queue) => `#/queues/${encodeURIComponent(account)}/${encodeURIComponent(queue)}`;
/** @param {string} flag */
export const flagHref = flag => `#/flags/${encodeURIComponent(flag)}`;

/**
 * The fragment with other filters.
 * @param {string} path @param {Record<string, any>} query
 */
export function href(path, query) {
  const stated = Object.entries(query).filter(([, value]) => value);
  return `#${path}${stated.length ? `?${new URLSearchParams(stated)}` : ''}`;
}

/** A duration that grows with the clock. @param {{seconds: number | undefined, at: number, ago?: boolean}} props */
export function Age({ seconds, at, ago = false }) {
  const now = useClock();
  if (seconds === undefined) return html`<span class="faint">–</span>`;
  return html`<span class="nowrap">${span(seconds + Math.max(0, now - at) / 1000)}${ago ? ' ago' : ''}</span>`;
}

/** A number in a table; a zero is grey. @param {{n: number, text?: (n: number) => string}} props */
export const Num = ({ n, text = count }) => (n ? text(n) : html`<span class="faint">0</span>`);

/** @param {{kind: string, children: any}} props kind: good, warn, bad, info, off, awake, asleep */
export const Badge = ({ kind, children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

/** A problem of a request; the banner shows that the relay is not reachable. @param {{problem: any}} props */
export function Notice({ problem }) {
  if (!problem || problem.status === 401) return null;
  return html`<p class="notice bad" role="alert"><strong>${problem.title}</strong> ${problem.message}</p>`;
}

/** @param {{ids: string[] | undefined}} props */
export const Unanswered = ({ ids }) => (ids?.length
  ? html`<p class="notice warn" role="status">Not counted, because they did not answer: ${ids.join(', ')}.</p>`
  : null);

/** @param {{title: string, command?: string, children?: any}} props */
export const Empty = ({ title, command, children }) => html`<div class="empty">
  <h2>${title}</h2><p>${children}</p>${command && html`<pre><code>${command}</code></pre>`}
</div>`;

/** @param {{label: string, value: any, note?: any, kind?: string, title?: string}} props */
export const Tile = ({ label, value, note, kind = '', title }) => html`<div class=${`tile ${kind}`} title=${title}>
  <dt>${label}</dt><dd><span class="big">${value}</span>${note !== undefined && html`<span class="note">${note}</span>`}</dd>
</div>`;

/** A name that breaks behind the account. @param {{of: {storage_account: string, queue_name: string}}} props */
export const QueueName = ({ of }) => html`${of.storage_account}/<wbr />${of.queue_name}`;

/** @param {{title: any, children?: any}} props */
export const Heading = ({ title, children }) => html`<header class="heading">
  <h1 tabindex="-1">${title}</h1><div class="actions">${children}</div>
</header>`;

/**
 * A search field that writes into the fragment after a short rest.
 * @param {{label: string, value: string, change: (text: string) => void}} props
 */
export function Search({ label, value, change }) {
  const timer = useRef(0);
  const [text, setText] = useState(value);
  const input = useRef(/** @type {any} */ (null));
  // What the user is typing stays; the address may be a few letters behind.
  useEffect(() => { if (document.activeElement !== input.current) setText(value); }, [value]);
  const typed = (/** @type {any} */ event) => {
    setText(event.target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(change, 250, event.target.value.trim());
  };
  const toRows = (/** @type {any} */ event) => {
    const row = event.key === 'ArrowDown' && /** @type {HTMLElement | null} */ (document.querySelector('main a.row'));
    if (!row) return;
    row.focus();
    event.preventDefault();
  };
  return html`<label class="search"><span class="hidden">${label}</span>
    <input ref=${input} type="search" data-search placeholder=${label} value=${text} onInput=${typed} onKeyDown=${toRows}
      autocomplete="off" spellcheck=${false} aria-keyshortcuts="/" /><kbd aria-hidden="true">/</kbd></label>`;
}

/**
 * @typedef {{head: string, cell: (row: any) => any, number?: boolean, wide?: boolean, order?: string, sort?: 'ascending' | 'descending', title?: string}} Column
 * wide: left out on narrow screens; sort: of the relay's order by this column
 */

/**
 * A table whose order holds while a row has the focus or the pointer.
 * @param {{label: string, columns: Column[], rows: any[], keyOf: (row: any) => string, hrefOf?: (row: any) => string,
 *   kindOf?: (row: any) => string, order?: string, orderHref?: (order: string) => string}} props
 */
export function Table({ label, columns, rows, keyOf, hrefOf, kindOf, order = '', orderHref }) {
  const shown = useRef(/** @type {Map<string, any>} */ (new Map()));
  const [pointed, setPointed] = useState(false);
  const [focused, setFocused] = useState(false);
  const fresh = new Map(rows.map(row => [keyOf(row), row]));
  const gone = new Set();
  if (pointed || focused) {
    const held = new Map();
    for (const [key, row] of shown.current) {
      if (!fresh.has(key)) gone.add(key);
      held.set(key, fresh.get(key) ?? row);
    }
    for (const [key, row] of fresh) held.set(key, row);
    shown.current = held;
  } else shown.current = fresh;

  const step = (/** @type {any} */ event) => {
    const down = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[/** @type {string} */ (event.key)];
    if (!down || event.ctrlKey || event.metaKey || event.altKey) return;
    const links = [...event.currentTarget.querySelectorAll('a.row')];
    const next = links[links.indexOf(document.activeElement) + down];
    if (next) next.focus();
    event.preventDefault();
  };
  const open = (/** @type {any} */ event) => {
    if (event.target.closest('a, button') || getSelection()?.toString()) return;
    event.currentTarget.querySelector('a.row')?.click();
  };
  const classOf = (/** @type {Column} */ column) => [column.number && 'number', column.wide && 'wide'].filter(Boolean).join(' ') || undefined;
  const head = (/** @type {Column} */ column) => (column.order !== undefined && orderHref
    ? html`<a href=${orderHref(column.order)}>${column.head}${column.order === order && html`<span aria-hidden="true"> ${column.sort === 'ascending' ? '↑' : '↓'}</span>`}</a>`
    : column.head);
  return html`<div class="table" role="region" aria-label=${label} tabindex="0"><table>
    <caption class="hidden">${label}</caption>
    <thead><tr>${columns.map(column => html`<th scope="col" class=${classOf(column)} title=${column.title}
      aria-sort=${column.order !== undefined && column.order === order ? column.sort : undefined}>${head(column)}</th>`)}</tr></thead>
    <tbody onKeyDown=${step} onMouseEnter=${() => setPointed(true)} onMouseLeave=${() => setPointed(false)}
      onFocusIn=${() => setFocused(true)} onFocusOut=${() => setFocused(false)}>
      ${[...shown.current].map(([key, row]) => html`<tr key=${key} onClick=${hrefOf && open}
        class=${[gone.has(key) ? 'gone' : '', hrefOf ? 'opens' : '', kindOf?.(row) ?? ''].join(' ').trim() || undefined}>
        ${columns.map((column, i) => (i === 0
          ? html`<th scope="row">${hrefOf ? html`<a class="row" href=${hrefOf(row)}>${column.cell(row)}</a>` : column.cell(row)}</th>`
          : html`<td class=${classOf(column)}>${column.cell(row)}</td>`))}</tr>`)}
    </tbody></table></div>`;
}

/** Links to the first and the next page. @param {{path: string, query: Record<string, any>, next: string | undefined}} props */
export const Pages = ({ path, query, next }) => (query.page || next
  ? html`<nav class="pages" aria-label="Pages">
      ${query.page && html`<a class="button" href=${href(path, { ...query, page: '' })}>First page</a>`}
      ${next && html`<a class="button" href=${href(path, { ...query, page: next })}>Next page</a>`}
    </nav>`
  : null);

/**
 * A dialog with a form. `submit` throws a Problem to keep the dialog open with what was typed.
 * @param {{title: string, action: string, danger?: boolean, ready?: boolean, close: () => void, submit: () => Promise<void>, children: any}} props
 */
export function Dialog({ title, action, danger = false, ready = true, close, submit, children }) {
  const box = useRef(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {any} */ (undefined));
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    box.current.showModal();
    box.current.querySelector('input, textarea')?.focus();
    return () => before?.isConnected && before.focus();
  }, []);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (busy || !ready) return;
    setBusy(true);
    setProblem(undefined);
    try {
      await submit();
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="dialog-title">
    <form onSubmit=${send}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
      <${Notice} problem=${problem} />
      <div class="buttons">
        <button type="button" onClick=${() => box.current.close()}>Cancel</button>
        <button type="submit" class=${danger ? 'primary danger' : 'primary'} disabled=${!ready || busy}>${busy ? 'Sending…' : action}</button>
      </div>
    </form>
  </dialog>`;
}

/** @param {{label: string, hint?: any, children: any}} props */
export const Field = ({ label, hint, children }) => html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
