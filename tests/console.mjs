// Checks the console's page in a browser, against a real relay and real `reveille wait` processes.
//
//   node tests/console.mjs PATH/TO/reveille [--screenshots DIR]
//
// Chromium is the program of REVEILLE_TEST_CHROMIUM, or that of the npm package @sparticuz/chromium.
// Prints a line for each check, and ends with 1 if one has failed. Takes about a minute and a half.
import { AxeBuilder } from '@axe-core/playwright';
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const [binary, ...rest] = process.argv.slice(2);
const screenshots = rest[rest.indexOf('--screenshots') + 1 || rest.length];
const FLAG = 'go-live';
const FLEET = 50;
const STOPPED = 'node-17';
const VIEWS = ['/', '/queues', '/queues/acct/first', '/listeners', '/flags', `/flags/${FLAG}`, '/relays', '/login'];

if (!binary) {
  console.error('usage: node tests/console.mjs PATH/TO/reveille [--screenshots DIR]');
  process.exit(2);
}

// ---- Checks

/** The exit code where Chromium has ended by itself, which says nothing about the console. */
const BROWSER_CRASHED = 75;

let failed = 0;
let crashed = false;

async function check(name, run) {
  const begun = performance.now();
  try {
    await run();
    console.log(`ok      ${name} (${((performance.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}: ${String(error.message ?? error).split('\n').slice(0, 6).join(' | ').slice(0, 600)}`);
  }
}

function equal(got, expected, what) {
  if (got !== expected) throw new Error(`${what}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(got)}`);
}

/** Waits until `read` returns a true value, and returns it. */
async function until(what, read, timeout = 10_000) {
  const end = performance.now() + timeout;
  let last;
  while (performance.now() < end) {
    last = await read();
    if (last) return last;
    await sleep(40);
  }
  throw new Error(`${what}: not within ${timeout / 1000} s (${JSON.stringify(last)})`);
}

const distinct = texts => [...new Set(texts)].join(' ');

const sleep = time => new Promise(done => setTimeout(done, time));

// ---- Processes

const directory = mkdtempSync(join(tmpdir(), 'reveille-console-'));
const children = new Set();
const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('REVEILLE_') && name !== 'RUST_LOG'));

process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
  rmSync(directory, { recursive: true, force: true });
});

function start(...args) {
  const child = spawn(binary, args, { stdio: ['ignore', 'ignore', 'pipe'], env: clean });
  children.add(child);
  child.log = '';
  child.ended = new Promise((done, fail) => {
    child.on('error', fail);
    child.on('exit', (code, signal) => {
      children.delete(child);
      done(signal ?? code);
    });
  });
  child.ended.catch(() => {});
  return child;
}

/** Starts a relay, and returns it with its addresses once it serves. */
async function serve(listen, admin) {
  const child = start('serve', '--listen', listen, '--admin-listen', admin, '--store', `sqlite:${join(directory, 'store.db')}`, '--log', 'json');
  const serves = new Promise((done, fail) => {
    createInterface({ input: child.stderr }).on('line', line => {
      child.log += `${line}\n`;
      let entry = {};
      try { entry = JSON.parse(line); } catch { /* Not a line of the log. */ }
      if (entry.message === 'reveille serves') done({ child, relay: entry.relay, admin: new URL(entry.admin).host });
    });
    child.ended.then(code => fail(new Error(`the relay ended with ${code}: ${child.log}`)), fail);
  });
  return serves;
}

async function notify(queue) {
  const child = start('notify', queue, '--relay', relay.relay);
  child.stderr.on('data', text => { child.log += text; });
  equal(await child.ended, 0, `reveille notify ${queue} ${child.log}`);
}

// ---- The browser

