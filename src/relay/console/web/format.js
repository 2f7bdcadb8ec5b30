// Numbers, durations and times as texts.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
const hours = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const seconds = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const days = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' });

// 1234 is "1,234".
export const count = n => whole.format(n);

// A large number in few digits: "48.2M".
export const short = n => (Math.abs(n) < 100_000 ? whole.format(n) : compact.format(n));

// A rate: one digit behind the point below 10.
export const rate = n => (n < 10 ? tenth : whole).format(n);

// "1 listener", "2 listeners".
export const plural = (n, noun, plural = `${noun}s`) => `${count(n)} ${n === 1 ? noun : plural}`;

export function money(amount, currency) {
  try {
    return new Intl.NumberFormat('en', {
      style: 'currency', currency, maximumFractionDigits: amount < 1000 ? 2 : 0,
    }).format(amount);
  } catch { // Not a code of ISO 4217.
    return `${tenth.format(amount)} ${currency}`;
  }
}

export function latency(us) {
  if (us < 1000) return `${whole.format(us)} µs`;
  return us < 1_000_000 ? `${(us < 10_000 ? tenth : whole).format(us / 1000)} ms` : `${tenth.format(us / 1e6)} s`;
}

// "1.5s" is 1.5.
export const parse = text => (text === undefined ? undefined : Number.parseFloat(text));

// A duration of the user: "90", "10m", "1h", "7d"; in seconds.
export function parseSpan(text) {
  const [, n, unit] = /^(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?$/.exec(text.trim()) ?? [];
  return n === undefined ? undefined : Number(n) * ({ m: 60, min: 60, h: 3600, d: 86400 }[unit] ?? 1);
}

// "12 s", "3 min 4 s", "2 h 5 min", "3 d 4 h".
export function span(value) {
  const s = Math.max(0, Math.floor(value));
  const two = (n, unit, rest, small) =>
    `${n}\u00a0${unit}${rest ? ` ${rest}\u00a0${small}` : ''}`;
  if (s < 60) return `${s}\u00a0s`;
  if (s < 600) return two(Math.floor(s / 60), 'min', s % 60, 's');
  if (s < 3600) return `${Math.floor(s / 60)}\u00a0min`;
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor((s % 3600) / 60), 'min');
  return two(Math.floor(s / 86400), 'd', Math.floor((s % 86400) / 3600), 'h');
}

export const size = size => short(size);

export const clock = at => seconds.format(at);
export const clockShort = at => hours.format(at);

// A time of today without its day.
export function moment(text) {
  if (!text) return '';
  const at = new Date(text);
  return at.toDateString() === new Date().toDateString() ? hours.format(at) : days.format(at);
}
