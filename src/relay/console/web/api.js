// The relay's HTTP interface: calls, problems, and the stream of figures.
import { Store, useEffect, useRef, useState } from './dom.js';

// An answer that is no success. Status 0: the relay could not be reached.
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

// What the tab knows of the relay.
export const relay = new Store({
  info: undefined, recent: [], reachable: true, needsLogin: false, problem: undefined, restartedAt: undefined, life: 0,
});

// The responses of this many seconds are kept, for latencies.
const RECENT = 15;
// Milliseconds without an event after which the stream of figures counts as broken.
const SILENCE = 10_000;
const MAX_PAUSE = 2_000;

async function problemOf(response) {
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) relay.set({ needsLogin: true });
  return new Problem(response.status, body.title ?? response.statusText, body.detail ?? `HTTP status ${response.status}`);
}

async function send(path, options) {
  try {
    return await fetch(`/api/v1/${path}`, { credentials: 'same-origin', cache: 'no-store', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, 'UNREACHABLE', 'The relay cannot be reached.');
  }
}

export async function get(path, signal) {
  const response = await send(path, { signal });
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

export async function post(path, body) {
  const headers = { 'Content-Type': 'application/json', 'X-Reveille-Action': '1' };
  const response = await send(path, { method: 'POST', headers, body: JSON.stringify(body) });
  if (!response.ok) throw await problemOf(response);
  return response.json().catch(() => ({}));
}

// Joins a path and a query without empty values.
export function withQuery(path, query) {
  const stated = Object.entries(query).filter(([, value]) => value !== undefined && value !== '' && value !== false);
  return stated.length ? `${path}?${new URLSearchParams(stated.map(([k, v]) => [k, String(v)]))}` : path;
}

// Reads all pages of a list, at most `pages` of them.
export async function getAll(path, query, field, signal, pages = 20) {
  const all = [];
  let token = '';
  for (let page = 0; page < pages; page++) {
    const answer = await get(withQuery(path, { ...query, page_size: 1000, page_token: token }), signal);
    all.push(...(answer[field] ?? []));
    token = answer.next_page_token;
    if (!token) break;
  }
  return { all, more: Boolean(token) };
}

const pause = (time, signal) => new Promise(done => {
  const end = () => {
    clearTimeout(timer);
    signal.removeEventListener('abort', end);
    done(undefined);
  };
  const timer = setTimeout(end, time);
  signal.addEventListener('abort', end);
});

// Reads one event stream to its end. `fetch` is used because an EventSource hides the status.
async function readEvents(path, signal, silence, take) {
  const silent = new AbortController();
  const abort = () => silent.abort();
  signal.addEventListener('abort', abort);
  let timer = silence ? setTimeout(abort, silence) : 0;
  try {
    const response = await send(path, { signal: silent.signal, headers: { Accept: 'text/event-stream' } });
    if (!response.ok || !response.body) throw await problemOf(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = silence ? setTimeout(abort, silence) : 0;
      buffer = (buffer + value).replaceAll('\r\n', '\n');
      const parts = buffer.split('\n\n');
      buffer = parts.pop() ?? '';
      for (const part of parts) {
        const lines = part.split('\n');
        const field = name => lines.filter(line => line.startsWith(`${name}:`))
          .map(line => line.slice(name.length + 1).replace(/^ /, '')).join('\n');
        const data = field('data');
        if (data) take(field('event') || 'message', JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', abort);
  }
}

// Keeps an event stream open until the signal. An end or a failure is the event `down` with a Problem.
async function keepEvents(path, signal, silence, take) {
  for (let wait = 250; !signal.aborted;) {
    let problem = new Problem(0, 'UNREACHABLE', 'The stream has ended.');
    try {
      await readEvents(path, signal, silence, (event, data) => {
        wait = 250;
        if (event === 'problem') problem = new Problem(data.status, data.title, data.detail);
        else take(event, data);
      });
    } catch (error) {
      if (error instanceof Problem) problem = error;
    }
    if (signal.aborted) return;
    take('down', { status: problem.status, title: problem.title, detail: problem.message });
    if (problem.status === 401) return;
    await pause(wait, signal);
    wait = Math.min(wait * 2, MAX_PAUSE);
  }
}

// Runs a task while the tab is visible. Returns a function that ends it, and one that runs it again.
function whileVisible(task) {
  let running = new AbortController();
  const run = () => {
    running.abort();
    running = new AbortController();
    if (!document.hidden) task(running.signal);
  };
  document.addEventListener('visibilitychange', run);
  run();
  const end = () => {
    document.removeEventListener('visibilitychange', run);
    running.abort();
  };
  return { run, end };
}

// Applies an event of the shared stream.
function apply(event, data) {
  const { info, recent, life } = relay.value;
  if (event === 'stats') {
    const own = data.relays[0];
    const known = recent.at(-1)?.relays[0] ?? info;
    const restarted = own && known && known.relay_id === own.relay_id && known.epoch !== own.epoch;
    const kept = restarted ? [] : recent.slice(-RECENT);
    relay.set({
      recent: [...kept, data], reachable: true, problem: undefined, needsLogin: false,
      ...(restarted ? { restartedAt: Date.now(), life: life + 1 } : {}),
    });
    if (restarted || !info) loadInfo().catch(() => {});
  } else if (event === 'down') {
    const problem = new Problem(data.status, data.title, data.detail);
    if (data.status === 401) relay.set({ needsLogin: true });
    else relay.set({ reachable: data.status !== 0, problem: data.status ? problem : undefined });
  } else if (event === 'goodbye') {
    relay.set({ reachable: false });
  }
}

let reopen = () => {};

// Reads who the user is and what the console may do.
export async function loadInfo() {
  const info = await get('info');
  relay.set({ info, needsLogin: info.login && !info.user });
  return info;
}

// A hidden tab has no stream, and begins one with the session when it is shown.
export function loggedIn(info) {
  relay.set({ info, needsLogin: false });
  reopen();
}

// Begins to follow the relay's figures.
export function start() {
  reopen = whileVisible(signal => keepEvents('stream?interval=1s', signal, SILENCE, apply)).run;
}

// Follows a stream while the component is shown and the tab is visible.
export function useEvents(path, take, inputs) {
  useEffect(() => {
    if (path === undefined) return undefined;
    return whileVisible(signal => keepEvents(path, signal, 0, take)).end;
  }, [path, ...inputs]);
}

// Reads again each `interval` milliseconds while the tab is visible. A failure keeps the data.
export function usePoll(read, interval, inputs) {
  const none = { data: undefined, before: undefined, at: 0, beforeAt: 0, problem: undefined };
  const [state, setState] = useState(none);
  const again = useRef(() => {});
  useEffect(() => {
    setState(none);
    if (!read) return undefined;
    const task = whileVisible(async signal => {
      while (!signal.aborted) {
        try {
          const data = await read(signal);
          if (signal.aborted) return;
          setState(old => ({ data, before: old.data, at: Date.now(), beforeAt: old.at, problem: undefined }));
        } catch (problem) {
          if (signal.aborted) return;
          setState(old => ({ ...old, problem }));
        }
        await pause(interval, signal);
      }
    });
    again.current = task.run;
    return task.end;
  }, inputs);
  return { ...state, reload: () => again.current() };
}
