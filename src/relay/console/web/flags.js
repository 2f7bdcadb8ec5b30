// Flags: the list, one flag with the progress of its release, and the dialogs that set and clear it.
import { get, getAll, post, relay, useEvents, usePoll, withQuery } from './api.js';
import { html, useClock, useEffect, useRef, useState, useStore } from './dom.js';
import { count, moment, parse, parseSpan, plural, rate, span } from './format.js';
import { Age, Badge, Dialog, Empty, Field, Heading, Notice, Pages, Search, Table, flagHref, href } from './parts.js';

const NAME = /^(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}$/;
// Ids of `reveille flag watch`: a person who watches a flag is not a missing node.
const PERSON = /^flag-watch/;
const STILL_WAITING = 5_000;
const NAMES_SHOWN = 60;
// Watchers that are drawn as dots.
const DOTS = 1000;
const MANY = 8;

const api = name => `flags/${encodeURIComponent(name)}`;

// A flag's state and acknowledgements, live.
function useFlag(name) {
  const { life } = useStore(relay);
  const [state, setState] = useState({});
  useEffect(() => setState({}), [name]);
  useEvents(name && `${api(name)}/stream`, (event, data) => {
    if (event === 'flag') setState(old => ({ ...old, flag: data, problem: undefined }));
    if (event === 'acks') setState(old => ({ ...old, acks: data, problem: undefined }));
    if (event === 'down') setState(old => ({ ...old, problem: data.status ? { ...data, message: data.detail } : undefined }));
  }, [life]);
  return state;
}

const State = ({ flag }) => html`<${Badge} kind=${flag?.set ? 'awake' : 'asleep'}>${flag?.set ? 'set' : 'not set'}<//>`;

const Confirm = ({ name, typed, type }) => html`<${Field} label=${html`Type <code>${name}</code> to confirm`}>
  <input value=${typed} onInput=${event => type(event.target.value)} autocomplete="off" autocapitalize="off" spellcheck=${false} required />
<//>`;

// Sets a flag. Without `name` it is one that the user names.
function UnleashDialog({ name, watchers, close }) {
  const [typed, setTyped] = useState('');
  const [named, setNamed] = useState(undefined);
  const [reason, setReason] = useState('');
  const [ttl, setTtl] = useState('');
  const [expect, setExpect] = useState('');
  useEffect(() => {
    const timer = setTimeout(() => setNamed(!name && NAME.test(typed) ? typed : undefined), 300);
    return () => clearTimeout(timer);
  }, [typed]);
  const other = useFlag(named);
  const counted = usePoll(signal => (named ? getAll(`${api(named)}/watchers`, {}, 'watchers', signal, 10) : Promise.resolve(undefined)), 3000, [named]);
  const watching = name ? watchers : counted.data?.all.length;
  const input = set => event => set(event.target.value);
  const seconds = ttl ? parseSpan(ttl) : undefined;
  const ready = (name ? typed === name : NAME.test(typed)) && reason.trim() !== '' && (!ttl || seconds !== undefined);
  const submit = async () => {
    const flag = name ?? typed;
    const answer = await post(`${api(flag)}/unleash`, { reason: reason.trim(), ...(seconds === undefined ? {} : { ttl: `${seconds}s` }) });
    const expected = expect || String(answer.watchers || watching || '');
    close();
    location.hash = href(`/flags/${encodeURIComponent(flag)}`, { expect: expected });
  };
  return html`<${Dialog} title=${name ? html`Unleash <code>${name}</code>` : 'New flag'} action="Unleash" ready=${ready} close=${close} submit=${submit}>
    ${other.flag?.set && html`<p class="notice warn">This flag is already set. It keeps its time, and gets the new reason.</p>`}
    ${name || watching !== undefined
      ? html`<p class="lead"><strong>${watching === undefined ? '…' : plural(watching, 'listener')}</strong> ${watching === 1 ? 'watches' : 'watch'} this flag now. All of them are released at once, and each one that starts later.
        A later leash does not bring back what was released.</p>`
      : html`<p class="lead">A flag releases all listeners that wait for its name. It stays set until it is cleared or expires.</p>`}
    ${name
      ? html`<${Confirm} name=${name} typed=${typed} type=${setTyped} />`
      : html`<${Field} label="Name" hint="Letters, digits, dot, hyphen and underscore">
        <input value=${typed} onInput=${input(setTyped)} autocomplete="off" autocapitalize="off" spellcheck=${false} required maxlength="128" /><//>`}
    <${Field} label="Reason" hint="Shown to all readers of the flag">
      <input value=${reason} onInput=${input(setReason)} autocomplete="off" required maxlength="1024" /><//>
    <div class="two">
      <${Field} label="Expires after" hint=${ttl && seconds === undefined ? 'A number with s, m, h or d' : 'Optional, such as 30m, 2h, 7d'}>
        <input value=${ttl} onInput=${input(setTtl)} autocomplete="off" placeholder="never" aria-invalid=${Boolean(ttl && seconds === undefined)} /><//>
      <${Field} label="Expect" hint="Acknowledgements to wait for">
        <input type="number" min="1" value=${expect} onInput=${input(setExpect)} placeholder=${watching === undefined ? '' : String(watching)} /><//>
    </div>
  <//>`;
}

