// The frame of the page: router, navigation, banners and keys.
import { loadInfo, post, relay, start } from './api.js';
import { Store, html, render, useEffect, useLayoutEffect, useStore } from './dom.js';
import { Flags, FlagView } from './flags.js';
import { clock } from './format.js';
import { Help } from './help.js';
import { Listeners } from './listeners.js';
import { Login } from './login.js';
import { Overview } from './overview.js';
import { QueueView } from './queue.js';
import { Queues } from './queues.js';
import { Relays } from './relays.js';

const VIEWS = [
  ['o', '/', 'Overview'], ['q', '/queues', 'Queues'], ['l', '/listeners', 'Listeners'], ['f', '/flags', 'Flags'], ['r', '/relays', 'Relays'],
];
// The time for the second key of `g q`.
const SEQUENCE = 1500;

// The one-time code leaves the address before anything else runs.
const takeCode = () => {
  const [, code] = /^#code=(.+)$/.exec(location.hash) ?? [];
  if (!code) return '';
  history.replaceState(null, '', `${location.pathname}#/login`);
  return decodeURIComponent(code);
};

function address() {
  const [path, query] = location.hash.replace(/^#/, '').split('?');
  const decoded = part => { try { return decodeURIComponent(part); } catch { return part; } };
  return { parts: path.split('/').filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

const page = new Store({ code: takeCode(), ...address(), help: false });

addEventListener('hashchange', () => {
  const code = takeCode();
  page.set({ ...address(), ...(code ? { code } : {}) });
});

function Banners() {
  const { info, reachable, problem, restartedAt, needsLogin } = useStore(relay);
  return html`<div class="banners" role="status" aria-live="polite">
    ${!reachable && html`<p class="banner bad" data-banner="unreachable"><i class="pulse"></i>The relay cannot be reached. Reconnecting… The figures below are old.</p>`}
    ${problem && !needsLogin && html`<p class="banner bad" data-banner="problem">No figures: ${problem.message}</p>`}
    ${restartedAt && html`<p class="banner warn" data-banner="restarted">The relay was restarted at ${clock(restartedAt)}. Its counts begin anew, and listeners connect again by themselves.
      <button type="button" class="quiet" onClick=${() => relay.set({ restartedAt: undefined })}>Dismiss</button></p>`}
    ${info?.mode === 'read' && html`<p class="banner info" data-banner="read-only">Read-only: this console cannot change anything.</p>`}
  </div>`;
}

function Frame({ current, children }) {
  const { info, recent, reachable } = useStore(relay);
  const urgent = recent.at(-1)?.findings.filter(finding => finding.urgent).length ?? 0;
  const logout = async () => {
    await post('logout', {}).catch(() => {});
    loadInfo().catch(() => relay.set({ needsLogin: true }));
  };
  const skip = event => {
    event.preventDefault();
    document.querySelector('h1')?.focus();
  };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="side">
      <a class="brand" href="#/"><img src="/assets/icon.svg" alt="" width="26" height="26" /><span>reveille</span></a>
      <nav aria-label="Views"><ul>${VIEWS.map(([key, path, label]) => html`<li key=${key}>
        <a href=${`#${path}`} aria-current=${current === path ? 'page' : undefined} aria-keyshortcuts=${`g ${key}`}>${label}
          ${path === '/' && urgent > 0 && html`<span class="badge bad" title="Findings that need an action now">${urgent}</span>`}<kbd aria-hidden="true">g ${key}</kbd></a></li>`)}</ul></nav>
      <div class="self">
        ${info && html`<p><i class=${`dot ${reachable ? 'good' : 'bad'}`}></i><b>${info.relay_id}</b> <span class="faint">${info.version}</span></p>
          ${info.login && info.user && html`<p class="faint">${info.user} <button type="button" class="quiet" onClick=${logout}>Log out</button></p>`}`}
        <div class="row"><button type="button" class="quiet icon" aria-label="Help" aria-keyshortcuts="?" title="Keys and words (?)" onClick=${() => page.set({ help: true })}>?</button></div>
      </div>
    </header>
    <main id="main"><${Banners} />${children}</main>`;
}

function view([name = '', first, second], query) {
  if (name === '') return ['Overview', '/', html`<${Overview} />`];
  if (name === 'queues' && second !== undefined) return [`${first}/${second}`, '/queues', html`<${QueueView} key=${`${first}/${second}`} account=${first} queue=${second} />`];
  if (name === 'queues') return ['Queues', '/queues', html`<${Queues} query=${query} />`];
  if (name === 'listeners') return ['Listeners', '/listeners', html`<${Listeners} query=${query} />`];
  if (name === 'flags' && first !== undefined) return [first, '/flags', html`<${FlagView} key=${first} name=${first} query=${query} />`];
  if (name === 'flags') return ['Flags', '/flags', html`<${Flags} query=${query} />`];
  if (name === 'relays') return ['Relays', '/relays', html`<${Relays} />`];
  return ['Not found', '', html`<h1 tabindex="-1">There is no such view</h1><p><a href="#/">Overview</a></p>`];
}

// When `g` was pressed.
let pressed = 0;
// The keys have changed the view: a screen reader reads its heading.
let focusHeading = false;

function App() {
  const { parts, query, code, help } = useStore(page);
  const { needsLogin } = useStore(relay);
  const login = needsLogin || parts[0] === 'login';
  const [title, current, body] = login ? ['Log in', '', html`<${Login} code=${code} />`] : view(parts, query);
  useEffect(() => { document.title = `${title} · reveille`; }, [title]);
  useLayoutEffect(() => {
    scrollTo(0, 0);
    if (focusHeading) document.querySelector('h1')?.focus({ preventScroll: true });
    focusHeading = false;
  }, [parts.join('/')]);
  return html`<${Frame} current=${current}>${body}<//>${help && html`<${Help} close=${() => page.set({ help: false })} />`}`;
}

addEventListener('keydown', event => {
  const target = event.target;
  const typing = target.closest('input, textarea, select');
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (typing) {
    if (event.key === 'Escape' && !target.closest('dialog')) target.blur();
    return;
  }
  if (document.querySelector('dialog[open]')) return;
  const second = Date.now() - pressed < SEQUENCE;
  pressed = 0;
  const there = second && VIEWS.find(([key]) => key === event.key);
  if (there) {
    focusHeading = true;
    location.hash = there[1];
  } else if (event.key === 'g') pressed = Date.now();
  else if (event.key === '?') page.set({ help: true });
  else if (event.key === '/') {
    const search = document.querySelector('[data-search]');
    search?.focus();
    search?.select();
  } else if (event.key === 'j' && !document.activeElement?.closest('tbody')) {
    document.querySelector('main a.row')?.focus();
  } else return;
  event.preventDefault();
});

render(html`<${App} />`, document.querySelector('#app'));
start();
loadInfo().catch(() => {});
