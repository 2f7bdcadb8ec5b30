// The listeners and their states.
import { get, usePoll, withQuery } from './api.js';
import { html } from './dom.js';
import { count, parse, plural } from './format.js';
import { Age, Badge, Empty, Heading, Notice, Num, Pages, Search, Table, Unanswered, href } from './parts.js';

function stateOf(one) {
  if (one.lost_for !== undefined) return ['gone', 'bad', one.lost_for];
  if (one.silent_for !== undefined) return ['silent', 'bad', one.silent_for];
  if (one.polling) return ['polling', 'polling', undefined];
  if (one.busy > 0 || one.busy_for !== undefined || one.active_dequeue_tasks > 0) return ['awake', 'awake', one.busy_for];
  return ['asleep', 'asleep', undefined];
}

export function ListenerState({ listener, at }) {
  const [state, kind, age] = stateOf(listener);
  return html`<span class="state"><${Badge} kind=${kind}>${state}<//>${age !== undefined && html` <span class="faint"><${Age} seconds=${parse(age)} at=${at} /></span>`}</span>`;
}

function listensTo({ selectors, selectors_omitted: omitted }) {
  const shown = selectors.slice(0, 2).map(one => `${one.storage_account}/${one.queue_name}`).join(', ');
  const more = selectors.length - 2;
  return `${shown}${more > 0 ? ` and ${more} more` : ''}${omitted ? ', …' : ''}`;
}

export function Listeners({ query }) {
  const { filter = '', lost = '', page = '' } = query;
  const { data, at, problem } = usePoll(signal => get(withQuery('listeners', {
    filter, lost: lost !== 'no', page_size: 100, page_token: page,
  }), signal), 2000, [filter, lost, page]);
  return html`<${Heading} title="Listeners">${data && html`<span class="faint">${count(data.listeners.length)}${data.next_page_token ? ' on this page' : ''}</span>`}<//>
    <div class="tools"><${Search} label="Search by id, group or queue" value=${filter} change=${text => { location.hash = href('/listeners', { filter: text, lost }); }} />
      <label class="check"><input type="checkbox" checked=${lost !== 'no'} onChange=${event => { location.hash = href('/listeners', { filter, lost: event.target.checked ? '' : 'no' }); }} />
        Include lost listeners of the last hour</label></div>
    <${Notice} problem=${problem?.status ? problem : undefined} />
    <${Unanswered} ids=${data?.unanswered_relays} />
    ${!data && html`<p class="panel faint wait">Reading the listeners…</p>`}
    ${data && (data.listeners.length ? html`<${Table} key=${`${filter} ${lost} ${page}`} label="Listeners" rows=${data.listeners} keyOf=${one => one.subscription_id}
      kindOf=${one => (one.lost_for !== undefined || one.silent_for !== undefined ? 'bad' : '')}
      columns=${[
        { head: 'Listener', cell: one => html`${one.listener_id}${one.agent && html` <${Badge} kind="info">agent<//>`}` },
        { head: 'State', cell: one => html`<${ListenerState} listener=${one} at=${at} />` },
        { head: 'Listens to', cell: one => html`<span class="clip" title=${one.selectors.map(of => `${of.storage_account}/${of.queue_name}`).join('\n')}>${listensTo(one)}</span>` },
        { head: 'Group', wide: true, cell: one => one.group || html`<span class="faint">–</span>` },
        { head: 'Busy', number: true, wide: true, cell: one => html`<${Num} n=${one.busy} /> <span class="faint">of ${plural(one.queues, 'queue')}</span>` },
        { head: 'Owed', number: true, wide: true, cell: one => html`<${Num} n=${one.owed} />`, title: 'Queues with a wake-up that its stream has not sent yet' },
        { head: 'Tasks', number: true, wide: true, cell: one => html`<${Num} n=${one.active_dequeue_tasks} /> <span class="faint">max ${count(one.total_dequeue_tasks)}</span>`, title: 'Dequeue tasks, or the workers of an agent, by its newest report' },
        { head: 'Connected', number: true, wide: true, cell: one => html`<${Age} seconds=${parse(one.connected_for)} at=${one.lost_for === undefined ? at : Date.now()} />` }]} />`
      : filter
        ? html`<${Empty} title=${`No listener matches “${filter}”`}><a href="#/listeners">Show all listeners</a><//>`
        : html`<${Empty} title="No listener is connected" command="reveille subscribe acct/orders -- ./worker">A listener sleeps until its queue is notified:<//>`)}
    <${Pages} path="/listeners" query=${query} next=${data?.next_page_token} />`;
}