async function executable() {
  if (process.env.REVEILLE_TEST_CHROMIUM) return process.env.REVEILLE_TEST_CHROMIUM;
  // The package brings libraries that a system may lack. It unpacks them where it takes this for a
  // cloud function, and sets the variables by which Chromium finds them.
  process.env.AWS_LAMBDA_JS_RUNTIME ??= 'nodejs22.x';
  const { default: packed } = await import('@sparticuz/chromium');
  return packed.executablePath();
}

let relay = await serve('127.0.0.1:0', '127.0.0.1:0');
const base = `http://${relay.admin}`;
const browser = await chromium.launch({ executablePath: await executable(), args: ['--no-sandbox'] });

const foreign = [];
const violations = [];
const crashes = [];

/** Opens a page in a new browser context. */
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, locale: 'en-US', ...options });
  context.setDefaultTimeout(10_000);
  context.on('request', request => {
    const url = new URL(request.url());
    if (url.protocol !== 'data:' && url.origin !== base) foreign.push(request.url());
  });
  context.on('console', message => {
    if (/Content Security Policy|Trusted(HTML|Script)/.test(message.text())) violations.push(message.text());
  });
  context.on('weberror', error => crashes.push(error.error().message));
  return context.newPage();
}

const go = async (page, path) => {
  await page.goto(`${base}/#${path}`);
  await page.locator('h1').first().waitFor();
};

const heading = page => page.locator('h1').first().innerText();

/** Presses Tab until the focus is on an element with this text. */
async function tabTo(page, text) {
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press('Tab');
    if ((await page.evaluate(() => document.activeElement?.textContent ?? '')).trim() === text) return;
  }
  throw new Error(`Tab does not reach "${text}"`);
}

const focused = page => page.evaluate(() => document.activeElement?.closest('label')?.innerText.split('\n')[0] ?? document.activeElement?.tagName);

