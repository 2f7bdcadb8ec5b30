// The list of queues; the relay searches, orders and pages.
import { get, usePoll, withQuery } from './api.js';
import { html } from './dom.js';
import { count, parse, rate, short } from './format.js';
import { Age, Badge, Empty, Heading, Notice, Num, Pages, QueueName, Search, Table, Unanswered, href, queueHref } from './parts.js';

export const nameOf = queue => `${queue.storage_account}/${queue.queue_name}`;
export const isUnserved = queue => queue.listeners === 0 && queue.backlog > 0;

// Notifications per second between two reads of one queue.
export function rateOf(before, now, seconds) {
  if (!before || !now || seconds <= 0 || now.notifications < before.notifications) return undefined;
  return (now.notifications - before.notifications) / seconds;
}

export const Depth = ({ queue, at }) => (queue.current_queue_depth === undefined
  ? html`<span class="faint">–</span>`
  : html`${short(queue.current_queue_depth)} <span class="faint">· <${Age} seconds=${parse(queue.depth_age)} at=${at} ago=${true} /></span>`);

export function Queues({ query }) {
  const { filter = '', order = '', page = '' } = query;
  const { data, before, at, beforeAt, problem } = usePoll(signal => get(withQuery('queues', {
    filter, order_by: order && `QUEUE_ORDER_${order}`, page_size: 50, page_token: page,
  }), signal), 1000, [filter, order, page]);
  const last = new Map((before?.queues ?? []).map(queue => [nameOf(queue), queue]));
  const rateCell = queue => {
    const value = rateOf(last.get(nameOf(queue)), queue, (at - beforeAt) / 1000);
    return value === undefined ? html`<span class="faint">–</span>` : html`<${Num} n=${value} text=${rate} />`;
  };
  return html`<${Heading} title="Queues">${data && html`<span class="faint">${count(data.queues.length)}${data.next_page_token ? ' on this page' : ''}</span>`}<//>
    <div class="tools"><${Search} label="Search queues" value=${filter} change=${text => { location.hash = href('/queues', { filter: text, order }); }} />
      ${order && html`<span class="faint">The first 50 by this order. <a href=${href('/queues', { filter })}>Order by name</a></span>`}</div>
    <${Notice} problem=${problem?.status ? problem : undefined} />
    <${Unanswered} ids=${data?.unanswered_relays} />
    ${!data && html`<p class="panel faint wait">Reading the queues…</p>`}
    ${data && (data.queues.length ? html`<${Table} key=${`${filter} ${order} ${page}`} label="Queues" rows=${data.queues} keyOf=${nameOf} order=${order}
      orderHref=${by => href('/queues', { filter, order: by })}
      hrefOf=${queue => queueHref(queue.storage_account, queue.queue_name)} kindOf=${queue => (isUnserved(queue) ? 'bad' : '')}
      columns=${[
        { head: 'Queue', order: '', sort: 'ascending', cell: queue => html`<${QueueName} of=${queue} />` },
        { head: 'Backlog', number: true, order: 'BACKLOG', sort: 'descending', cell: queue => html`<${Num} n=${queue.backlog} text=${short} />`, title: 'Messages that are not known to be handled' },
        { head: 'Rate/s', number: true, order: 'RATE', sort: 'descending', cell: rateCell, title: 'Notifications per second' },
        { head: 'Listeners', number: true, order: 'LISTENERS', sort: 'ascending', cell: queue => (isUnserved(queue) ? html`<${Badge} kind="bad">none<//>` : count(queue.listeners)) },
        { head: 'Busy', number: true, wide: true, cell: queue => html`<${Num} n=${queue.busy} />` },
        { head: 'Idle', number: true, order: 'IDLE', sort: 'descending', wide: true, cell: queue => html`<${Age} seconds=${parse(queue.idle_for)} at=${at} />`, title: 'Since the newest notification or timed wake-up' },
        { head: 'Depth', number: true, wide: true, cell: queue => html`<${Depth} queue=${queue} at=${at} />`, title: 'As a listener last read it' },
        { head: 'Timers', number: true, wide: true, cell: queue => html`<${Num} n=${queue.timers} />` }]} />`
      : filter
        ? html`<${Empty} title=${`No queue contains “${filter}”`}><a href="#/queues">Show all queues</a><//>`
        : html`<${Empty} title="The relay knows no queue yet" command="reveille notify acct/orders">A queue appears with its first notification or listener:<//>`)}
    <${Pages} path="/queues" query=${query} next=${data?.next_page_token} />`;
}
