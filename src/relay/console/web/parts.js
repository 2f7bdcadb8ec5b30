// Parts that several views use.
import { html, useEffect, useRef, useState, useClock } from './dom.js';
import { count, span } from './format.js';

export const queueHref = (account, queue) => `#/queues/${encodeURIComponent(account)}/${encodeURIComponent(queue)}`;
export const flagHref = flag => `#/flags/${encodeURIComponent(flag)}`;

// The fragment with other filters.
export function href(path, query) {
  const stated = Object.entries(query).filter(([, value]) => value);
  return `#${path}${stated.length ? `?${new URLSearchParams(stated)}` : ''}`;
}

// A duration that grows with the clock.
export function Age({ seconds, at, ago = false }) {
  const now = useClock();
  if (seconds === undefined) return html`<span class="faint">–</span>`;
  return html`<span class="nowrap">${span(seconds + Math.max(0, now - at) / 1000)}${ago ? ' ago' : ''}</span>`;
}

// A number in a table; a zero is grey.
export const Num = ({ n, text = count }) => (n ? text(n) : html`<span class="faint">0</span>`);

export const Badge = ({ kind, children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

// A problem of a request; the banner shows that the relay is not reachable.
export function Notice({ problem }) {
  if (!problem || problem.status === 401) return null;
  return html`<p class="notice bad" role="alert"><strong>${problem.title}</strong> ${problem.message}</p>`;
}

export const Unanswered = ({ ids }) => (ids?.length
  ? html`<p class="notice warn" role="status">Not counted, because they did not answer: ${ids.join(', ')}.</p>`
  : null);

export const Empty = ({ title, command, children }) => html`<div class="empty">
  <h2>${title}</h2><p>${children}</p>${command && html`<pre><code>${command}</code></pre>`}
</div>`;

export const Tile = ({ label, value, note, kind = '', title }) => html`<div class=${`tile ${kind}`} title=${title}>
  <dt>${label}</dt><dd><span class="big">${value}</span>${note !== undefined && html`<span class="note">${note}</span>`}</dd>
</div>`;

// A name that breaks behind the account.
export const QueueName = ({ of }) => html`${of.storage_account}/<wbr />${of.queue_name}`;

export const Heading = ({ title, children }) => html`<header class="heading">
  <h1 tabindex="-1">${title}</h1><div class="actions">${children}</div>
</header>`;

// A search field that writes into the fragment after a short rest.
export function Search({ label, value, change }) {
  const timer = useRef(0);
  const [text, setText] = useState(value);
  const input = useRef(null);
  // What the user is typing stays; the address may be a few letters behind.
  useEffect(() => { if (document.activeElement !== input.current) setText(value); }, [value]);
  const typed = event => {
    setText(event.target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(change, 250, event.target.value.trim());
  };
  const toRows = event => {
    const row = event.key === 'ArrowDown' && document.querySelector('main a.row');
    if (!row) return;
    row.focus();
    event.preventDefault();
  };
  return html`<label class="search"><span class="hidden">${label}</span>
    <input ref=${input} type="search" data-search placeholder=${label} value=${text} onInput=${typed} onKeyDown=${toRows}
      autocomplete="off" spellcheck=${false} aria-keyshortcuts="/" /><kbd aria-hidden="true">/</kbd></label>`;
}

// A table whose order holds while a row has the focus or the pointer. A column has a `head` and a `cell` of a row;
// `wide` ones are left out on narrow screens; `order` and `sort` are the relay's order by this column.
export function Table({ label, columns, rows, keyOf, hrefOf, kindOf, order = '', orderHref }) {
  const shown = useRef(new Map());
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

  const step = event => {
    const down = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!down || event.ctrlKey || event.metaKey || event.altKey) return;
    const links = [...event.currentTarget.querySelectorAll('a.row')];
    const next = links[links.indexOf(document.activeElement) + down];
    if (next) next.focus();
    event.preventDefault();
  };
  const open = event => {
    if (event.target.closest('a, button') || getSelection()?.toString()) return;
    event.currentTarget.querySelector('a.row')?.click();
  };
  const classOf = column => [column.number && 'number', column.wide && 'wide'].filter(Boolean).join(' ') || undefined;
  const head = column => (column.order !== undefined && orderHref
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

// Links to the first and the next page.
export const Pages = ({ path, query, next }) => (query.page || next
  ? html`<nav class="pages" aria-label="Pages">
      ${query.page && html`<a class="button" href=${href(path, { ...query, page: '' })}>First page</a>`}
      ${next && html`<a class="button" href=${href(path, { ...query, page: next })}>Next page</a>`}
    </nav>`
  : null);

// A dialog with a form. `submit` throws a Problem to keep the dialog open with what was typed.
export function Dialog({ title, action, danger = false, ready = true, close, submit, children }) {
  const box = useRef(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(undefined);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    box.current.querySelector('input, textarea')?.focus();
    return () => before?.isConnected && before.focus();
  }, []);
  const send = async event => {
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

export const Field = ({ label, hint, children }) => html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
