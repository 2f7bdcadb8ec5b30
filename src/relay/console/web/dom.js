// @ts-check
// Preact, its hooks and htm, with the types that the views use.
import { h, render as draw } from './vendor/preact.js';
import * as hooks from './vendor/hooks.js';
import htm from './vendor/htm.js';

// uPlot formats numbers by it when it is loaded, and fails where it is none: LANG=C makes it "en-US@posix".
// The page is in English.
Object.defineProperty(navigator, 'language', { value: 'en' });

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
/** @type {(node: any, into: Element) => void} */
export const render = draw;
/** @type {<T>(initial: T | (() => T)) => [T, (next: T | ((before: T) => T)) => void]} */
export const useState = hooks.useState;
/** @type {<T>(initial: T) => {current: T}} */
export const useRef = hooks.useRef;
/** @type {(effect: () => void | (() => void), inputs?: any[]) => void} */
export const useEffect = hooks.useEffect;
/** @type {(effect: () => void | (() => void), inputs?: any[]) => void} */
export const useLayoutEffect = hooks.useLayoutEffect;
/** @type {<T>(make: () => T, inputs: any[]) => T} */
export const useMemo = hooks.useMemo;

/**
 * A value with subscribers.
 * @template T
 */
export class Store {
  /** @param {T} value */
  constructor(value) {
    this.value = value;
    /** @type {Set<() => void>} */
    this.subscribers = new Set();
  }

  /** @param {Partial<T>} changes */
  set(changes) {
    this.value = { ...this.value, ...changes };
    for (const changed of this.subscribers) changed();
  }
}

/**
 * Draws the component again when the store changes.
 * @template T
 * @param {Store<T>} store
 * @returns {T}
 */
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

/** Draws the component again each second, for ages. */
export function useClock() {
  useStore(clock);
  return Date.now();
}
