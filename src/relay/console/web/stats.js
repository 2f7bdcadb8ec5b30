// Figures that follow from two responses of the stream.

// Pairs of the figures of each relay that has not restarted between two responses. A relay that did
// not answer one of them has no pair, so that no rate is negative.
function pairs(before, now) {
  return now.relays.flatMap(relay => {
    const same = before.relays.find(old => old.relay_id === relay.relay_id && old.epoch === relay.epoch);
    return same ? [[same, relay]] : [];
  });
}

const secondsBetween = (before, now) => Math.max(0.001, (Date.parse(now.at) - Date.parse(before.at)) / 1000);

export function rates(before, now, relayId) {
  if (!before || !now || before === now) return undefined;
  const seconds = secondsBetween(before, now);
  const rates = { seconds, notifications: 0, wakes: 0, polls: 0 };
  for (const [old, relay] of pairs(before, now)) {
    if (relayId && relay.relay_id !== relayId) continue;
    rates.notifications += (relay.totals.notifications - old.totals.notifications) / seconds;
    rates.wakes += (relay.totals.wake_entries - old.totals.wake_entries) / seconds;
    // Reads that the relay asked for are subtracted, so the count may fall.
    rates.polls += Math.max(0, relay.savings.polls_avoided - old.savings.polls_avoided) / seconds;
  }
  return rates;
}

// The latencies between two responses.
export function latencies(before, now, which, relayId) {
  if (!before || !now) return undefined;
  let sum;
  for (const [old, relay] of pairs(before, now)) {
    if (relayId && relay.relay_id !== relayId) continue;
    const [from, to] = [old.totals[which], relay.totals[which]];
    if (!from || !to) continue;
    const counts = to.counts.map((count, i) => Math.max(0, count - (from.counts[i] ?? 0)));
    const summed = sum;
    sum = { bounds_us: to.bounds_us, counts: summed ? counts.map((n, i) => n + (summed.counts[i] ?? 0)) : counts };
  }
  return sum;
}

// A quantile of a histogram in microseconds, interpolated within its bucket; undefined without counts.
export function quantile(buckets, share) {
  const total = buckets?.counts.reduce((sum, n) => sum + n, 0);
  if (!buckets || !total) return undefined;
  let left = total * share;
  for (let i = 0; i < buckets.counts.length; i++) {
    const count = buckets.counts[i];
    const low = i === 0 ? 0 : buckets.bounds_us[i - 1];
    // The last bucket has no bound.
    const high = buckets.bounds_us[i] ?? low;
    if (count >= left) return low + (high - low) * (count ? left / count : 0);
    left -= count;
  }
  return buckets.bounds_us[buckets.bounds_us.length - 1];
}
