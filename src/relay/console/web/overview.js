// What is wrong now, and the relay's figures.
import { get, relay, usePoll, withQuery } from './api.js';
import { html, useRef, useState, useStore } from './dom.js';
import { count, latency, money, parse, plural, rate, short, span } from './format.js';
import { Empty, Heading, Notice, QueueName, Table, Tile, Unanswered, queueHref } from './parts.js';
import { Plot } from './plots.js';
import { isUnserved, nameOf, rateOf } from './queues.js';
import { latencies, quantile, rates } from './stats.js';

// Latencies are those of this many responses.
const WINDOW = 10;
const TEN_MINUTES = 600;

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

function ofAnswer({ samples, newest_at: newest, interval }) {
  const [end, step] = [Date.parse(newest) / 1000, parse(interval) || 1];
  const first = end - (samples.length - 1) * step;
  return {
    times: samples.map((_, i) => first + i * step),
    samples: samples.map(one => ({
      ...one,
      notifications: one.notifications / step,
      wake_entries: one.wake_entries / step,
      polls_avoided: one.polls_avoided / step,
    })),
  };
}

// The history of one relay with the newest responses of the stream behind it.
function appended(history, recent, own) {
  const times = [...history.times];
  const samples = [...history.samples];
  for (let i = 1; i < recent.length; i++) {
    const [before, stats] = [recent[i - 1], recent[i]];
    const at = Date.parse(stats.at) / 1000;
    const passed = rates(before, stats, own);
    const figures = stats.relays.find(one => one.relay_id === own);
    if (!passed || !figures || at < (times.at(-1) ?? 0) + 0.5) continue;
    const buckets = latencies(before, stats, 'wake_latency', own);
    times.push(at);
    samples.push({
      notifications: passed.notifications, wake_entries: passed.wakes, polls_avoided: passed.polls,
      asleep: figures.levels.asleep, awake: figures.levels.awake, polling: figures.levels.polling,
      wake_p50_us: quantile(buckets, 0.5) ?? 0, wake_p99_us: quantile(buckets, 0.99) ?? 0,
    });
  }
  return { times: times.slice(-TEN_MINUTES), samples: samples.slice(-TEN_MINUTES) };
}

function Plots({ recent, life, reachable }) {
  const [day, setDay] = useState(false);
  const { data, at, problem } = usePoll(signal => get(withQuery('history', { day }), signal), 60_000, [day, life, reachable]);
  const kept = useRef({ at: 0, day, relay: '', history: { times: [], samples: [] } });
  if (data && kept.current.at !== at) kept.current = { at, day, relay: data.relay_id, history: ofAnswer(data) };
  else if (!day && recent.length > 1) kept.current.history = appended(kept.current.history, recent, kept.current.relay);
  const { times, samples } = kept.current.history;
  const period = day ? 'last day' : 'last ten minutes';
  const of = field => samples.map(sample => sample[field]);
  // 0 stands for an interval without a wake-up.
  const known = field => samples.map(sample => sample[field] || null);
  const price = recent.at(-1)?.savings;
  const perHour = (price?.price_per_million ?? 0) * 3600 / 1e6;
  const common = { period, times };
  return html`<div class="part">
    <header class="sub"><h2 id="history">History</h2>
      ${recent.at(-1)?.relays.length !== 1 && kept.current.relay && html`<span class="faint">of ${kept.current.relay} alone</span>`}
      <div class="switch" role="group" aria-label="Period">
        <button type="button" aria-pressed=${!day} onClick=${() => setDay(false)}>Ten minutes</button>
        <button type="button" aria-pressed=${day} onClick=${() => setDay(true)}>Day</button>
      </div></header>
    <${Notice} problem=${problem?.status ? problem : undefined} />
    ${times.length < 2 || kept.current.day !== day
      ? html`<p class="panel faint wait">${data ? 'The relay has no figures yet. They appear here after some seconds.' : 'Reading the history…'}</p>`
      : html`<div class="plots" key=${period}>
        <${Plot} ...${common} title="Rates per second" least=${4} text=${short1} series=${[
          { label: 'notifications', colour: '--accent', values: of('notifications') },
          { label: 'wake-ups', colour: '--awake', values: of('wake_entries'), line: true }]} />
        <${Plot} ...${common} title="Listeners" least=${4} text=${count} stacked=${true} series=${[
          { label: 'asleep', colour: '--asleep', values: of('asleep') },
          { label: 'awake', colour: '--awake', values: of('awake') },
          { label: 'polling', colour: '--polling', values: of('polling') }]} />
        <${Plot} ...${common} title="Wake latency" least=${1000} text=${latency} series=${[
          { label: 'median', colour: '--accent', values: known('wake_p50_us') },
          { label: 'p99', colour: '--polling', values: known('wake_p99_us'), line: true }]} />
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
  const { recent, life, reachable } = useStore(relay);
  const stats = recent.at(-1);
  if (!stats) return html`<${Heading} title="Overview" /><p class="panel faint wait">Waiting for the relay's figures…</p>`;
  const isNew = stats.levels.queues === 0 && stats.levels.subscriptions === 0 && stats.totals.notifications === 0;
  return html`<${Heading} title="Overview" />
    <${Unanswered} ids=${stats.unanswered_relays} />
    <${Now} stats=${stats} />
    ${isNew && html`<${Empty} title="Nothing has happened here yet" command=${'reveille subscribe acct/orders -- ./worker\nreveille notify acct/orders'}>
      Start a listener in one terminal, and notify its queue in another.<//>`}
    <${Numbers} recent=${recent} stats=${stats} />
    <${Plots} recent=${recent} life=${life} reachable=${reachable} />
    <${Busiest} />`;
}