function LeashDialog({ name, watchers, close }) {
  const [typed, setTyped] = useState('');
  const [reason, setReason] = useState('');
  const submit = async () => {
    await post(`${api(name)}/leash`, { reason: reason.trim() });
    close();
    location.hash = flagHref(name);
  };
  return html`<${Dialog} title=${html`Leash <code>${name}</code>`} action="Leash" danger=${true} ready=${typed === name && reason.trim() !== ''} close=${close} submit=${submit}>
    <p class="lead"><strong>${watchers === undefined ? '…' : plural(watchers, 'listener')}</strong> ${watchers === 1 ? 'watches' : 'watch'} this flag now. Listeners that start from now on wait.
      What was released keeps running.</p>
    <${Confirm} name=${name} typed=${typed} type=${setTyped} />
    <${Field} label="Reason" hint="For the relay's log">
      <input value=${reason} onInput=${event => setReason(event.target.value)} autocomplete="off" required maxlength="1024" /><//>
  <//>`;
}

// The progress of a release.
function Progress({ acks, expected, watchers, at }) {
  const now = useClock();
  const begun = useRef({ generation: acks.generation, at: Date.now(), acknowledged: acks.acknowledged, doneAt: 0 });
  const samples = useRef([]);
  if (begun.current.generation !== acks.generation) {
    begun.current = { generation: acks.generation, at: Date.now(), acknowledged: acks.acknowledged, doneAt: 0 };
    samples.current = [];
  }
  samples.current = [...samples.current.filter(one => one.at > now - 3000), { at: Date.now(), n: acks.acknowledged }];
  const done = acks.acknowledged >= expected;
  if (done && !begun.current.doneAt) begun.current.doneAt = Date.now();
  const first = samples.current[0];
  const perSecond = (acks.acknowledged - first.n) / Math.max(1, (Date.now() - first.at) / 1000);
  const share = Math.min(1, acks.acknowledged / Math.max(1, expected));
  const missing = watchers?.filter(one => !one.acknowledged && !PERSON.test(one.listener_id));
  const late = !done && now - begun.current.at > STILL_WAITING;
  const left = expected - acks.acknowledged;
  return html`<section class=${`panel release ${done ? 'done' : ''}`} aria-labelledby="release">
    <header><h2 id="release">${done ? 'Released' : 'Release in progress'}</h2>
      <p class="big"><span data-acknowledged>${count(acks.acknowledged)}</span><small> of ${count(expected)} acknowledged</small></p></header>
    <div class="bar progress" role="progressbar" aria-label="Acknowledgements" aria-valuemin="0" aria-valuemax=${expected} aria-valuenow=${Math.min(acks.acknowledged, expected)}>
      <i style=${{ transform: `scaleX(${share})` }}></i></div>
    ${watchers && watchers.length >= MANY && html`<${Fleet} watchers=${watchers} />`}
    <p class="note" role="status">${done
      ? html`All ${count(expected)} have acknowledged${begun.current.acknowledged < expected ? `, within ${span((begun.current.doneAt - begun.current.at) / 1000)}` : ''}.`
      : late
        ? html`<strong>Still waiting</strong> for ${plural(left, 'acknowledgement')} after ${span((now - begun.current.at) / 1000)}. Leaving this page does not stop the release.`
        : `${rate(Math.max(0, perSecond))} per second. ${plural(left, 'listener')} left.`}</p>
    ${!done && missing !== undefined && missing.length > 0 && html`<h3>${plural(missing.length, 'watcher')} without acknowledgement</h3>
      <ul class="names" data-missing>${missing.slice(0, NAMES_SHOWN).map(one => html`<li key=${one.listener_id}><code>${one.listener_id}</code>
        <span class="faint">waits for <${Age} seconds=${parse(one.since)} at=${at} /></span></li>`)}
        ${missing.length > NAMES_SHOWN && html`<li class="faint">and ${count(missing.length - NAMES_SHOWN)} more</li>`}</ul>`}
    ${late && missing?.length === 0 && html`<p class="note">The relay knows no watcher that has not acknowledged: ${plural(left, 'expected listener')} did not watch this flag.</p>`}
  </section>`;
}

