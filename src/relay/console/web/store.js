// The relay's store: its leases and sweep jobs.
import { get, usePoll } from './api.js';
import { html } from './dom.js';
import { moment, parse, short, span } from './format.js';
import { Age, Badge, Empty, Heading, Notice, Num, Table } from './parts.js';

// Each read is a request to the store for each lease and job.
const READ_EVERY = 30_000;

function stateOf({ held, duration, written_at: written, problem }, at) {
  if (problem) return ['no lease', 'bad'];
  if (!held) return ['free', 'off'];
  const silent = (at - Date.parse(written ?? '')) / 1000;
  return silent > (parse(duration) ?? 0) ? ['not renewed', 'warn'] : ['held', 'good'];
}

const Since = ({ at, now }) => html`<${Age} seconds=${at && Math.max(0, (now - Date.parse(at)) / 1000)} at=${now} ago=${true} />`;

export function StoreView() {
  const { data, at, problem, reload } = usePoll(signal => get('store', signal), READ_EVERY, []);
  const count = read => ({ round }) => html`<${Num} n=${round ? read(round) : 0} text=${short} />`;
  return html`<${Heading} title="Store"><button type="button" onClick=${reload}>Read again</button><//>
    <${Notice} problem=${problem?.status ? problem : undefined} />
    ${!data && !problem && html`<p class="panel faint wait">Reading the store…</p>`}
    ${data && html`<p class="faint"><code>${data.store}</code> was read <${Age} seconds=${0} at=${at} ago=${true} />.</p>
      <h2>Leases</h2>
      ${data.leases.length ? html`<${Table} label="Leases" rows=${data.leases} keyOf=${one => one.name}
        kindOf=${one => (one.problem ? 'bad' : '')}
        columns=${[
          { head: 'Lease', cell: one => one.name },
          { head: 'State', cell: one => {
            const [text, kind] = stateOf(one, at);
            return html`<${Badge} kind=${kind}>${text}<//>`;
          } },
          { head: 'Holder', cell: one => html`<span class="clip" title=${one.problem || one.holder}>${one.problem || one.holder}</span>`, title: 'The present or last one' },
          { head: 'Written', number: true, cell: one => html`<${Since} at=${one.written_at} now=${at} />`, title: 'Taken, renewed or released, by the clock of the store' },
          { head: 'Duration', number: true, wide: true, cell: one => (one.duration ? span(parse(one.duration) ?? 0) : '–'), title: 'How long a write excludes others' },
          { head: 'Token', number: true, wide: true, cell: one => (one.problem ? '–' : html`<code>${one.token}</code>`) }]} />`
        : html`<${Empty} title="The store has no lease" command="reveille lease run billing -- ./bill">One process at a time holds a lease:<//>`}
      ${data.has_more_leases && html`<p class="faint">These are the first ${data.leases.length} by name. <code>reveille lease show NAME</code> shows another one.</p>`}
      <h2>Sweep jobs</h2>
      ${data.sweeps.length ? html`<${Table} label="Sweep jobs" rows=${data.sweeps} keyOf=${one => one.name}
        kindOf=${one => (one.problem || one.round?.failed ? 'bad' : '')}
        columns=${[
          { head: 'Job', cell: one => one.name },
          { head: 'State', cell: one => (one.problem
            ? html`<${Badge} kind="bad">unreadable<//> <span class="clip" title=${one.problem}>${one.problem}</span>`
            : html`<${Badge} kind=${one.running ? 'awake' : 'asleep'}>${one.running ? `${one.containers_done} of ${one.containers} containers` : 'waits'}<//>`) },
          { head: 'Begun', number: true, cell: one => (one.started_at ? moment(one.started_at) : '–'), title: 'The running or last round' },
          { head: 'Removed', number: true, cell: count(round => round.deleted + round.moved), title: 'Blobs of the round that were deleted or moved' },
          { head: 'Failed', number: true, cell: count(round => round.failed), title: 'Blobs of the round; the next one tries them again' },
          { head: 'Seen', number: true, wide: true, cell: count(round => round.seen) },
          { head: 'Left', number: true, wide: true, cell: count(round => round.left), title: 'For a reason that an operator must remove' },
          { head: 'Rounds', number: true, wide: true, cell: one => html`<${Num} n=${one.rounds} text=${short} />` }]} />`
        : html`<${Empty} title="The store has no sweep job" command="reveille sweep job.json">A sweep deletes or moves expired blobs:<//>`}
      ${data.has_more_sweeps && html`<p class="faint">These are the first ${data.sweeps.length} by name.</p>`}`}`;
}
