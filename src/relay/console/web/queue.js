// One queue: why it is, or is not, served.
import { Problem, get, getAll, post, relay, usePoll } from './api.js';
import { html, useState, useStore } from './dom.js';
import { count, parse, plural, rate, short, size } from './format.js';
import { ListenerState } from './listeners.js';
import { Findings, Verdict } from './overview.js';
import { Age, Dialog, Empty, Field, Heading, Notice, Table, Tile, Unanswered } from './parts.js';
import { isUnserved, rateOf } from './queues.js';

const REASONS = {
  WAKE_REASON_NOTIFIED: 'for a notification',
  WAKE_REASON_CATCH_UP: 'to catch up',
  WAKE_REASON_SENTINEL: 'to check the queue',
  WAKE_REASON_TIMED: 'at a time that was set',
  WAKE_REASON_REASSIGNED: 'in place of another listener',
};
const SENTENCES = {
  DECISION_KIND_NOTIFIED: () => 'notified',
  DECISION_KIND_WOKEN: ({ reason }) => `woken ${REASONS[reason] ?? ''}`,
  DECISION_KIND_STOOD_ASIDE: () => 'not woken, because others of its group have the work',
  DECISION_KIND_REASSIGNED: () => 'its work went to another member',
  DECISION_KIND_CHECKED: () => 'asked to read the queue',
  DECISION_KIND_BUSY: () => 'reports that it works',
  DECISION_KIND_EMPTY: () => 'found no more messages',
  DECISION_KIND_JOINED: () => 'subscribed',
  DECISION_KIND_LEFT: () => 'left',
};

// A selector may be a pattern, such as `ord*`.
export const matches = (pattern, name) => (pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : pattern === name);

// The listeners whose selectors match the queue, also by a pattern.
async function readListeners(account, queue, signal) {
  const lists = await Promise.all([`${account}/${queue}`, '*'].map(filter => getAll('listeners', { filter, lost: true }, 'listeners', signal, 2)));
  const all = new Map(lists.flatMap(list => list.all).map(one => [one.subscription_id, one]));
  return [...all.values()].filter(one => one.selectors.some(selector =>
    matches(selector.storage_account, account) && matches(selector.queue_name, queue)));
}

function NotifyDialog({ name, close, done }) {
  const [messages, setMessages] = useState('1');
  const submit = async () => {
    const [account, queue] = name.split('/');
    const event = { storage_account: account, queue_name: queue, messages: Number(messages) };
    const { results: [answer] } = await post('notify', { events: [event] });
    if (answer.error) throw new Problem(409, 'The notification is refused', answer.error.message);
    done(`Counted as notification ${count(answer.sequence)}. ${plural(answer.listeners, 'listener')} ${answer.listeners === 1 ? 'subscribes' : 'subscribe'} to the queue.`);
    close();
  };
  return html`<${Dialog} title=${html`Notify <code>${name}</code>`} action="Notify" ready=${Number(messages) >= 0 && messages !== ''} close=${close} submit=${submit}>
    <p class="lead">The relay wakes the listeners of the queue. It stores no messages: they must be in the queue before.</p>
    <${Field} label="Messages"><input type="number" min="0" value=${messages} onInput=${event => setMessages(event.target.value)} required /><//>
  <//>`;
}