// Watchers that wait come first.
const rank = one => (one.acknowledged ? 1 : 0);

// A dot for each watcher.
function Fleet({ watchers }) {
  const states = watchers.slice(0, DOTS).map(one => (one.acknowledged ? 'awake' : 'asleep'));
  const of = state => states.filter(one => one === state).length;
  const text = `${of('awake')} acknowledged, ${of('asleep')} wait`;
  return html`<div class="fleet" role="img" aria-label=${text}>${states.map((state, i) => html`<i key=${i} class=${state} title=${watchers[i].listener_id}></i>`)}</div>`;
}

export function FlagView({ name, query }) {
  const { info } = useStore(relay);
  const { flag, acks, problem } = useFlag(name);
  const [dialog, setDialog] = useState('');
  const expected = Number(query.expect) || 0;
  const progress = Boolean(flag?.set && acks && expected > 0);
  const waiting = Boolean(flag?.set && acks && expected > acks.acknowledged);
  const [kept, setKept] = useState(undefined);
  const large = (kept?.length ?? 0) > DOTS;
  const watched = usePoll(signal => getAll(`${api(name)}/watchers`, {}, 'watchers', signal, 10), large ? 5000 : waiting ? 1000 : 3000, [name, waiting, large]);
  useEffect(() => { if (watched.data) setKept([...watched.data.all].sort((a, b) => rank(a) - rank(b))); }, [watched.data]);
  const close = () => setDialog('');
  const act = info?.mode === 'read' ? 'The console is read-only.' : undefined;
  const facts = flag?.set ? [['Reason', flag.reason || '–'], ['Set by', flag.set_by || '–'], ['Since', moment(flag.set_at)], ['Expires', flag.expires_at ? moment(flag.expires_at) : 'never']] : [];
  // The relay counts acknowledgements of a set only.
  const watching = acks?.watchers ?? kept?.length;
  return html`<${Heading} title=${html`<a class="up" href="#/flags">Flags</a> <span class="name">${name}</span>`}>
      <${State} flag=${flag} />
      <button type="button" class=${flag?.set ? '' : 'primary'} disabled=${Boolean(act) || !flag} title=${act} onClick=${() => setDialog('unleash')}>${flag?.set ? 'Unleash again…' : 'Unleash…'}</button>
      <button type="button" disabled=${Boolean(act) || !flag?.set} title=${act} onClick=${() => setDialog('leash')}>Leash…</button>
    <//>
    <${Notice} problem=${problem} />
    <${Notice} problem=${watched.problem?.status ? watched.problem : undefined} />
    ${progress && html`<${Progress} acks=${acks} expected=${expected} watchers=${kept} at=${watched.at} />`}
    ${flag && !flag.set && html`<p class="verdict asleep plain"><span class="sentence">${watching ? `${plural(watching, 'listener')} ${watching === 1 ? 'sleeps' : 'sleep'} until this flag is set.` : 'The flag is not set, and no listener watches it.'}</span></p>`}
    ${flag && !flag.set && watching === 0 && html`<${Empty} title="Park a node on this flag" command=${`reveille wait ${name} -- ./worker`}>It starts the worker when the flag is set.<//>`}
    ${facts.length > 0 && html`<dl class="facts panel">${facts.map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}</dl>`}
    ${kept && kept.length > 0 && html`<div class="part"><header class="sub"><h2 id="watchers">Watchers</h2>
      <span class="faint">${count(kept.length)} connected${watched.data?.more ? ', and more' : ''}</span></header>
      ${!progress && kept.length >= MANY && html`<${Fleet} watchers=${kept} />`}
      <${Table} label="Watchers" rows=${kept.slice(0, 500)} keyOf=${one => one.listener_id} columns=${[
        { head: 'Listener', cell: one => one.listener_id },
        { head: 'State', cell: one => html`<${Badge} kind=${one.acknowledged ? 'awake' : 'asleep'}>${one.acknowledged ? 'acknowledged' : 'waits'}<//>` },
        { head: 'Stream', number: true, cell: one => html`<${Age} seconds=${parse(one.since)} at=${watched.at} />` }]} /></div>`}
    ${dialog === 'unleash' && html`<${UnleashDialog} name=${name} watchers=${watching} close=${close} />`}
    ${dialog === 'leash' && html`<${LeashDialog} name=${name} watchers=${watching} close=${close} />`}`;
}

