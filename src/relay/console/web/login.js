// The login by a token, or by the one-time code of `reveille console --open`.
import { loggedIn, post } from './api.js';
import { html, useEffect, useState } from './dom.js';

export function Login({ code }) {
  const [token, setToken] = useState('');
  const [problem, setProblem] = useState('');
  const [busy, setBusy] = useState(false);
  const send = async body => {
    setBusy(true);
    setProblem('');
    try {
      loggedIn(await post('login', body));
      if (location.hash.startsWith('#/login')) location.hash = '#/';
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(false);
  };
  useEffect(() => { if (code) send({ code }); }, [code]);
  const submit = event => {
    event.preventDefault();
    if (!busy) send({ token: token.trim() });
  };
  return html`<form class="login panel" onSubmit=${submit}>
    <h1 tabindex="-1">Log in</h1>
    <p>This relay requires a login. Paste a token, or run <code>reveille console --open</code>, which opens this page for you.</p>
    <label class="field"><span>Token</span>
      <input type="password" value=${token} onInput=${event => setToken(event.target.value)} autocomplete="current-password" spellcheck=${false} required />
      <small>Made by <code>reveille auth token new</code></small></label>
    ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
    <div class="buttons"><button type="submit" class="primary" disabled=${busy || !token.trim()}>${busy ? 'Sending…' : 'Log in'}</button></div>
  </form>`;
}
