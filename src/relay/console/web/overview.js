// What is wrong now, and the relay's figures.
import { get, relay, usePoll, withQuery } from './api.js';
import { html, useStore } from './dom.js';
import { count, latency, money, parse, plural, rate, short, span } from './format.js';
import { Empty, Heading, QueueName, Table, Tile, Unanswered, queueHref } from './parts.js';
import { Plot } from './plots.js';
import { isUnserved, nameOf, rateOf } from './queues.js';
import { latencies, quantile, rates } from './stats.js';

// Latencies are those of this many responses.
const WINDOW = 10;

export function findingHref({ queue, listener_id: listener, relay_id: relayId }) {
  if (queue) return queueHref(...queue.split('/'));
  if (listener) return `#/listeners?filter=${encodeURIComponent(listener)}`;
  return relayId ? '#/relays' : '';
}

export const Findings = ({ findings }) => html`<ul class="findings">
  ${findings.map(finding => html`<li key=${finding.kind + finding.text} class=${finding.urgent ? 'bad' : 'warn'}>
    ${findingHref(finding) ? html`<a href=${findingHref(finding)}>${finding.text}</a>` : finding.text}
    ${finding.urgent && html`<span class="badge bad">act now</span>`}
  </li>`)}
</ul>`;

export const Verdict = ({ kind, text, note, href }) => html`<div class=${`verdict ${kind}`}>
  <svg viewBox="0 0 24 24" aria-hidden="true">${kind === 'good'
    ? html`<path d="M5 12.5l4.5 4.5L19 7.5" />`
    : html`<path d="M12 5v9M12 18.5v.5" />`}</svg>
  <div><p class="sentence" role="status">${href ? html`<a href=${href}>${text}</a>` : text}</p>
    ${note && html`<p class="note">${note}</p>`}</div>
</div>`;

function Now({ stats }) {
  const { levels, findings } = stats;
  const [worst, ...others] = findings;
  const states = `${count(levels.asleep)} asleep, ${count(levels.awake)} awake, ${count(levels.polling)} polling`;
  const note = `${plural(levels.subscriptions, 'listener')} (${states}) and ${plural(levels.queues, 'queue')}.`;
  return html`<section aria-label="Verdict">
    <${Verdict} kind=${worst ? (worst.urgent ? 'bad' : 'warn') : 'good'} text=${worst?.text ?? 'Nothing is wrong.'}
      href=${worst && findingHref(worst)} note=${note} />
    ${others.length > 0 && html`<${Findings} findings=${others} />`}
  </section>`;
}

// The shares of asleep, awake and polling.
function Shares({ levels }) {
  const states = ['asleep', 'awake', 'polling'];
  const total = Math.max(1, levels.asleep + levels.awake + levels.polling);
  return html`<div class="tile shares"><dt>Listeners</dt><dd>
    <ul>${states.map(state => html`<li key=${state}><span class="big">${short(levels[state])}</span><span class="note"><i class=${`swatch ${state}`}></i>${state}</span></li>`)}</ul>
    <div class="bar" aria-hidden="true">${states.map(state => html`<i key=${state} class=${state} style=${{ width: `${(100 * levels[state]) / total}%` }}></i>`)}</div>
  </dd></div>`;
}

function Numbers({ recent, stats }) {
  const now = rates(recent.at(-2), stats);
  const wakes = latencies(recent.at(-WINDOW - 1) ?? recent[0], stats, 'wake_latency');
  const [half, most] = [quantile(wakes, 0.5), quantile(wakes, 0.99)];
  const { polls_avoided: polls, price_per_million: price, currency, assumed_poll: poll } = stats.savings;
  const number = n => (n === undefined ? '–' : rate(n));
  const seconds = parse(poll) ?? 0;
  return html`<dl class="tiles four">
    <${Shares} levels=${stats.levels} />
    <${Tile} label="Notifications" value=${html`${number(now?.notifications)}<small>/s</small>`} note=${`${short(stats.totals.notifications)} in total`} />
    <${Tile} label="Wake-ups" value=${html`${number(now?.wakes)}<small>/s</small>`} note=${`${short(stats.totals.wake_entries)} in total`} />
    <${Tile} label="Wake latency, median" title="From a notification to the hand-over to the listener's stream"
      value=${half === undefined ? '–' : latency(half)} note=${half === undefined ? 'no wake-up in 10 s' : 'of the last 10 s'} />
    <${Tile} label="Wake latency, p99" title="99 of 100 wake-ups were faster"
      value=${most === undefined ? '–' : latency(most)} note=${most === undefined ? 'no wake-up in 10 s' : 'of the last 10 s'} />
    <${Tile} label="Polls avoided" value=${short(polls)} title="Reads that listeners would have made if they polled"
      note=${`at a poll each ${seconds < 1 ? `${1000 * seconds} ms` : span(seconds)}`} />
    <${Tile} label="Money saved" value=${price ? money((polls * price) / 1e6, currency) : '–'}
      note=${price ? `${money(price, currency)} per million reads` : 'no price is set'} />
  </dl>`;
}