/** Pretends that the tab is hidden or shown, which a headless browser never reports. */
const setHidden = (page, hidden) => page.evaluate(value => {
  Object.defineProperty(document, 'hidden', { value, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}, hidden);

async function axe(page, what) {
  const { violations: found } = await new AxeBuilder({ page }).analyze();
  const texts = found.map(one => `${one.id} at ${one.nodes.slice(0, 2).map(node => node.target.join(' ')).join(', ')}`);
  if (texts.length) throw new Error(`${what}: ${texts.join('; ')}`);
}

async function shoot(page, name) {
  if (!screenshots) return;
  mkdirSync(screenshots, { recursive: true });
  for (const [width, height] of [[1280, 900], [400, 800]]) {
    for (const colorScheme of ['light', 'dark']) {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme });
      await sleep(400);
      await page.screenshot({ path: join(screenshots, `${name}-${width}-${colorScheme}.png`), fullPage: name === 'overview' });
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.emulateMedia({ colorScheme: null });
}

try {
  const page = await open();

  await check('the page is served with its security policy', async () => {
    const response = await page.goto(`${base}/`);
    const policy = response.headers()['content-security-policy'] ?? '';
    for (const part of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]) {
      if (!policy.includes(part)) throw new Error(`the policy lacks ${part}: ${policy}`);
    }
  });

  await check('an empty relay says what to type', async () => {
    await page.getByText('Nothing is wrong').waitFor();
    await page.getByText('reveille notify acct/orders').waitFor();
    await go(page, '/queues');
    await page.getByText('reveille notify acct/orders').waitFor();
  });

  await check('a queue appears within 1.5 s of its first notification, and is marked without listeners', async () => {
    await notify('acct/first');
    await page.getByRole('link', { name: 'acct/first' }).waitFor({ timeout: 1500 });
    const row = page.getByRole('row', { name: /acct\/first/ });
    await row.getByText('none').waitFor();
    await go(page, '/');
    await page.locator('.sentence', { hasText: 'acct/first' }).waitFor({ timeout: 5000 });
    await shoot(page, 'overview');
  });

  await check('a queue is notified by hand', async () => {
    await go(page, '/queues/acct/first');
    await page.getByRole('button', { name: 'Notify…' }).click();
    await page.getByLabel('Messages').fill('3');
    await page.getByRole('button', { name: 'Notify', exact: true }).click();
    await page.getByText('Counted as notification 2').waitFor();
    await page.getByRole('heading', { name: 'No listener subscribes' }).waitFor();
    await shoot(page, 'queue');
  });

  await check('keys change the view, focus the search, open rows and the help', async () => {
    await go(page, '/');
    for (const [key, title] of [['q', 'Queues'], ['l', 'Listeners'], ['f', 'Flags'], ['r', 'Relays'], ['o', 'Overview'], ['q', 'Queues']]) {
      await page.keyboard.press('g');
      await page.keyboard.press(key);
      await until(`g ${key}`, async () => await heading(page) === title, 3000);
    }
    await page.getByRole('link', { name: 'acct/first' }).waitFor();
    await page.keyboard.press('/');
    equal(await page.evaluate(() => document.activeElement?.getAttribute('type')), 'search', 'the focus after /');
    await page.keyboard.type('fir');
    await page.waitForURL(/filter=fir/);
    await page.keyboard.press('Escape');
    equal(await page.evaluate(() => document.activeElement?.tagName), 'BODY', 'the focus after Esc');
    await page.keyboard.press('?');
    await page.getByRole('dialog').waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await page.getByRole('link', { name: 'acct/first' }).waitFor();
    await tabTo(page, 'acct/first');
    await page.keyboard.press('Enter');
    await until('Enter on a row', async () => (await heading(page)).includes('acct/first'), 3000);
  });

  await check('the order of rows holds under the pointer', async () => {
    const names = () => page.locator('tbody a.row').allInnerTexts();
    for (const queue of ['hold/one', 'hold/two', 'hold/two']) await notify(queue);
    await go(page, '/queues?filter=hold&order=BACKLOG');
    await until('the order by backlog', async () => (await names()).join() === 'hold/two,hold/one', 3000);
    await page.getByRole('row', { name: /hold\/two/ }).hover();
    for (let i = 0; i < 3; i++) await notify('hold/one');
    const backlog = page.getByRole('row', { name: /hold\/one/ }).getByRole('cell').first();
    await until('the new backlog', async () => await backlog.innerText() === '4', 3000);
    equal((await names()).join(), 'hold/two,hold/one', 'the order under the pointer');
    await page.mouse.move(0, 0);
    await until('the new order', async () => (await names()).join() === 'hold/one,hold/two', 3000);
  });

  const fleet = new Map(Array.from({ length: FLEET }, (_, i) => {
    const id = `node-${String(i + 1).padStart(2, '0')}`;
    return [id, start('wait', FLAG, '--id', id, '--relay', relay.relay)];
  }));

  await check('the flag shows 50 processes that wait', async () => {
    await go(page, `/flags/${FLAG}`);
    await page.getByText(`${FLEET} listeners sleep`).waitFor({ timeout: 30_000 });
  });

  await check('a failed release keeps what was typed, and shows the problem', async () => {
    const problem = { type: 'about:blank', title: 'UNAVAILABLE', status: 503, detail: 'The store is away.' };
    await page.route('**/unleash', route => route.fulfill({ status: 503, contentType: 'application/problem+json', body: JSON.stringify(problem) }));
    await page.getByRole('button', { name: 'Unleash…' }).click();
    await page.getByRole('dialog').getByText(`${FLEET} listeners`).waitFor();
    const submit = page.getByRole('button', { name: 'Unleash', exact: true });
    await page.getByLabel('to confirm').fill('go-liv');
    await page.getByLabel('Reason').fill('a test');
    equal(await submit.isDisabled(), true, 'the button is disabled with a wrong name');
    await page.getByLabel('to confirm').fill(FLAG);
    await submit.click();
    await page.getByRole('alert').getByText('The store is away.').waitFor();
    equal(await page.getByLabel('Reason').inputValue(), 'a test', 'the reason');
    equal(await page.getByLabel('to confirm').inputValue(), FLAG, 'the typed name');
    await axe(page, 'the dialog');
    await page.unroute('**/unleash');
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
  });

  await check(`a release by keyboard alone counts to ${FLEET - 1} and names the stopped process`, async () => {
    fleet.get(STOPPED).kill('SIGSTOP');
    await go(page, '/');
    await page.keyboard.press('g');
    await page.keyboard.press('f');
    await until('g f', async () => await heading(page) === 'Flags', 3000);
    await tabTo(page, 'New flag…');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor();
    equal(await focused(page), 'Name', 'the first field');
    await page.keyboard.type(FLAG);
    await page.getByRole('dialog').getByText(`${FLEET} listeners`).waitFor();
    await page.keyboard.press('Tab');
    equal(await focused(page), 'Reason', 'the second field');
    await page.keyboard.type('the test releases the fleet');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Tab');
    equal(await focused(page), 'Expect', 'the fourth field');
    await page.keyboard.type(String(FLEET));
    await page.keyboard.press('Enter');
    const bar = page.getByRole('progressbar', { name: 'Acknowledgements' });
    await until('the bar', async () => await bar.getAttribute('aria-valuenow') === String(FLEET - 1), 15_000);
    equal(await bar.getAttribute('aria-valuemax'), String(FLEET), 'the end of the bar');
    equal(await page.locator('[data-acknowledged]').innerText(), String(FLEET - 1), 'the number');
    await page.getByText('Still waiting').waitFor({ timeout: 8000 });
    await until('the missing names', async () => {
      const names = await page.locator('[data-missing] code').allInnerTexts();
      return names.length === 1 && names[0] === STOPPED;
    }, 5000);
    await shoot(page, 'release');
  });

  await check(`the bar reaches ${FLEET} when the stopped process goes on, and all have ended`, async () => {
    fleet.get(STOPPED).kill('SIGCONT');
    await page.getByText(`All ${FLEET} have acknowledged`).waitFor({ timeout: 15_000 });
    equal(await page.getByRole('progressbar').getAttribute('aria-valuenow'), String(FLEET), 'the bar');
    const ends = await Promise.race([Promise.all([...fleet.values()].map(one => one.ended)), sleep(10_000)]);
    if (!ends) throw new Error('processes still wait');
    equal(ends.filter(code => code !== 0).length, 0, 'processes that failed');
  });

  await check('the flag is cleared again', async () => {
    await page.getByRole('button', { name: 'Leash…' }).click();
    await page.getByLabel('to confirm').fill(FLAG);
    await page.getByLabel('Reason').fill('the test is over');
    await page.getByRole('button', { name: 'Leash', exact: true }).click();
    await page.getByText('not set', { exact: true }).waitFor();
  });

  for (const colorScheme of ['light', 'dark']) {
    await check(`axe finds nothing in any view, ${colorScheme}`, async () => {
      await page.emulateMedia({ colorScheme });
      for (const path of VIEWS) {
        await go(page, path);
        await sleep(path === '/' ? 2500 : 900);
        await axe(page, path);
      }
      await page.keyboard.press('?');
      await page.getByRole('dialog').waitFor();
      await axe(page, 'the help');
      await page.keyboard.press('Escape');
    });
  }

  await check('no view scrolls sideways at a width of 320', async () => {
    await page.setViewportSize({ width: 320, height: 700 });
    for (const path of VIEWS) {
      await go(page, path);
      await sleep(600);
      equal(await page.evaluate(() => Math.max(0, document.documentElement.scrollWidth - innerWidth)), 0, `pixels too many in ${path}`);
    }
    await page.setViewportSize({ width: 1280, height: 900 });
  });

  await check('the page is shown where the language of the browser is no language', async () => {
    const other = await open();
    // Chromium takes this name from LANG=C.
    await other.addInitScript(() => Object.defineProperty(Navigator.prototype, 'language', { get: () => 'en-US@posix' }));
    await go(other, '/');
    await other.locator('.plot').first().waitFor();
    await other.context().close();
  });

  await check('a plot has a sentence and a table', async () => {
    await go(page, '/');
    const plot = page.getByRole('region', { name: 'Rates per second', exact: true });
    const sentence = await plot.getByRole('img').getAttribute('aria-label');
    if (!/minimum .* maximum .* latest /.test(sentence)) throw new Error(`the sentence is ${sentence}`);
    await plot.getByRole('button', { name: 'Show as table' }).click();
    await plot.getByRole('table').waitFor();
  });

  await check('a read-only console shows its banner, and its buttons are disabled', async () => {
    const info = await (await fetch(`${base}/api/v1/info`)).json();
    await page.route('**/api/v1/info', route => route.fulfill({ json: { ...info, mode: 'read' } }));
    await page.goto('about:blank');
    await go(page, `/flags/${FLAG}`);
    await page.locator('[data-banner=read-only]').waitFor();
    equal(await page.getByRole('button', { name: 'Unleash…' }).isDisabled(), true, 'Unleash is disabled');
    await page.unroute('**/api/v1/info');
  });

  await check('a one-time code leaves the address at once, and is sent in a body', async () => {
    const sent = page.waitForRequest('**/api/v1/login');
    await page.route('**/api/v1/login', route => route.fulfill({ status: 401, contentType: 'application/problem+json', body: '{"title":"UNAUTHENTICATED","status":401,"detail":"The code is too old."}' }));
    await page.goto('about:blank');
    await page.goto(`${base}/#code=abc-123`);
    const request = await sent;
    equal(request.postDataJSON().code, 'abc-123', 'the code');
    if (page.url().includes('abc-123')) throw new Error(`the address still has it: ${page.url()}`);
    await page.getByText('The code is too old.').waitFor();
    await page.unroute('**/api/v1/login');
  });

  await check('kill -9 and a restart: live again within 5 s, with a banner', async () => {
    await page.goto('about:blank');
    await go(page, '/');
    await page.locator('.tiles').waitFor();
    relay.child.kill('SIGKILL');
    await relay.child.ended;
    await page.locator('[data-banner=unreachable]').waitFor({ timeout: 5000 });
    await sleep(2000);
    relay = await serve(relay.relay.replace('http://', ''), relay.admin);
    await page.locator('[data-banner=restarted]').waitFor({ timeout: 5000 });
    await page.locator('[data-banner=unreachable]').waitFor({ state: 'detached', timeout: 1000 });
    await notify('acct/second');
    await page.locator('.tile', { hasText: 'Notifications' }).getByText('1 in total').waitFor({ timeout: 5000 });
  });
  await page.context().close();

  await check('a hidden tab sends nothing, and goes on when it is shown', async () => {
    const tab = await open();
    await go(tab, '/queues');
    await tab.getByRole('link', { name: 'acct/second' }).waitFor();
    await setHidden(tab, true);
    await sleep(500);
    const sent = [];
    tab.on('request', request => sent.push(request.url()));
    await sleep(3000);
    equal(sent.join(' '), '', 'requests while it is hidden');
    await setHidden(tab, false);
    await until('the stream', () => sent.some(url => url.includes('/api/v1/stream')), 3000);
    await until('the list', () => sent.some(url => url.includes('/api/v1/queues')), 3000);
    await tab.context().close();
  });

  await check('no request went to another host', async () => equal(distinct(foreign), '', 'requests'));
  await check('nothing broke the security policy', async () => equal(distinct(violations), '', 'violations'));
  await check('no script failed', async () => equal(distinct(crashes), '', 'errors'));
} finally {
  crashed = !browser.isConnected();
  await browser.close();
}
console.log(failed ? `${failed} checks failed` : 'all checks passed');
if (crashed) console.log('Chromium has ended by itself');
process.exit(crashed ? BROWSER_CRASHED : failed ? 1 : 0);
