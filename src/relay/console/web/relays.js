// The relays of the cluster, and the orderly end of this one.
import { get, post, relay, usePoll } from './api.js';
import { html, useState, useStore } from './dom.js';
import { count, parse, short, span } from './format.js';
import { Age, Badge, Dialog, Empty, Field, Heading, Notice, Table } from './parts.js';

const STATES = {
  RELAY_STATE_SELF: ['answers', 'good'],
  RELAY_STATE_PRESENT: ['present', 'good'],
  RELAY_STATE_MISSING: ['missing', 'bad'],
  RELAY_STATE_LEFT: ['left', 'off'],
};

function DrainDialog({ id, close }) {
  const [typed, setTyped] = useState('');
  const submit = async () => {
    await post('drain', {});
    close();
  };
  return html`<${Dialog} title=${html`End <code>${id}</code>`} action="Drain" danger=${true} ready=${typed === id} close=${close} submit=${submit}>
    <p class="lead">The relay refuses new streams, ends the open ones in order, and then its process ends. A supervisor may start it again.</p>
    <${Field} label=${html`Type <code>${id}</code> to confirm`}>
      <input value=${typed} onInput=${event => setTyped(event.target.value)} autocomplete="off" autocapitalize="off" spellcheck=${false} required /><//>
  <//>`;
}

export function Relays() {
  const { recent, info } = useStore(relay);
  const [draining, setDraining] = useState(false);
  const { data, at, problem } = usePoll(signal => get('relays', signal), 2000, []);
  const stats = new Map((recent.at(-1)?.relays ?? []).map(one => [one.epoch, one]));
  const readOnly = info?.mode === 'read';
  return html`<${Heading} title="Relays">
      <button type="button" disabled=${readOnly || !info} title=${readOnly ? 'The console is read-only.' : undefined} onClick=${() => setDraining(true)}>Drain ${info?.relay_id}…</button><//>
    <${Notice} problem=${problem?.status ? problem : undefined} />
    ${data && html`<${Table} label="Relays" rows=${data.relays} keyOf=${one => one.epoch}
      kindOf=${one => (one.state === 'RELAY_STATE_MISSING' ? 'bad' : '')}
      columns=${[
        { head: 'Relay', cell: one => one.relay_id },
        { head: 'State', cell: one => {
          const [text, kind] = STATES[one.state] ?? [one.state, 'off'];
          return html`<span class="state"><${Badge} kind=${kind}>${text}<//>${one.degraded && html` <${Badge} kind="warn">listeners poll<//>`}${stats.get(one.epoch)?.draining && html` <${Badge} kind="warn">draining<//>`}</span>`;
        } },
        { head: 'Streams', number: true, cell: one => short(one.streams) },
        { head: 'Queues', number: true, cell: one => short(one.queues) },
        { head: 'Last message', number: true, wide: true, cell: one => (one.state === 'RELAY_STATE_SELF' ? html`<span class="faint">–</span>` : html`<${Age} seconds=${parse(one.silent_for)} at=${at} ago=${true} />`) },
        { head: 'Resyncs', number: true, wide: true, cell: one => count(one.resyncs), title: 'How often its missed messages made listeners check queues' },
        { head: 'Up for', number: true, wide: true, cell: one => (stats.has(one.epoch) ? span(parse(stats.get(one.epoch)?.uptime) ?? 0) : html`<span class="faint">–</span>`) },
        { head: 'Version', wide: true, cell: one => one.version },
        { head: 'Epoch', wide: true, cell: one => html`<code title=${one.epoch}>${one.epoch.slice(0, 8)}</code>`, title: 'The run of the relay' }]} />`}
    ${data?.relays.length === 1 && html`<${Empty} title="This relay has no cluster" command="reveille serve --cluster nats://broker:4222 --cluster-name prod ...">It needs none. Several relays share their work like this:<//>`}
    ${draining && info && html`<${DrainDialog} id=${info.relay_id} close=${() => setDraining(false)} />`}`;
}
