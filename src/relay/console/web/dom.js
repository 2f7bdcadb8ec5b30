// Preact, its hooks and htm, with the types that the views use.
import { h, render as draw } from './vendor/preact.js';
import * as hooks from './vendor/hooks.js';
import htm from './vendor/htm.js';

// uPlot formats numbers by it when it is loaded, and fails where it is none: LANG=C makes it "en-US@posix".
// The page is in English.
Object.defineProperty(navigator, 'language', { value: 'en' });

export const html = htm.bind(h);
export const render = draw;
export const useState = hooks.useState;
export const useRef = hooks.useRef;
export const useEffect = hooks.useEffect;
export const useLayoutEffect = hooks.useLayoutEffect;

// A value with subscribers.
export class Store {
  constructor(value) {
    this.value = value;
    this.subscribers = new Set();
  }

  set(changes) {
    this.value = { ...this.value, ...changes };
    for (const changed of this.subscribers) changed();
  }
}

// Draws the component again when the store changes.
export function useStore(store) {
  const [, count] = useState(0);
  useLayoutEffect(() => {
    const changed = () => count(n => n + 1);
    store.subscribers.add(changed);
    return () => store.subscribers.delete(changed) && undefined;
  }, [store]);
  return store.value;
}

const clock = new Store({ now: Date.now() });
setInterval(() => document.hidden || clock.set({ now: Date.now() }), 1000);

// Draws the component again each second, for ages.
export function useClock() {
  useStore(clock);
  return Date.now();
}