// The figures since the page was opened.
function Plots({ history }) {
  const times = history.map(sample => sample.at);
  const of = field => history.map(sample => sample[field]);
  const price = history.at(-1)?.savings;
  const perHour = (price?.price_per_million ?? 0) * 3600 / 1e6;
  const common = { period: 'since the page was opened', times };
  return html`<div class="part">
    <header class="sub"><h2 id="history">History</h2><span class="faint">since the page was opened, at most of ten minutes</span></header>
    ${times.length < 2
      ? html`<p class="panel faint wait">The figures appear here after some seconds.</p>`
      : html`<div class="plots">
        <${Plot} ...${common} title="Rates per second" least=${4} text=${short1} series=${[
          { label: 'notifications', colour: '--accent', values: of('notifications') },
          { label: 'wake-ups', colour: '--awake', values: of('wake_entries'), line: true }]} />
        <${Plot} ...${common} title="Listeners" least=${4} text=${count} stacked=${true} series=${[
          { label: 'asleep', colour: '--asleep', values: of('asleep') },
          { label: 'awake', colour: '--awake', values: of('awake') },
          { label: 'polling', colour: '--polling', values: of('polling') }]} />
        <${Plot} ...${common} title="Wake latency" least=${1000} text=${latency} series=${[
          { label: 'median', colour: '--accent', values: of('wake_p50_us') },
          { label: 'p99', colour: '--polling', values: of('wake_p99_us'), line: true }]} />
        <${Plot} ...${common} title=${perHour ? `Savings, ${price?.currency} per hour` : 'Polls avoided per second'}
          least=${perHour ? 0.04 : 4} text=${perHour ? n => money(n, price?.currency ?? '') : short1} series=${[
          { label: perHour ? 'saved' : 'polls avoided', colour: '--good', values: of('polls_avoided').map(n => (perHour ? n * perHour : n)) }]} />
      </div>`}
  </div>`;
}

const short1 = n => (n < 10 ? rate(n) : short(n));

// The relay visits all queues for this list.
const BUSIEST_EVERY = 5_000;

function Busiest() {
  const { data, before, at, beforeAt } = usePoll(signal => get(withQuery('queues', {
    order_by: 'QUEUE_ORDER_RATE', page_size: 8,
  }), signal), BUSIEST_EVERY, []);
  const last = new Map((before?.queues ?? []).map(queue => [nameOf(queue), queue]));
  const rows = (data?.queues ?? [])
    .map(queue => ({ ...queue, rate: rateOf(last.get(nameOf(queue)), queue, (at - beforeAt) / 1000) }))
    .filter(queue => queue.rate > 0);
  return html`<div class="part">
    <header class="sub"><h2 id="busiest">Busiest queues</h2><a href="#/queues?order=RATE">All queues</a></header>
    ${rows.length === 0
      ? html`<p class="panel faint wait">No queue was notified in the last seconds.</p>`
      : html`<${Table} label="Busiest queues" rows=${rows} keyOf=${nameOf}
        hrefOf=${queue => queueHref(queue.storage_account, queue.queue_name)}
        kindOf=${queue => (isUnserved(queue) ? 'bad' : '')}
        columns=${[
          { head: 'Queue', cell: queue => html`<${QueueName} of=${queue} />` },
          { head: 'Rate/s', number: true, title: 'Notifications per second', cell: queue => rate(queue.rate) },
          { head: 'Backlog', number: true, cell: queue => short(queue.backlog) },
          { head: 'Listeners', number: true, cell: queue => count(queue.listeners) }]} />`}
  </div>`;
}

export function Overview() {
  const { recent, history } = useStore(relay);
  const stats = recent.at(-1);
  if (!stats) return html`<${Heading} title="Overview" /><p class="panel faint wait">Waiting for the relay's figures…</p>`;
  const isNew = stats.levels.queues === 0 && stats.levels.subscriptions === 0 && stats.totals.notifications === 0;
  return html`<${Heading} title="Overview" />
    <${Unanswered} ids=${stats.unanswered_relays} />
    <${Now} stats=${stats} />
    ${isNew && html`<${Empty} title="Nothing has happened here yet" command=${'reveille subscribe acct/orders -- ./worker\nreveille notify acct/orders'}>
      Start a listener in one terminal, and notify its queue in another.<//>`}
    <${Numbers} recent=${recent} stats=${stats} />
    <${Plots} history=${history} />
    <${Busiest} />`;
}
