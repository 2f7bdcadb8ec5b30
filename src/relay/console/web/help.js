// The keys, and where to read on.
import { html, useEffect, useRef } from './dom.js';

const KEYS = [
  [['g', 'o'], 'Overview'], [['g', 'q'], 'Queues'], [['g', 'l'], 'Listeners'], [['g', 'f'], 'Flags'], [['g', 'r'], 'Relays'],
  [['/'], 'Search'], [['↓'], 'Next row, or j'], [['↑'], 'Row before, or k'], [['Enter'], 'Open the row'], [['Esc'], 'Close, or leave the search'], [['?'], 'This help'],
];

export function Help({ close }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="dialog-title"><div class="form">
    <h2 id="dialog-title">Keys</h2>
    <dl class="keys">${KEYS.map(([keys, text]) => html`<div key=${text}><dt>${keys.map(key => html`<kbd>${key}</kbd> `)}</dt><dd>${text}</dd></div>`)}</dl>
    <h3>Words</h3>
    <dl class="words">
      <div><dt>asleep</dt><dd>The listener has no work. The relay wakes it.</dd></div>
      <div><dt>awake</dt><dd>It handles messages.</dd></div>
      <div><dt>polling</dt><dd>It reads its queue again and again, because no wake-ups reach it.</dd></div>
      <div><dt>silent</dt><dd>It was woken and has not reported.</dd></div>
      <div><dt>gone</dt><dd>It did not answer in time, and its stream has ended.</dd></div>
      <div><dt>backlog</dt><dd>Messages that are not known to be handled.</dd></div>
      <div><dt>depth</dt><dd>Messages in the queue, as a listener last read them.</dd></div>
    </dl>
    <p class="faint">The page reads <code>/api/v1</code>, which scripts may use as well. It stops while the tab is hidden.</p>
    <div class="buttons"><button type="button" class="primary" onClick=${() => box.current.close()}>Close</button></div>
  </div></dialog>`;
}