// The set flags, and those that are not set and are watched.
async function readFlags(query, signal) {
  const prefix = query.filter ?? '';
  const [set, watched] = await Promise.all([
    get(withQuery('flags', { prefix, page_size: 200, page_token: query.page }), signal),
    getAll('watchers', {}, 'watchers', signal, 10).catch(() => undefined),
  ]);
  const watchers = new Map();
  for (const { flag } of watched?.all ?? []) watchers.set(flag, (watchers.get(flag) ?? 0) + 1);
  const rows = set.flags.map(flag => ({ ...flag, watchers: watched && (watchers.get(flag.name) ?? 0) }));
  const names = new Set(rows.map(row => row.name));
  if (!query.page && !set.next_page_token) {
    for (const [name, n] of watchers) {
      if (!names.has(name) && name.startsWith(prefix)) rows.push({ name, set: false, generation: 0, set_by: '', reason: '', watchers: n });
    }
  }
  rows.sort((a, b) => (a.name < b.name ? -1 : 1));
  return { rows, next: set.next_page_token };
}

export function Flags({ query }) {
  const { info } = useStore(relay);
  const [dialog, setDialog] = useState(false);
  const { data, problem } = usePoll(signal => readFlags(query, signal), 2000, [query.filter, query.page]);
  return html`<${Heading} title="Flags">
      <button type="button" class="primary" disabled=${info?.mode === 'read'} onClick=${() => setDialog(true)}>New flag…</button>
    <//>
    <div class="tools"><${Search} label="Search by the first letters" value=${query.filter ?? ''}
      change=${filter => { location.hash = href('/flags', { filter }); }} /></div>
    <${Notice} problem=${problem?.status ? problem : undefined} />
    ${data && (data.rows.length
      ? html`<${Table} key=${query.filter} label="Flags" rows=${data.rows} keyOf=${flag => flag.name} hrefOf=${flag => flagHref(flag.name)} columns=${[
        { head: 'Flag', cell: flag => flag.name },
        { head: 'State', cell: flag => html`<${State} flag=${flag} />` },
        { head: 'Watchers', number: true, cell: flag => (flag.watchers === undefined ? '–' : count(flag.watchers)) },
        { head: 'Reason', wide: true, cell: flag => html`<span class="clip" title=${flag.reason}>${flag.reason}</span>` },
        { head: 'Set by', wide: true, cell: flag => flag.set_by },
        { head: 'Since', number: true, wide: true, cell: flag => moment(flag.set_at) },
        { head: 'Expires', number: true, wide: true, cell: flag => (flag.set ? moment(flag.expires_at) || 'never' : '') }]} />`
      : query.filter
        ? html`<${Empty} title="No flag begins with these letters">Flags are listed while they are set or watched. <a href=${flagHref(query.filter)}>Open ${query.filter}</a><//>`
        : html`<${Empty} title="No flag is set" command=${'reveille wait go-live -- ./worker\nreveille unleash go-live --reason "ready"'}>Park a node on a flag in one terminal, and release it in another, or here.<//>`)}
    <${Pages} path="/flags" query=${query} next=${data?.next} />
    ${dialog && html`<${UnleashDialog} close=${() => setDialog(false)} />`}`;
}