export function QueueView({ account, queue: queueName }) {
  const name = `${account}/${queueName}`;
  const { info } = useStore(relay);
  const [notifying, setNotifying] = useState(false);
  const [told, setTold] = useState('');
  const { data, before, at, beforeAt, problem, reload } = usePoll(
    signal => get(`queues/${encodeURIComponent(account)}/${encodeURIComponent(queueName)}`, signal), 1000, [name]);
  const listeners = usePoll(signal => readListeners(account, queueName, signal), 2000, [name]);
  const queue = data?.queue;
  const [verdict, ...others] = data?.findings ?? [];
  const perSecond = rateOf(before?.queue, queue, (at - beforeAt) / 1000);
  const kind = verdict?.urgent ? 'bad' : verdict?.kind === 'FINDING_KIND_UNSPECIFIED' ? 'good' : 'warn';
  const readOnly = info?.mode === 'read';
  return html`<${Heading} title=${html`<a class="up" href="#/queues">Queues</a> <span class="name">${name}</span>`}>
      <button type="button" disabled=${readOnly} title=${readOnly ? 'The console is read-only.' : undefined} onClick=${() => setNotifying(true)}>Notify…</button><//>
    <${Notice} problem=${problem?.status ? problem : undefined} />
    <${Unanswered} ids=${data?.unanswered_relays} />
    ${told && html`<p class="notice good" role="status">${told}</p>`}
    ${!data && !problem && html`<p class="panel faint wait">Asking the relay…</p>`}
    ${verdict && html`<section aria-label="Verdict"><${Verdict} kind=${queue || verdict.urgent ? kind : 'warn'} text=${verdict.text} />
      ${others.length > 0 && html`<${Findings} findings=${others} />`}</section>`}
    ${data && !queue && html`<${Empty} title="A queue begins with its first listener or notification" command=${`reveille subscribe ${name} -- ./worker\nreveille notify ${name}`}>In two terminals:<//>`}
    ${queue && html`<dl class="tiles six">
      <${Tile} label="Backlog" value=${short(queue.backlog)} kind=${isUnserved(queue) ? 'bad' : ''} note=${queue.in_doubt ? 'no report yet: there may be older messages' : 'not known to be handled'} />
      <${Tile} label="Depth" value=${queue.current_queue_depth === undefined ? '–' : short(queue.current_queue_depth)}
        note=${queue.current_queue_depth === undefined ? 'no listener has read it' : html`read <${Age} seconds=${parse(queue.depth_age)} at=${at} ago=${true} />`} />
      <${Tile} label="Listeners" value=${count(queue.listeners)} kind=${isUnserved(queue) ? 'bad' : ''} note=${`${count(queue.busy)} busy`} />
      <${Tile} label="Notifications" value=${html`${perSecond === undefined ? '–' : rate(perSecond)}<small>/s</small>`} note=${`${short(queue.notifications)} in total`} />
      <${Tile} label="Idle" value=${html`<${Age} seconds=${parse(queue.idle_for)} at=${at} />`} note=${`sequence ${count(queue.sequence)}`} />
      <${Tile} label="Messages" value=${short(queue.messages)} note=${`payload ${size(queue.payload_size)}; ${plural(queue.timers, 'timer')}`} />
    </dl>`}
    ${queue && html`<div class="part"><header class="sub"><h2 id="listeners">Listeners</h2></header>
      <${Notice} problem=${listeners.problem?.status ? listeners.problem : undefined} />
      ${listeners.data?.length === 0 && html`<${Empty} title="No listener subscribes to this queue" command=${`reveille subscribe ${name} -- ./worker`}>A listener starts like this:<//>`}
      ${(listeners.data?.length ?? 0) > 0 && html`<${Table} label="Listeners" rows=${listeners.data} keyOf=${one => one.subscription_id}
        hrefOf=${one => `#/listeners?filter=${encodeURIComponent(one.listener_id)}`}
        columns=${[
          { head: 'Listener', cell: one => one.listener_id },
          { head: 'State', cell: one => html`<${ListenerState} listener=${one} at=${listeners.at} />` },
          { head: 'Group', wide: true, cell: one => one.group || '–' },
          { head: 'Tasks', number: true, cell: one => count(one.active_dequeue_tasks) },
          { head: 'Capacity', number: true, wide: true, cell: one => count(one.capacity) },
          { head: 'Connected', number: true, wide: true, cell: one => html`<${Age} seconds=${parse(one.connected_for)} at=${listeners.at} />` }]} />`}</div>
      <div class="part"><header class="sub"><h2 id="decisions">Decisions</h2>
        <span class="faint">${data.noted_for && html`noted for <${Age} seconds=${parse(data.noted_for)} at=${at} />, newest first`}</span></header>
      ${data.decisions.length === 0
        ? html`<p class="panel faint wait">The relay notes its decisions about this queue from now on.</p>`
        : html`<div class="panel"><ol class="decisions">
          ${[...data.decisions].reverse().map((one, i) => html`<li key=${i} class=${one.kind.slice(14).toLowerCase()}>
            <span class="when"><${Age} seconds=${parse(one.ago)} at=${at} /></span><i></i>
            <span>${one.listener_id && html`<b>${one.listener_id}</b> `}${SENTENCES[one.kind]?.(one) ?? one.kind}${one.group && one.listener_id && html` <span class="faint">group ${one.group}</span>`}${info?.cluster && html` <span class="faint">at ${one.relay_id}</span>`}</span>
            <span class="faint number">#${one.sequence}</span></li>`)}</ol></div>`}</div>`}
    ${notifying && html`<${NotifyDialog} name=${name} close=${() => setNotifying(false)} done=${text => { setTold(text); reload(); }} />`}`;
}
